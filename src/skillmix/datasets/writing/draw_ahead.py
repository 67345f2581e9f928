"""Which conversations of one k to begin ahead of the waves that will try them, so that a device is never idle.

Drawing ahead decides nothing: waves are planned from decided conversations alone, in draw order. A conversation that
was begun ahead has its text early; one that no wave tries was written in vain.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Final

from skillmix.datasets.writing.decided_texts import ConversationKey
from skillmix.datasets.writing.sampling import Candidate, Sampler

_MARGIN: Final = 2.0
"""Standard deviations of the number of kept texts by which a guess goes beyond what is expected to be enough."""


@dataclass
class DrawAhead:
    """The conversations of one k that have begun, in waves or ahead of them."""

    sampler: Sampler
    begun: set[ConversationKey] = field(default_factory=set)
    undecided: set[ConversationKey] = field(default_factory=set)
    full: int = 0
    """Decided conversations with full marks."""
    is_called: bool = False
    """Whether a conversation of this k was not in the journal, so that its text is being written."""
    _taken: list[int] = field(default_factory=list)
    """The texts taken by the waves that are over."""
    _share_taken: float = 1.0
    """The share of texts with full marks that were taken in these waves."""
    _next: int = 0

    def begin(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Note candidates as begun; return those that were not."""
        new = [candidate for candidate in candidates if key_of(candidate) not in self.begun]
        keys = [key_of(candidate) for candidate in new]
        self.begun.update(keys)
        self.undecided.update(keys)
        return new

    def note(self, key: ConversationKey, *, is_full: bool) -> None:
        """Note the decision on a conversation, if it is one of this k."""
        if key in self.undecided:
            self.undecided.remove(key)
            self.full += is_full

    def learn(self, full: int) -> None:
        """Note that a wave is over, after which that many of the tried conversations have full marks."""
        self._taken = self.sampler.taken
        self._share_taken = (len(self._taken) + 1) / (full + 1)

    def surely_needed(self) -> int:
        """How many more conversations are needed however the undecided ones end.

        Waves try candidates in draw order until enough are taken, so each rejected text calls for one more. A floor or
        a ceiling may pass over the next candidates, and then only the first wave is sure.
        """
        target = self.sampler.target
        if target.floor or target.ceiling is not None:
            return 0 if self.sampler.tried else self._within_room(target.kept - len(self.begun))
        return self._within_room(target.kept - self.full - len(self.undecided))

    def probably_needed(self) -> int:
        """How many more conversations are needed if the undecided ones end like the others.

        None while everything was written earlier: then decisions are all that is missing, and guesses would add calls.
        """
        if not self.is_called:
            return 0
        decided = len(self.begun) - len(self.undecided)
        rate = (self.full + 1) / (decided + 2) * self._share_taken
        missing = self.sampler.target.kept - self.full * self._share_taken
        if missing <= 0:
            return 0
        return self._within_room(ceil((missing + _MARGIN * sqrt(missing)) / rate) - len(self.undecided))

    def draw(self, number: int) -> list[Candidate]:
        """The next candidates that have not begun."""
        drawn: list[Candidate] = []
        for index, candidate in self.sampler.upcoming(self._taken, self._next):
            if len(drawn) == number:
                break
            self._next = index + 1
            if key_of(candidate) not in self.begun:
                drawn.append(candidate)
        return drawn

    def _within_room(self, number: int) -> int:
        return max(0, min(number, self.sampler.target.most - len(self.begun)))


def key_of(candidate: Candidate) -> ConversationKey:
    """The key of a candidate's conversation."""
    return candidate.combination.id, candidate.generation
