"""Learn the waves of a dataset step: what each of them brings is looked at once, in draw order."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final

from skillmix.datasets.build import DatasetPlan
from skillmix.datasets.growing_copies import GrowingCopies
from skillmix.datasets.kept_texts import KeptText, Removal
from skillmix.datasets.writing.draw_ahead import DrawAhead, Fate
from skillmix.datasets.writing.sampling import Drawn
from skillmix.datasets.writing.waiting_texts import WaitingTexts

MOST_EXAMPLES: Final = 5


class DroppedTexts:
    """Texts with full marks that are left out, with reasons, in order."""

    def __init__(self) -> None:
        self._places = array("q")
        self._numbers = array("B")
        self._reasons: list[str] = []

    def add(self, place: int, reason: str) -> None:
        """Note a text, by its place among the tried conversations."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        self._places.append(place)
        self._numbers.append(self._reasons.index(reason))

    def until(self, last: int) -> "Counter[str]":
        """The number of texts by reason, up to a place."""
        pairs = zip(self._places, self._numbers, strict=True)
        return Counter(self._reasons[number] for place, number in pairs if place <= last)


@dataclass
class Learned:
    """The outcome of the conversations of one k that waves have tried."""

    first: int
    """The number of its first text with full marks among those of all k."""
    accepted: bytearray = field(default_factory=bytearray)
    """For each tried conversation, 1 if its text may be taken."""
    full: "array[int]" = field(default_factory=partial(array, "q"))
    """The places of the texts with full marks among the tried conversations."""
    removed: DroppedTexts = field(default_factory=DroppedTexts)
    """Copies."""
    shown: DroppedTexts = field(default_factory=DroppedTexts)
    """Texts that show what they must not."""
    examples: list[tuple[str, str, str]] = field(default_factory=list)
    undecided: int = 0
    unfinished: int = 0
    refused: int = 0
    """Those unfinished ones that a server refused for good."""

    @property
    def less(self) -> int:
        """The number of conversations with less than full marks."""
        return len(self.accepted) - len(self.full) - self.undecided - self.unfinished

    def count(self, fates: bytes) -> None:
        """Count the conversations of a wave by their fates."""
        start = len(self.accepted)
        self.full.extend(start + place for place, fate in enumerate(fates) if fate == Fate.FULL)
        self.undecided += fates.count(Fate.UNGRADED)
        self.refused += fates.count(Fate.REFUSED)
        self.unfinished += fates.count(Fate.UNFINISHED) + fates.count(Fate.REFUSED)
        self.accepted.extend(bytes(len(fates)))


class LearnedTexts:
    """The texts with full marks of all k, by k and in draw order, and which of them are taken."""

    def __init__(self, plan: DatasetPlan) -> None:
        self._full: list[KeptText] = []
        self._taken = array("q")
        self._copies = GrowingCopies(plan.removals)

    @property
    def taken(self) -> Sequence[KeptText]:
        """The texts that are taken."""
        return [self._full[number] for number in self._taken]

    def next_k(self) -> Learned:
        """The outcome of the next k, of which nothing is known yet."""
        return Learned(first=len(self._full))

    def learn(self, wave: Drawn, of_k: DrawAhead, learned: Learned) -> None:
        """Learn the outcome of the conversations of a wave, which are decided."""
        known = len(learned.full)
        learned.count(of_k.fates(wave))
        shows: list[str | None] = []
        found = self._copies.learn(self._moved(of_k.texts, wave, shows))
        # Texts are also compared with those taken for smaller k, which come first.
        gone = {removal.text_index - len(self._taken): removal for removal in found}
        learned.examples += [self._example(r, learned) for r in found[: MOST_EXAMPLES - len(learned.examples)]]
        for number, reason in enumerate(shows, start=known):
            place = learned.full[number]
            if number in gone:
                learned.removed.add(place, gone[number].why)
            elif reason is not None:
                learned.shown.add(place, reason)
            else:
                learned.accepted[place] = 1

    def _moved(self, waiting: WaitingTexts, wave: Drawn, shows: list[str | None]) -> Iterator[str]:
        """The texts of a wave, each with what it shows; they stay here from now on."""
        for text, reason in waiting.leave(wave.indices):
            self._full.append(text)
            shows.append(reason)
            yield text.text

    def _example(self, removal: Removal, learned: Learned) -> tuple[str, str, str]:
        copied = "an example" if removal.copy_of is None else self._text(removal.copy_of, learned)
        return removal.why, self._text(removal.text_index, learned), copied

    def _text(self, number: int, learned: Learned) -> str:
        """A text by its number in the search for copies: first the texts taken for smaller k, then all of this k."""
        rest = number - len(self._taken)
        return self._full[self._taken[number] if rest < 0 else learned.first + rest].text

    def take(self, learned: Learned, taken: Sequence[int]) -> None:
        """Take the texts of a k that is over, by their places among the tried conversations."""
        numbers = array("q", (bisect_left(learned.full, place) for place in taken))
        before = len(self._taken)
        self._copies.keep_only(array("q", chain(range(before), (before + number for number in numbers))))
        self._taken.extend(learned.first + number for number in numbers)
