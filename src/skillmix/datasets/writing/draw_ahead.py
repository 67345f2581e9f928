"""Which conversations of one k to begin ahead of the waves that will try them, so that a device is never idle.

Drawing ahead decides nothing: waves are planned from decided conversations alone, in draw order. A conversation that
was begun ahead has its text early; one that no wave tries was written in vain.
"""

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from math import ceil, sqrt
from typing import Final

from skillmix.calls import CallProblem
from skillmix.datasets.writing.decided_texts import ConversationKey, DecidedText
from skillmix.datasets.writing.sampling import Candidate, Drawn, Sampler
from skillmix.datasets.writing.waiting_texts import WaitingText, WaitingTexts

_MARGIN: Final = 2.0
"""Standard deviations of the number of kept texts by which a guess goes beyond what is expected to be enough."""


class Fate(IntEnum):
    """What is known of a conversation: one byte for each."""

    NOT_BEGUN = 0
    BEGUN = 1
    CALLED = 2
    """It lacks calls, or may lack them."""
    UNFINISHED = 3
    REFUSED = 4
    """It is unfinished for good, because a server refused a call."""
    UNGRADED = 5
    LESS = 6
    FULL = 7


def fate_of(text: DecidedText | None) -> Fate:
    """The fate of a conversation after its decision; None if it has no call."""
    if text is None:
        return Fate.UNFINISHED
    if text.kept is not None:
        return Fate.FULL
    if not text.conversation.is_over:
        last = text.conversation.conversation.turns[-1].outcome
        is_refused = isinstance(last, CallProblem) and last.kind == "failed"
        return Fate.REFUSED if is_refused else Fate.UNFINISHED
    return Fate.UNGRADED if text.conversation.is_ungraded else Fate.LESS


@dataclass
class DrawAhead:
    """The conversations of one k that have begun, in waves or ahead of them."""

    sampler: Sampler
    texts: WaitingTexts = field(default_factory=WaitingTexts)
    """Texts with full marks whose wave is not learned."""
    full: int = 0
    """Decided conversations with full marks."""
    waiting: int = 0
    """Conversations of the present wave without a decision."""
    is_called: bool = False
    """Whether a conversation of this k was not in the journal, so that its text is being written."""
    _fates: bytearray = field(default_factory=bytearray)
    """The fate of each candidate, by its index in the draw."""
    _number_begun: int = 0
    _number_decided: int = 0
    _share_taken: float = 1.0
    """The share of texts with full marks that were taken in the waves that are over."""
    _next: int = 0

    def begin(self, drawn: Drawn) -> Drawn:
        """Note candidates as begun; return those that were not."""
        fates = self._fates
        if drawn.indices:
            fates.extend(bytes(max(0, max(drawn.indices) + 1 - len(fates))))
        new = array("q", (index for index in drawn.indices if fates[index] == Fate.NOT_BEGUN))
        for index in new:
            fates[index] = Fate.BEGUN
        self._number_begun += len(new)
        return Drawn(drawn.candidates, new)

    def call(self, key: ConversationKey) -> None:
        """Note that a conversation that has begun may lack calls."""
        index = self.sampler.candidates.find(*key)
        if index is not None:
            self._fates[index] = Fate.CALLED

    def with_fate(self, drawn: Drawn, *fates: Fate) -> Drawn:
        """Those candidates that have one of some fates."""
        own = self._fates
        return Drawn(drawn.candidates, array("q", (index for index in drawn.indices if own[index] in fates)))

    def fates(self, drawn: Drawn) -> bytes:
        """The fates of candidates that have begun, a byte for each."""
        own = self._fates
        return bytes([own[index] for index in drawn.indices])

    def expect(self, wave: Drawn) -> None:
        """Count from now on the conversations of a wave that are not decided."""
        self.waiting = len(self.with_fate(wave, Fate.BEGUN, Fate.CALLED))

    def is_decided(self, key: ConversationKey) -> bool:
        """Whether a conversation is one of this k and has its decision."""
        index = self.sampler.candidates.find(*key)
        return index is not None and index < len(self._fates) and self._fates[index] > Fate.CALLED

    def is_tried(self, key: ConversationKey) -> bool:
        """Whether a wave of this k has tried a conversation."""
        index = self.sampler.candidates.find(*key)
        return index is not None and self.sampler.has_tried(index)

    def note(self, key: ConversationKey, *, is_full: bool, otherwise: Fate = Fate.LESS) -> int | None:
        """Note the decision on a conversation; return its index in the draw if it is one of this k and was open."""
        index = self.sampler.candidates.find(*key)
        if index is None or index >= len(self._fates) or self._fates[index] not in (Fate.BEGUN, Fate.CALLED):
            return None
        self._fates[index] = Fate.FULL if is_full else otherwise
        self._number_decided += 1
        self.full += is_full
        self.waiting -= self.sampler.has_tried(index)
        return index

    def learn(self, full: int) -> None:
        """Note that a wave is over, after which that many of the tried conversations have full marks."""
        self._share_taken = (len(self.sampler.taken) + 1) / (full + 1)

    @property
    def _number_open(self) -> int:
        return self._number_begun - self._number_decided

    def surely_needed(self) -> int:
        """How many more conversations are needed however the undecided ones end.

        Waves try candidates in draw order until enough are taken, so each rejected text calls for one more. A floor or
        a ceiling may pass over the next candidates, and then only the first wave is sure.
        """
        target = self.sampler.target
        if target.floor or target.ceiling is not None:
            return 0 if self.sampler.tried else self._within_room(target.kept - self._number_begun)
        return self._within_room(target.kept - self.full - self._number_open)

    def probably_needed(self) -> int:
        """How many more conversations are needed if the undecided ones end like the others.

        None while everything was written earlier: then decisions are all that is missing, and guesses would add calls.
        """
        if not self.is_called:
            return 0
        rate = (self.full + 1) / (self._number_decided + 2) * self._share_taken
        missing = self.sampler.target.kept - self.full * self._share_taken
        if missing <= 0:
            return 0
        return self._within_room(ceil((missing + _MARGIN * sqrt(missing)) / rate) - self._number_open)

    def draw(self, number: int) -> Drawn:
        """The next candidates that have not begun."""
        drawn = array("q")
        for index in self.sampler.upcoming(self._next):
            if len(drawn) == number:
                break
            self._next = index + 1
            if index >= len(self._fates) or self._fates[index] == Fate.NOT_BEGUN:
                drawn.append(index)
        return Drawn(self.sampler.candidates, drawn)

    def _within_room(self, number: int) -> int:
        return max(0, min(number, self.sampler.target.most - self._number_begun))


def key_of(candidate: Candidate) -> ConversationKey:
    """The key of a candidate's conversation."""
    return candidate.combination.id, candidate.generation


class StepLedger:
    """What is decided about the conversations of a step, whatever their k."""

    def __init__(self, by_k: dict[int, DrawAhead]) -> None:
        self._by_k = by_k

    def __contains__(self, key: ConversationKey) -> bool:
        return any(of_k.is_decided(key) for of_k in self._by_k.values())

    def note(self, key: ConversationKey, text: DecidedText | None) -> None:
        """Note the decision on a conversation, and keep its text until its wave is learned; None if it has no call."""
        kept = text.kept if text is not None else None
        for of_k in self._by_k.values():
            index = of_k.note(key, is_full=kept is not None, otherwise=fate_of(text))
            if index is not None and text is not None and kept is not None:
                of_k.texts[index] = WaitingText(kept, text.shows)
