"""Texts with full marks that wait until a wave is learned: they come in any order, and leave in draw order."""

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from skillmix.datasets.kept_texts import KeptText
from skillmix.datasets.number_file import among
from skillmix.runs.on_disk.disk_list import DiskList

_AT_ONCE: Final = 20_000
"""Texts in memory while they are brought into draw order."""


class WaitingText(NamedTuple):
    """A text with full marks, and why it must be left out for what it shows, if so."""

    text: KeptText
    shows: str | None


class WaitingTexts:
    """The texts of one k that were decided and not learned; many of them are on disk."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._start()

    def _start(self) -> None:
        self._texts: DiskList[WaitingText] = DiskList(folder=self._folder)
        self._indices = array("q")
        """For each text, the index of its candidate in the draw."""

    def add(self, index: int, text: WaitingText) -> None:
        """Keep a text until the wave of its candidate is learned."""
        self._indices.append(index)
        self._texts.append(text)

    def leave(self, wave: Sequence[int]) -> Iterator[WaitingText]:
        """Give out the texts of candidates of a wave in draw order, and keep those that were drawn ahead of it."""
        texts, indices = self._texts, self._indices
        leaving = among(indices, wave)
        yield from _in_order(texts, leaving)
        self._start()
        gone = bytearray(len(texts))
        for number in leaving:
            gone[number] = 1
        for number, index in enumerate(indices):
            if not gone[number]:
                self.add(index, texts[number])
        texts.close()


def _in_order(texts: Sequence[WaitingText], numbers: Sequence[int]) -> Iterator[WaitingText]:
    """Items in any order, some at a time: those are read in ascending order, so that a block is read once."""
    for start in range(0, len(numbers), _AT_ONCE):
        part = numbers[start : start + _AT_ONCE]
        found = {number: texts[number] for number in sorted(part)}
        for number in part:
            yield found[number]
