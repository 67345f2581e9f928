"""A list whose items go to disk when there are many of them.

Items are pickled in blocks of some hundreds to a temporary file of this process, and come back block by block. Loops
over the list, and over some of its items in ascending order, therefore need memory for a few blocks only.
"""

import pickle
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

from skillmix.runs.on_disk.scratch_file import ScratchFile

Item = TypeVar("Item")
IN_MEMORY: Final = 50_000
"""The number of items up to which a list stays in memory."""
_BLOCK: Final = 500
"""The number of items that are pickled together."""
_CACHED: Final = 4
"""Blocks that stay in memory after they were read."""


class PackedItems(NamedTuple):
    """Some items of a list as bytes, so that a process can pass them on without unpacking them."""

    content: bytes
    length: int


def packed(items: Sequence[object]) -> PackedItems:
    """Pack items for `DiskList.add_packed`."""
    return PackedItems(pickle.dumps(list(items), pickle.HIGHEST_PROTOCOL), len(items))


class _Block(NamedTuple):
    start: int
    """The place of its bytes in the file."""
    size: int
    length: int


class DiskList(Sequence[Item], Generic[Item]):
    """A list that grows at its end; the items must be fit for pickling."""

    def __init__(self, items: Iterable[Item] = (), *, folder: Path | None = None, in_memory: int | None = None) -> None:
        self._file = ScratchFile(folder)
        self._in_memory = IN_MEMORY if in_memory is None else in_memory
        self._blocks: list[_Block] = []
        self._ends: list[int] = []
        self._tail: list[Item] = []
        """The items that are not on disk: all of them, while there are few."""
        self._cache: dict[int, list[Item]] = {}
        self.extend(items)

    def append(self, item: Item) -> None:
        """Add an item at the end."""
        self._tail.append(item)
        if len(self._tail) >= _BLOCK and len(self) > self._in_memory:
            self._store_tail()

    def extend(self, items: Iterable[Item]) -> None:
        """Add items at the end."""
        for item in items:
            self.append(item)

    def add_packed(self, items: PackedItems) -> None:
        """Add packed items at the end; only bytes from a process that this one started may come here."""
        if not items.length:
            return
        self._store_tail()
        self._add(items)

    def _store_tail(self) -> None:
        for start in range(0, len(self._tail), _BLOCK):
            self._add(packed(self._tail[start : start + _BLOCK]))
        self._tail = []

    def _add(self, items: PackedItems) -> None:
        start = self._file.append(items.content)
        self._blocks.append(_Block(start, len(items.content), items.length))
        self._ends.append((self._ends[-1] if self._ends else 0) + items.length)

    def reorder_blocks(self, order: Sequence[int]) -> None:
        """Put the blocks that were added packed into another order."""
        self._blocks = [self._blocks[index] for index in order]
        self._ends = list(accumulate(block.length for block in self._blocks))
        self._cache.clear()

    def close(self) -> None:
        """Drop all items, and give their disk space back."""
        self._file.close()
        self._blocks, self._ends, self._tail = [], [], []
        self._cache.clear()

    def __len__(self) -> int:
        return (self._ends[-1] if self._ends else 0) + len(self._tail)

    def __iter__(self) -> Iterator[Item]:
        for index in range(len(self._blocks)):
            yield from self._block(index)
        yield from self._tail

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        wanted = range(len(self))[index]
        stored = self._ends[-1] if self._ends else 0
        if wanted >= stored:
            return self._tail[wanted - stored]
        number = bisect_right(self._ends, wanted)
        return self._block(number)[wanted - self._ends[number] + self._blocks[number].length]

    def _block(self, number: int) -> list[Item]:
        found = self._cache.get(number)
        if found is None:
            block = self._blocks[number]
            # The bytes are those that this process, or one that it started, has pickled into a file without a name.
            found = pickle.loads(self._file.read(block.start, block.size))
            if len(self._cache) >= _CACHED:
                self._cache.pop(next(iter(self._cache)))
            self._cache[number] = found
        return found


class ChosenItems(Sequence[Item], Generic[Item]):
    """Some items of a sequence, by their indices; a loop over ascending indices reads each block once."""

    def __init__(self, source: Sequence[Item], indices: Iterable[int]) -> None:
        if isinstance(source, ChosenItems):
            own = source._indices
            source, indices = source._source, (own[index] for index in indices)
        self._source: Sequence[Item] = source
        self._indices: array[int] = array("q", indices)

    def __len__(self) -> int:
        return len(self._indices)

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same items."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == its for one, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as that of a list

    def __iter__(self) -> Iterator[Item]:
        source: Any = self._source
        for index in self._indices:
            yield source[index]

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return [self._source[one] for one in self._indices[index]]
        return self._source[self._indices[index]]
