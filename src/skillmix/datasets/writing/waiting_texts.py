"""Texts with full marks that wait until a wave is learned: they come in any order, and leave in draw order."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from skillmix.datasets.kept_texts import KeptText


class WaitingText(NamedTuple):
    """A text with full marks, and why it must be left out for what it shows, if so."""

    text: KeptText
    shows: str | None


class WaitingTexts(dict[int, WaitingText]):
    """The texts of one k that were decided and not learned, by the index of the candidate in the draw."""

    def leave(self, wave: Sequence[int]) -> Iterator[WaitingText]:
        """Give out the texts of candidates of a wave in draw order, and keep those that were drawn ahead of it."""
        for index in sorted(wave):
            if index in self:
                yield self.pop(index)
