"""What schedulers and steps need of a journal: one file, several, or one whose owner is another process."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Protocol, Self

from skillmix.calls import Call, Origin, Outcome, Request
from skillmix.catalog.combinations import Combination
from skillmix.runs.journal.row_writer import Try
from skillmix.runs.journal.submissions import Submissions


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


class RunJournal(CallJournal, AbstractContextManager["RunJournal"], Protocol):
    """The journal of a run that this process may write to."""

    def __enter__(self) -> Self:
        """The journal itself; it is closed at the end of the block."""
        ...

    def close(self) -> None:
        """Close the files and free the lock."""
        ...

    @property
    def submissions(self) -> Submissions:
        """The calls that are part of batches, and these batches."""
        ...

    def into_one_file(self) -> bool:
        """Move what the log of each file holds into the file; False if that is not possible for all."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Record everything inside the block, or nothing."""
        ...

    def add_combinations(self, combinations: Iterable[Combination]) -> None:
        """Store combinations under their ids."""
        ...

    def note_combinations(self, combinations: Iterable[Combination]) -> None:
        """Store combinations with the next tries."""
        ...

    def record(self, request: Request, outcome: Outcome, *, origin: Origin = "call") -> bool:
        """Store one outcome; False if the key already has its final one."""
        ...

    def record_all(self, outcomes: Iterable[tuple[Request, Outcome]], *, origin: Origin = "call") -> int:
        """Store outcomes in one transaction; return how many were new."""
        ...

    def forget_sent(self, requests: Iterable[Request]) -> None:
        """Drop the notes of calls that were not sent after all."""
        ...

    def conversation(self, student: str, combination: str, generation: int) -> list[Call]:
        """Every call of one conversation: turns, then votes."""
        ...

    def calls_by_conversation(self, student: str) -> dict[tuple[str, int], int]:
        """How many calls of each conversation have a final outcome; conversations without one are absent."""
        ...

    def rows_by_student(self) -> dict[str, int]:
        """How many calls of each student the journal has, gradings included."""
        ...

    def spent(self) -> tuple[int, float]:
        """How many calls were ever sent, and their cost; a try without a reply counts with its worst case."""
        ...
