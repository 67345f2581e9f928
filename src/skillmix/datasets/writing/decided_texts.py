"""Decide the conversations of a writer as they end, in a thread: learning of new ones costs nothing for old ones."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from skillmix.datasets.build import Writers, has_two_turns, kept_texts
from skillmix.datasets.kept_texts import KeptText
from skillmix.runs.judging.worker_pool import VerdictPool
from skillmix.runs.reading.conversation_index import Made, conversations_made
from skillmix.runs.reading.decisions import DecidedConversation, DecisionRules, OpenDecisions
from skillmix.runs.seconds.step_clock import StepClock

_EVERY_S: Final = 0.1
"""Seconds between two batches: a batch has a cost of its own."""

ConversationKey = tuple[str, int]
"""The combination and the generation of a conversation."""


class DecidedText(NamedTuple):
    """A conversation with its decisions, and its text if it may be kept."""

    conversation: DecidedConversation
    kept: KeptText | None


class DecidedTexts(AbstractContextManager["DecidedTexts"]):
    """What is decided about the conversations of one writer; a thread reads the journal and decides."""

    def __init__(
        self,
        rules: DecisionRules,
        writer: str,
        writers: Writers,
        *,
        look: Callable[[KeptText], object] = lambda text: None,
        clock: StepClock | None = None,
        elsewhere: Callable[[], VerdictPool | None] = lambda: None,
    ) -> None:
        self._rules = rules
        self._elsewhere = elsewhere
        """The processes on other machines that decide texts by code, if there are some."""
        self._clock = clock or StepClock()
        self._writer = writer
        self._writers = writers
        self._look = look
        """A look at each text with full marks, whose result some cache keeps."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decisions")
        self._opened: OpenDecisions | None = None
        self._waiting: dict[ConversationKey, Sequence[Made]] = {}
        """Conversations that have ended, with their calls; without calls if those are in the journal only."""
        self._batch: Future[list[DecidedText]] | None = None
        self._keys: list[ConversationKey] = []
        """The conversations of the batch."""
        self._last = 0.0
        self._known: dict[ConversationKey, DecidedText | None] = {}
        self._is_grading = False

    def __exit__(self, *problem: object) -> None:
        self._thread.submit(self._close)
        self._thread.shutdown()
        if self._is_grading:  # conversations that no wave needs are left undecided
            self._clock.end("grading")

    def __contains__(self, key: ConversationKey) -> bool:
        return key in self._known

    def get(self, key: ConversationKey) -> DecidedText | None:
        """What is known of a conversation; None if it has no call."""
        return self._known.get(key)

    def add(self, key: ConversationKey, calls: Sequence[Made] = ()) -> None:
        """Have a conversation decided, now that it has ended; without its calls, they are read from the journal."""
        self._waiting[key] = calls
        self._note_grading()

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
        missing = [key for key in keys if key not in self._known]
        self._waiting = {**dict.fromkeys(missing, ()), **self._waiting}
        self._note_grading()
        while any(key not in self._known for key in missing):
            if self._batch is None:
                self._start()
            else:
                decided |= self._take(self._batch)
        return decided

    def _note_grading(self) -> None:
        """Tell the clock whether conversations wait for their decisions."""
        if self._is_grading == self.is_idle:
            (self._clock.end if self.is_idle else self._clock.begin)("grading")
            self._is_grading = not self.is_idle

    def _start(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._last = time.monotonic()
        self._keys = list(waiting)
        self._batch = self._thread.submit(self._decide, waiting)

    def _take(self, batch: "Future[list[DecidedText]]") -> dict[ConversationKey, bool]:
        self._batch = None
        decided = dict.fromkeys(self._keys, False)
        for one in batch.result():
            index = one.conversation.conversation
            self._known[index.combination, index.generation] = one
            decided[index.combination, index.generation] = one.kept is not None
        for key in decided:
            self._known.setdefault(key, None)
        self._note_grading()
        return decided

    def _decide(self, conversations: Mapping[ConversationKey, Sequence[Made]]) -> list[DecidedText]:
        if self._opened is None:
            self._opened = OpenDecisions(self._rules, self._elsewhere)
        indexes, known = conversations_made(calls for calls in conversations.values() if calls)
        decided = self._opened.decide(indexes, known)
        decided += self._opened.of(self._writer, [key for key, calls in conversations.items() if not calls])
        full = [one for one in decided if one.is_kept and has_two_turns(one.conversation)]
        texts = kept_texts(full, self._opened.journal, self._writers, self._rules.names, known)
        for text in texts:
            self._look(text)
        by_key = {(text.combination.id, text.generation): text for text in texts}
        return [
            DecidedText(one, by_key.get((one.conversation.combination, one.conversation.generation))) for one in decided
        ]

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.__exit__()
