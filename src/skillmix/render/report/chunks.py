"""Data files that a page can load from a disk: calls of one function, at most a megabyte each."""

import json
from collections.abc import Callable
from typing import Final

LARGEST: Final = 1_000_000
"""Bytes of a file."""
_ROOM: Final = LARGEST - 200
_CUT: Final = " […] cut here; the whole is in the journal"

_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


class Chunks:
    """Numbered items of one kind in files of limited size; items that belong together can be kept together."""

    def __init__(self, kind: str, write: Callable[[str, str], None]) -> None:
        self._kind = kind
        self._write = write
        self._items: list[str] = []
        self._size = 0
        self.starts: list[int] = []
        """The number of the first item of each file."""
        self.count = 0

    def add(self, item: object) -> int:
        """Its number."""
        encoded = _encode(item)
        if len(encoded) > _ROOM:
            encoded = _fitting(item)
        if self._items and self._size + len(encoded) + 1 > _ROOM:
            self.flush()
        if not self._items:
            self.starts.append(self.count)
        self._items.append(encoded)
        self._size += len(encoded) + 1
        self.count += 1
        return self.count - 1

    def flush(self) -> None:
        """Write what is waiting."""
        if self._items:
            number = len(self.starts) - 1
            self._write(f"{self._kind}-{number}.js", script(self._kind, number, f"[{','.join(self._items)}]"))
            self._items, self._size = [], 0


def script(kind: str, number: int, encoded: str) -> str:
    """A file that hands its data to the page; ASCII only, so that its meaning depends on no encoding."""
    return f'skillmix("{kind}",{number},{encoded});\n'


def index_script(index: object) -> str:
    """The file that says where everything is."""
    return script("index", 0, _encode(index))


def _fitting(item: object) -> str:
    """An item cut down until it fits: nobody reads a megabyte of one reply, and the journal keeps it."""
    for most in (50_000, 5_000, 500, 50):
        encoded = _encode(_cut(item, most))
        if len(encoded) <= _ROOM:
            return encoded
    return _encode(None)


def _cut(item: object, most: int) -> object:
    if isinstance(item, str):
        return item if len(item) <= most else item[:most] + _CUT
    return [_cut(part, most) for part in item] if isinstance(item, list | tuple) else item
