"""What a scheduler needs of a journal: one on this disk, or one whose owner is another process."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from skillmix.calls import Outcome, Request
from skillmix.runs.journal.row_writer import Try


class TryThread(Protocol):
    """Stores tries while the event loop goes on."""

    def record_tries(self, tries: Sequence[Try]) -> "Future[None]":
        """Store tries; they are durable when the future has its result."""
        ...

    def close(self) -> None:
        """Store no more tries."""
        ...


class CallJournal(Protocol):
    """Finds the outcomes of calls, and stores new ones before they are used."""

    @property
    def few(self) -> int:
        """So many tries are better stored at once than in the thread."""
        ...

    def find(self, request: Request) -> Outcome | None:
        """The stored final outcome of a request; None if the call must be made (again)."""
        ...

    def record_tries(self, tries: Sequence[Try]) -> None:
        """Store tries, and the outcomes of calls that are over."""
        ...

    def record_sent(self, request: Request, cost_usd: float) -> None:
        """Note a call that is about to be sent, with its worst case, in case this process dies."""
        ...

    def in_thread(self) -> TryThread:
        """A thread that stores tries; the caller closes it."""
        ...
