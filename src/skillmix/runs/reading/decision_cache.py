"""A cache of grading decisions; it may be deleted at any time.

A key is a hash of everything that its decision depends on. Each entry has a digest of its key and content; an entry
that was edited, damaged or moved to another key does not match its digest and is decided anew. The digest is no
signature: whoever can write to the cache can also write to the journal.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

_SCHEMA: Final = """
DROP TABLE IF EXISTS decisions;  -- of older versions, whose entries had no digest
CREATE TABLE IF NOT EXISTS checked_decisions (
    key    BLOB PRIMARY KEY,
    earned INTEGER,
    text   TEXT NOT NULL,
    status TEXT NOT NULL,
    votes  TEXT NOT NULL,
    digest BLOB NOT NULL
) WITHOUT ROWID;
"""
_SELECT: Final = "SELECT key, earned, text, status, votes, digest FROM checked_decisions"
_AT_ONCE: Final = 500
_ROWS_AT_ONCE: Final = 150
_PATIENCE_S: Final = 10.0
"""Seconds that a process waits for another one that writes to the same cache."""


class Decision(NamedTuple):
    """A grader's decision on a text."""

    earned: int | None
    """1 for full marks, 0 for less, None if undecided."""
    text: str
    """The text's id."""
    status: str
    votes: str
    """The points of each round, as JSON."""


def _digest(key: bytes, content: tuple[object, ...]) -> bytes:
    return blake2b(repr((key, content)).encode("utf-8", "surrogatepass"), digest_size=16).digest()


class DecisionCache(AbstractContextManager["DecisionCache"]):
    """The decisions of one run; if the file cannot be written, nothing is cached."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = self._opened()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Decision]:
        """The stored decisions of these keys."""
        found: dict[bytes, Decision] = {}
        if self._connection is None:
            return found
        try:
            for start in range(0, len(keys), _AT_ONCE):
                part = keys[start : start + _AT_ONCE]
                marks = ", ".join("?" * len(part))
                rows = self._connection.execute(f"{_SELECT} WHERE key IN ({marks})", part)
                found.update({row[0]: Decision(*row[1:5]) for row in rows if row[5] == _digest(row[0], row[1:5])})
        except sqlite3.OperationalError:  # another process is writing: the rest is decided again
            return found
        except sqlite3.DatabaseError:
            self._start_anew()
        return found

    def keep(self, decisions: Iterable[tuple[bytes, Decision]]) -> None:
        """Store decisions; a failed write is harmless."""
        if self._connection is None:
            return
        rows = [(key, *decision, _digest(key, tuple(decision))) for key, decision in decisions]
        try:
            with self._connection:
                for start in range(0, len(rows), _ROWS_AT_ONCE):
                    part = rows[start : start + _ROWS_AT_ONCE]
                    values = ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(part))
                    # One statement: other threads of the interpreter run while SQLite works on it.
                    self._connection.execute(
                        f"INSERT OR REPLACE INTO checked_decisions VALUES {values}", list(chain.from_iterable(part))
                    )
        except sqlite3.OperationalError:  # another process is writing, or the disk is full
            return
        except sqlite3.DatabaseError:
            self._start_anew()

    def _opened(self) -> sqlite3.Connection | None:
        for _ in range(2):
            with suppress(sqlite3.OperationalError):
                connection = sqlite3.connect(self._path, timeout=_PATIENCE_S)
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.execute("PRAGMA synchronous = OFF")
                    connection.executescript(_SCHEMA)
                    return connection
                except sqlite3.DatabaseError as error:
                    connection.close()
                    if isinstance(error, sqlite3.OperationalError):
                        raise
                    self._remove()
        return None

    def _start_anew(self) -> None:
        """Replace a damaged file by an empty one."""
        if self._connection is not None:
            self._connection.close()
        self._remove()
        self._connection = self._opened()

    def _remove(self) -> None:
        for name in ("", "-wal", "-shm"):
            with suppress(OSError):
                self._path.with_name(self._path.name + name).unlink(missing_ok=True)
