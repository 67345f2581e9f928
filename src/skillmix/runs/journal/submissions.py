"""Batches in the journal: which calls are part of which batch, and how far each batch is.

A batch is noted with its tag and its calls before anything of it is sent. The note of each step follows before the next
step: the file is noted before the batch is created, the batch before it is looked at. After a crash the tag finds the
batch at its provider, so that no call of it is paid for twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple

from skillmix.calls import CallKey, Request
from skillmix.hashing import digest
from skillmix.runs.journal.row_writer import RowWriter, now
from skillmix.runs.journal.rows import key_of
from skillmix.runs.journal.schema import telling_what_broke

LedgerState = Literal["written", "creating", "created", "read"]
"""How far a batch is.

- written: its calls are noted, and nothing was created; its file may be uploaded.
- creating: the call that creates it may have been sent.
- created: the provider's id is known.
- read: its results were read; calls that failed there may be part of it until they are asked again.
"""


def custom_id(tag: str, request_key: str, request_hash: str) -> str:
    """The id of a call in a batch, after the tag of the batch: letters, digits and a hyphen, at most 64 of them.

    >>> len(custom_id("skx0123456789abcdef0", "generate/s/c/0/1", "ab"))
    61
    """
    return f"{tag}-{digest('custom id', request_key, request_hash, size=20).hex()}"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as the journal knows it."""

    tag: str
    model: str
    dialect: str
    address: str
    requests: int
    state: LedgerState
    file: str | None
    batch: str | None
    seen: str | None
    at: str
    changed: str

    @property
    def since(self) -> float:
        """When it was noted, in seconds since 1970."""
        return datetime.fromisoformat(self.at).timestamp()


class SubmittedCall(NamedTuple):
    """A call that is part of a batch."""

    key: CallKey
    tag: str
    worst: float | None
    """The most that it can cost, in US dollars; None if its price is not known."""
    request_hash: str

    @property
    def custom_id(self) -> str:
        """The call's id in its batch."""
        return custom_id(self.tag, str(self.key), self.request_hash)


_COLUMNS: Final = "tag, model, dialect, address, requests, state, file, batch, seen, at, changed"
_CALL_COLUMNS: Final = (
    "student, combination, generation, turn, text, grader, round, attempt, batch, cost_usd, request_hash"
)


class Submissions:
    """Notes batches and their calls; only the process that holds the run's lock does."""

    def __init__(self, rows: RowWriter) -> None:
        self._rows = rows

    @contextmanager
    def _durable(self) -> Iterator[None]:
        """A transaction that outlives a power failure as well: what it notes is about to cost money."""
        connection = self._rows.connection
        before = connection.execute("PRAGMA synchronous").fetchone()[0]
        connection.execute("PRAGMA synchronous = FULL")
        try:
            with self._rows.transaction():
                yield
        finally:
            connection.execute(f"PRAGMA synchronous = {before}")

    def submit(self, batch: StoredBatch, calls: Sequence[tuple[Request, float | None]]) -> None:
        """Note a batch that is about to be sent, and the worst case of each of its calls, in one transaction."""
        with self._durable():
            values = [getattr(batch, name) for name in _COLUMNS.split(", ")]
            self._rows.connection.execute(f"INSERT INTO batches ({_COLUMNS}) VALUES ({', '.join('?' * 11)})", values)
            self._rows.put_submitted(calls, batch.tag)

    def note_creating(self, tag: str, file: str | None) -> None:
        """Note the uploaded file, just before the batch is created."""
        self._set(tag, {"state": "creating", "file": file, "changed": now()})

    def note_created(self, tag: str, batch: str) -> None:
        """Note the provider's id of a batch."""
        self._set(tag, {"state": "created", "batch": batch, "changed": now()})

    def note_seen(self, tag: str, word: str) -> None:
        """Note the provider's present word for the state of a batch."""
        self._set(tag, {"seen": word, "changed": now()})

    def note_read(self, tag: str) -> None:
        """Note that the results of a batch were read."""
        self._set(tag, {"state": "read", "changed": now()})

    def _set(self, tag: str, values: Mapping[str, str | None]) -> None:
        changes = ", ".join(f"{name} = ?" for name in values)
        with self._durable():
            self._rows.connection.execute(f"UPDATE batches SET {changes} WHERE tag = ?", (*values.values(), tag))

    def forget(self, tag: str) -> None:
        """Forget a batch of which the provider made no call; its calls are missing again."""
        with self._rows.transaction():
            self._rows.connection.execute("DELETE FROM calls WHERE status = 'submitted' AND batch = ?", (tag,))
            self._rows.connection.execute("DELETE FROM batches WHERE tag = ?", (tag,))

    def give_up(self, tags: Iterable[str], reason: str) -> int:
        """Forget batches that may have been paid for: each call counts as a try with its worst case."""
        given_up = 0
        with self._rows.transaction():
            for tag in tags:
                for call in self.calls(tag):
                    given_up += 1
                    self._rows.connection.execute(
                        "INSERT INTO tries (key, request_hash, outcome, reason, seconds, at, cost_usd) "
                        "VALUES (?, ?, 'passing', ?, 0, ?, ?)",
                        (str(call.key), call.request_hash, reason, now(), call.worst),
                    )
                self.forget(tag)
            self._rows.connection.execute("DELETE FROM batches WHERE state != 'read'")
        return given_up

    def lost(self, model: str) -> int:
        """The batches of a model that may exist and were given up, since results were last read."""
        query = (
            "SELECT count(*) FROM batches WHERE model = ? AND state != 'read' "
            "AND tag NOT IN (SELECT batch FROM calls WHERE status = 'submitted') "
            "AND at > (SELECT coalesce(max(at), '') FROM batches WHERE model = ? AND state = 'read')"
        )
        with telling_what_broke(self._rows.path):
            return int(self._rows.connection.execute(query, (model, model)).fetchone()[0])

    def batches(self) -> list[StoredBatch]:
        """The batches that have calls without an outcome, the oldest first."""
        query = (
            f"SELECT {_COLUMNS} FROM batches WHERE tag IN (SELECT batch FROM calls WHERE status = 'submitted') "
            "ORDER BY at, tag"
        )
        with telling_what_broke(self._rows.path):
            return [StoredBatch(*row) for row in self._rows.connection.execute(query)]

    def calls(self, tag: str | None = None) -> list[SubmittedCall]:
        """The calls of a batch in the order of its lines, or of all batches."""
        where, values = ("", ()) if tag is None else ("AND batch = ?", (tag,))
        with telling_what_broke(self._rows.path):
            rows = self._rows.connection.execute(
                f"SELECT {_CALL_COLUMNS} FROM calls WHERE status = 'submitted' {where} ORDER BY id", values
            ).fetchall()
        return [SubmittedCall(key_of(key), tag, worst, own) for *key, tag, worst, own in rows]
