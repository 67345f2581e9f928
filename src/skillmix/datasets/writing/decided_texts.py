"""Decide the conversations of a writer as they end, in a thread: learning of new ones costs nothing for old ones."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice
from typing import Final, NamedTuple, Protocol

from skillmix.datasets.build import Writers, has_all_turns, kept_text
from skillmix.datasets.kept_texts import KeptText
from skillmix.runs.reading.decisions import DecidedConversation, OpenDecisions

_EVERY_S: Final = 0.1
"""Seconds between two batches: a batch has a cost of its own."""
_AT_ONCE: Final = 5000
"""Conversations in a batch: their calls and replies are in memory meanwhile."""

ConversationKey = tuple[str, int]
"""The combination and the generation of a conversation."""


class DecidedText(NamedTuple):
    """A conversation with its decisions, and its text if it may be kept."""

    conversation: DecidedConversation
    kept: KeptText | None
    shows: str | None = None
    """Why the text must be left out for what it shows; None if it may stay."""


class Ledger(Protocol):
    """Takes over what is decided."""

    def __contains__(self, key: ConversationKey, /) -> bool:
        """Whether a conversation is decided."""
        ...

    def note(self, key: ConversationKey, text: DecidedText | None) -> None:
        """Note the decision on a conversation; None if it has no call."""
        ...


class DecidedTexts(AbstractContextManager["DecidedTexts"]):
    """Decides the conversations of one writer: a thread reads the journal and decides, a ledger takes over."""

    def __init__(
        self,
        open_decisions: Callable[[], OpenDecisions],
        writer: str,
        writers: Writers,
        *,
        ledger: Ledger,
        look: Callable[[KeptText], str | None] = lambda text: None,
    ) -> None:
        self._open_decisions = open_decisions
        """Is called in the thread, when the first conversation is decided."""
        self._writer = writer
        self._writers = writers
        self._look = look
        """Says of each text with full marks why it must be left out for what it shows."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decisions")
        self._opened: OpenDecisions | None = None
        self._waiting: dict[ConversationKey, None] = {}
        """Conversations that have ended, in order."""
        self._batch: Future[list[DecidedText]] | None = None
        self._keys: list[ConversationKey] = []
        """The conversations of the batch."""
        self._last = 0.0
        self._ledger = ledger

    def __exit__(self, *problem: object) -> None:
        self._thread.submit(self._close)
        self._thread.shutdown()

    def add(self, key: ConversationKey) -> None:
        """Have a conversation decided, now that it has ended and its calls are in the journal."""
        self._waiting[key] = None

    @property
    def is_idle(self) -> bool:
        """Whether no conversation waits for its decision."""
        return self._batch is None and not self._waiting

    def poll(self) -> dict[ConversationKey, bool]:
        """Take over what the thread has decided, and give it the conversations that have ended since.

        Returns the conversations that are decided now, and whether they have full marks.
        """
        decided: dict[ConversationKey, bool] = {}
        if self._batch is not None and self._batch.done():
            decided = self._take(self._batch)
        if self._batch is None and self._waiting and time.monotonic() - self._last > _EVERY_S:
            self._start()
        return decided

    def finish(self, keys: Iterable[ConversationKey]) -> dict[ConversationKey, bool]:
        """Wait until these conversations are decided, ended or not; others are not waited for."""
        decided: dict[ConversationKey, bool] = {}
        missing = [key for key in keys if key not in self._ledger]
        self._waiting = {**dict.fromkeys(missing), **self._waiting}
        while any(key not in self._ledger for key in missing):
            if self._batch is None:
                self._start()
            else:
                decided |= self._take(self._batch)
        return decided

    def _start(self) -> None:
        self._last = time.monotonic()
        self._keys = list(islice(self._waiting, _AT_ONCE))
        for key in self._keys:
            del self._waiting[key]
        self._batch = self._thread.submit(self._decide, self._keys)

    def _take(self, batch: "Future[list[DecidedText]]") -> dict[ConversationKey, bool]:
        self._batch = None
        decided = dict.fromkeys(self._keys, False)
        texts = {one.conversation.conversation.key[1:]: one for one in batch.result()}
        for key in decided:
            text = texts.get(key)
            decided[key] = text is not None and text.kept is not None
            self._ledger.note(key, text)
        return decided

    def _decide(self, keys: Sequence[ConversationKey]) -> list[DecidedText]:
        if self._opened is None:
            self._opened = self._open_decisions()
        decided, graders = [], tuple(self._opened.names)
        for one in self._opened.of(self._writer, keys):
            is_full = one.is_kept and has_all_turns(one.conversation)
            kept = kept_text(one, self._writers, graders) if is_full else None
            decided.append(DecidedText(one, kept, self._look(kept) if kept else None))
        return decided

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.__exit__()
