"""Long arrays of numbers: in memory while they are short, in a temporary file once they are long."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from skillmix.runs.on_disk.scratch_file import ScratchFile

IN_MEMORY: Final = 8_000_000
"""The number of elements up to which an array stays in memory."""


class NumberFile:
    """An array that grows at its end, and of which a part at a time is read."""

    def __init__(self, dtype: DTypeLike, folder: Path | None = None) -> None:
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self.folder = folder
        self._file = ScratchFile(folder)
        self._parts: list[NDArray[Any]] = []
        """The elements that are not on disk."""
        self._size = 0
        self._is_on_disk = False

    def __len__(self) -> int:
        return self._size

    def append(self, numbers: NDArray[Any]) -> None:
        """Add elements at the end."""
        part = np.ascontiguousarray(numbers, self._dtype)
        self._size += len(part)
        self._parts.append(part)
        if self._is_on_disk or self._size > IN_MEMORY:
            self._is_on_disk = True
            for waiting in self._parts:
                self._file.append(waiting.tobytes())
            self._parts = []

    def read(self, start: int, end: int) -> NDArray[Any]:
        """The elements from `start` up to `end`."""
        if self._is_on_disk:
            width = self._dtype.itemsize
            return np.frombuffer(self._file.read(start * width, (end - start) * width), self._dtype)
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts) if self._parts else np.empty(0, self._dtype)]
        return self._parts[0][start:end]


def among(numbers: "array[int]", wanted: Sequence[int]) -> "array[int]":
    """The places of those numbers that are wanted, in ascending order of the numbers.

    >>> list(among(array("q", [9, 5, 7]), [5, 6, 9]))
    [1, 0]
    """
    every = np.asarray(numbers, np.int64)
    places = np.flatnonzero(np.isin(every, np.asarray(wanted, np.int64)))
    return array("q", places[np.argsort(every[places])].astype(np.int64).tobytes())


class BucketFile:
    """Records sorted roughly into buckets: all records of a bucket come back together, in the order of their coming."""

    def __init__(self, dtype: DTypeLike, buckets: int, folder: Path | None = None) -> None:
        self._records = NumberFile(dtype, folder)
        self._parts: list[list[tuple[int, int]]] = [[] for _ in range(buckets)]
        """For each bucket, where its records begin and end."""

    def append(self, records: NDArray[Any], buckets: NDArray[np.uint16]) -> None:
        """Add records, each to its bucket."""
        order = np.argsort(buckets, kind="stable")
        start = len(self._records)
        self._records.append(records[order])
        counts = np.bincount(buckets, minlength=len(self._parts))
        for bucket in np.flatnonzero(counts).tolist():
            end = start + int(counts[bucket])
            self._parts[bucket].append((start, end))
            start = end

    def bucket(self, number: int) -> NDArray[Any]:
        """The records of one bucket."""
        parts = [self._records.read(start, end) for start, end in self._parts[number]]
        return np.concatenate(parts) if parts else self._records.read(0, 0)
