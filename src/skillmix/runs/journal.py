"""The journal: every model call is one row of `run.sqlite`, which is written before the reply is used.

Rows are found by their keys, so a crash, a different order or a longer run cannot misalign them. A resumed run makes
the calls whose keys are missing. A batch is recorded with its tag and its calls before any of it is sent. Each step is
recorded before the next one begins: the uploaded file before the batch is created, and the batch before it is polled.
After a crash, the batch can be found at its provider by its tag, so that no call is paid for twice.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import datetime
from heapq import merge
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from skillmix.calls import Call, CallKey, CallProblem, Message, Origin, Outcome, Reply, Request, human_grader
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.hashing import digest
from skillmix.runs.database import connect, held_lock, telling_what_broke
from skillmix.runs.rows import (
    CALL_COLUMNS,
    WRITTEN_COLUMNS,
    call_of_row,
    changed_settings,
    combination_of_row,
    json_text,
    key_of,
    now,
    row_of_call,
    row_of_submitted,
    verified_message,
    where_key,
)

Stage = Literal["generate", "grade"]
StudentConversation = tuple[str, str, int]
"""Student, combination and generation."""
_KEY_ORDER: Final = {
    "generate": "student, combination, generation, turn",
    "grade": "student, combination, generation, text, grader, round, attempt",
}
_CALLS: Final = f"SELECT {CALL_COLUMNS} FROM call LEFT JOIN message ON message.hash = call.reply"
_COLUMNS: Final = CALL_COLUMNS.split(", ")
_NAMES: Final = WRITTEN_COLUMNS.split(", ")
_PUT_CALL: Final = (
    f"INSERT INTO call ({WRITTEN_COLUMNS}) VALUES ({', '.join('?' * len(_NAMES))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _NAMES[_NAMES.index("model") :])
    + " WHERE call.status = 'submitted' OR (call.status = 'problem' AND call.problem_kind <> 'final')"
)
"""A later outcome replaces a temporary problem or a call in a batch, but never a reply."""
_PUT_MESSAGE: Final = "INSERT INTO message VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_PUT_ATTEMPT: Final = "INSERT INTO attempt (call, outcome, reason, seconds, cost_usd, at) VALUES (?, ?, ?, ?, ?, ?)"
_AT_ONCE: Final = 500
"""The largest number of values in the `IN` list of a query."""


class Attempt(NamedTuple):
    """One attempt at a call, with its outcome."""

    request: Request
    outcome: Outcome
    seconds: float
    cost_usd: float | None = None
    """The amount that an attempt without a reply may have cost."""
    stored: Outcome | None = None
    """The outcome to store under the call's key; None if the call is not finished."""
    wait: float | None = None
    """Seconds until the call is retried; None if it is not retried."""


class JournalWriter(AbstractContextManager["JournalWriter"]):
    """Adds calls to a file, which it locks. The kernel releases the lock when the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with telling_what_broke(path):
            self._lock = held_lock(path)
        try:
            self.connection = connect(path, write=True)
            self._identity = self._file_identity()
            with self.transaction():  # calls that were in flight when an earlier process died may have been billed
                self.connection.execute(
                    "INSERT INTO attempt (call, outcome, reason, seconds, cost_usd, at) "
                    "SELECT call, 'passing', 'lost with its process', 0, cost_usd, at FROM sent"
                )
                self.connection.execute("DELETE FROM sent")
        except BaseException:
            self._lock.release()
            raise
        self._sent: set[CallKey] = set()

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release the lock."""
        self.connection.close()
        self._lock.release()

    def into_one_file(self) -> None:
        """Move the contents of the write-ahead log into the file, so that a copy of the file alone is complete.

        If another connection reads older rows or the disk is full, rows stay in the log, which is durable as well.
        """
        if not self.connection.in_transaction:
            with suppress(sqlite3.Error):
                self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def _file_identity(self) -> tuple[int, int] | None:
        with suppress(OSError):
            return (file := self.path.stat()).st_dev, file.st_ino
        return None

    @contextmanager
    def transaction(self, *, is_durable: bool = False) -> Iterator[None]:
        """Record either everything inside the block or nothing; inner transactions become part of the outer one.

        A durable transaction also survives a power failure.
        """
        if self.connection.in_transaction:
            yield
            return
        if self._file_identity() != self._identity:
            raise UserError(
                f"The journal {self.path} was deleted or replaced while this process was writing to it.",
                hint="No more calls were made. Restore the file from a backup, or rerun the command to start over.",
            )
        with telling_what_broke(self.path):
            before = self.connection.execute("PRAGMA synchronous").fetchone()[0] if is_durable else None
            if is_durable:
                self.connection.execute("PRAGMA synchronous = FULL")
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # if the disk is full, SQLite has already ended the transaction
                    self.connection.execute("ROLLBACK")
                raise
            finally:
                if is_durable:
                    self.connection.execute(f"PRAGMA synchronous = {before}")

    def add_combinations(self, combinations: Iterable[Combination]) -> None:
        """Store combinations under their ids."""
        rows = [(one.id, json_text(one.skills), one.topic) for one in combinations]
        with self.transaction():
            self.connection.executemany("INSERT INTO combination VALUES (?, ?, ?) ON CONFLICT DO NOTHING", rows)

    def record(self, request: Request, outcome: Outcome, *, origin: Origin = "call") -> bool:
        """Store one outcome; return False if the key already has its final outcome."""
        return self.record_all([(request, outcome)], origin=origin) == 1

    def record_all(self, outcomes: Iterable[tuple[Request, Outcome]], *, origin: Origin = "call") -> int:
        """Store outcomes in one transaction; return how many were new.

        Importing a different reply under a stored key is an error, because it means that the source has changed.
        """
        new = 0
        with self.transaction():
            for request, outcome in outcomes:
                stored = self.find(request)
                if stored is None:
                    self._put_calls([(request, outcome)], origin=origin)
                    new += 1
                elif origin != "call" and getattr(stored, "text", None) != getattr(outcome, "text", None):
                    raise UserError(
                        f"{request.key} is already in the journal with another reply.",
                        hint="Nothing from this import was stored. Choose another run name for changed texts.",
                    )
        return new

    def record_attempts(self, attempts: Sequence[Attempt]) -> None:
        """Store attempts, and the outcomes of finished calls, in one transaction.

        The caller has already passed each call to `find`, so its request is known to match the stored key.
        """
        at = now()
        with self.transaction():
            rows = []
            for one in attempts:
                if isinstance(one.outcome, Reply):
                    told = "reply", one.outcome.finish or ""
                else:
                    told = one.outcome.kind, one.outcome.reason
                rows.append((str(one.request.key), *told, one.seconds, one.cost_usd, at))
            self.connection.executemany(_PUT_ATTEMPT, rows)
            if self._sent:
                noted = [one.request.key for one in attempts if one.request.key in self._sent]
                self._sent.difference_update(noted)
                self.connection.executemany("DELETE FROM sent WHERE call = ?", [(str(key),) for key in noted])
            self._put_calls([(one.request, one.stored) for one in attempts if one.stored is not None])
            for one in attempts:
                if one.stored is None and isinstance(one.outcome, CallProblem) and one.outcome.kind == "passing":
                    # The attempt in the batch has ended and was charged, so the call is no longer part of the batch.
                    where, values = where_key(one.request.key)
                    self.connection.execute(f"DELETE FROM call WHERE {where} AND status = 'submitted'", values)

    def _put_calls(self, calls: Sequence[tuple[Request, Outcome]], *, origin: Origin = "call") -> None:
        """Write the rows of calls and their messages inside the caller's transaction."""
        messages = {m.content_hash: m for request, _ in calls for m in request.messages}
        contents = [(address, message.role, message.content) for address, message in messages.items()]
        at = now()
        rows = [row_of_call(request, outcome, origin=origin, at=at) for request, outcome in calls]
        place = _NAMES.index("reply")
        for row, (_, outcome) in zip(rows, calls, strict=True):
            if isinstance(outcome, Reply):
                contents.append((str(row[place]), "assistant", outcome.text))
        self.connection.executemany(_PUT_MESSAGE, contents)
        self.connection.executemany(_PUT_CALL, rows)

    def put_submitted(self, request: Request, worst: float | None, tag: str) -> None:
        """Record a request as part of a batch with its worst-case cost; replace a stored problem or earlier batch."""
        if self.find(request) is not None:
            raise ValueError(f"{request.key} has its outcome")
        where, values = where_key(request.key)
        self.connection.execute(f"DELETE FROM call WHERE {where}", values)
        self.connection.executemany(_PUT_MESSAGE, [(m.content_hash, m.role, m.content) for m in request.messages])
        self.connection.execute(_PUT_CALL, row_of_submitted(request, worst, tag))

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""
        with telling_what_broke(self.path):
            return self.connection.execute(query, values).fetchall()

    @property
    def submissions(self) -> "Submissions":
        """Return the calls that are part of batches, together with the batches."""
        return Submissions(self)

    def find(self, request: Request) -> Outcome | None:
        """Find the stored final outcome of a request; None if the call must be made (again), or is part of a batch.

        Calls in batches must not be repeated. `submissions` lists them. A different request under the same key is an
        error.
        """
        where, values = where_key(request.key)
        rows = self.rows(f"{_CALLS} WHERE {where}", values)
        if not rows:
            return None
        (row,) = rows
        if row[_COLUMNS.index("request_hash")] != request.content_hash:
            start = _COLUMNS.index("model")
            raise changed_settings(request, row[start : start + 4])
        outcome = call_of_row(row).outcome
        return None if isinstance(outcome, CallProblem) and outcome.kind != "final" else outcome

    def conversation(self, student: str, combination: str, generation: int) -> list[Call]:
        """Return every call of one conversation: first the turns, then the votes."""
        calls = []
        for stage, order in _KEY_ORDER.items():
            where = f"stage = '{stage}' AND student = ? AND combination = ? AND generation = ?"
            query = f"{_CALLS} WHERE {where} ORDER BY {order}"
            calls += [call_of_row(row) for row in self.rows(query, (student, combination, generation))]
        return calls

    def calls_by_conversation(self, student: str) -> dict[tuple[str, int], int]:
        """Count the calls of each conversation that have a final outcome. A repeated vote counts once.

        Conversations without such a call are absent.
        """
        query = (
            "SELECT combination, generation, sum(coalesce(attempt, 0) = 0 "
            "AND (status = 'done' OR coalesce(problem_kind, '') = 'final')) "
            "FROM call WHERE student = ? GROUP BY combination, generation"
        )
        rows = self.rows(query, (student,))
        return {(combination, generation): count for combination, generation, count in rows if count}

    def spent(self) -> tuple[int, float]:
        """Count all calls that were ever sent, and sum their cost.

        An attempt without a reply counts with its worst-case cost.
        """
        ((attempts, lost),) = self.rows("SELECT count(*), total(cost_usd) FROM attempt")
        # The worst-case cost of a call in a batch is not spent yet. It is in `submissions`.
        ((cost,),) = self.rows("SELECT total(cost_usd) FROM call WHERE status != 'submitted'")
        return attempts, cost + lost

    def record_sent(self, request: Request, cost_usd: float) -> None:
        """Record a call that is about to be sent with its worst-case cost, in case this process dies."""
        self._sent.add(request.key)
        with telling_what_broke(self.path):
            self.connection.execute("INSERT OR REPLACE INTO sent VALUES (?, ?, ?)", (str(request.key), cost_usd, now()))

    def count_conversations(self, conversations: Iterable[StudentConversation]) -> None:
        """Record that a step now uses conversations that an earlier version of skillmix prefetched."""
        if self.connection.execute("SELECT 1 FROM uncounted LIMIT 1").fetchone():
            query = "DELETE FROM uncounted WHERE student = ? AND combination = ? AND generation = ?"
            with self.transaction():
                self.connection.executemany(query, conversations)


class JournalReader(AbstractContextManager["JournalReader"]):
    """Reads the calls of a run, and people's answers from their own files as if they were votes."""

    def __init__(self, path: Path, people: Iterable[Path] = ()) -> None:
        self._files: list[tuple[Path, sqlite3.Connection]] = []
        self._is_limited = False
        try:
            for file in (path, *people):
                self._files.append((file, connect(file, write=False)))
        except BaseException:
            self.close()
            raise

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for _, connection in self._files:
            connection.close()

    def rows(self, query: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Return the rows that a query finds in the run's file."""
        return self._rows_of(*self._files[0], query, values)

    def _rows_of(
        self, path: Path, connection: sqlite3.Connection, query: str, values: Sequence[object]
    ) -> Iterator[tuple[Any, ...]]:
        with telling_what_broke(path):
            # Not `yield from`, because a reader that stops early would close a cursor that is already closed.
            for row in connection.execute(query, values):  # noqa: UP028
                yield row

    def calls(self, stage: Stage, *, student: str | None = None) -> Iterator[Call]:
        """Yield the calls of a stage in key order. With `student`, only calls about this student are read."""
        # With a literal stage and the key's order, SQLite can walk the index of that stage instead of sorting replies.
        query = (
            f"{_CALLS} WHERE stage = '{stage}' {'AND student = ?' if student is not None else ''} "
            f"{'AND combination IN (SELECT id FROM temp.chosen)' if self._is_limited else ''} "
        )
        values = [] if student is None else [student]
        order = f"ORDER BY {_KEY_ORDER[stage]}"
        sources = [map(call_of_row, self.rows(query + order, values))]
        if stage == "grade":
            for path, connection in self._files[1:]:  # each file contains the answers of the person in its file name
                grader = human_grader(path.stem)
                rows = self._rows_of(path, connection, f"{query} AND grader = ? {order}", [*values, grader])
                sources.append(map(call_of_row, rows))
        yield from merge(*sources, key=lambda call: where_key(call.key)[1])

    def limit_calls(self, combinations: Iterable[str]) -> None:
        """Restrict `calls` to the calls of these combinations from now on."""
        rows = [(combination,) for combination in combinations]
        for path, connection in self._files:
            with telling_what_broke(path):
                connection.execute("CREATE TEMP TABLE IF NOT EXISTS chosen (id TEXT PRIMARY KEY) WITHOUT ROWID")
                connection.execute("DELETE FROM temp.chosen")
                connection.executemany("INSERT OR IGNORE INTO temp.chosen VALUES (?)", rows)
        self._is_limited = True

    def combinations(self) -> dict[str, Combination]:
        """Return all combinations by id."""
        rows = self.rows("SELECT id, skills, topic FROM combination ORDER BY rowid")
        return {row[0]: combination_of_row(row) for row in rows}

    def combinations_of(self, ids: Iterable[str], *, is_complete: bool = True) -> dict[str, Combination]:
        """Return the combinations with these ids.

        An id that is not in the journal is an error, unless the caller accepts missing combinations.
        """
        wanted = sorted(set(ids))
        found = {row[0]: combination_of_row(row) for row in self._with("combination", "id", "skills, topic", wanted)}
        if is_complete and len(found) < len(wanted):
            raise UserError(
                f"The journal lacks {len(wanted) - len(found)} of its combinations.",
                hint="It is damaged. Restore it from a backup.",
            )
        return found

    def messages_with(self, addresses: Iterable[str]) -> dict[str, Message]:
        """Return the messages stored under these hashes after checking each message against its hash."""
        wanted = sorted(set(addresses))
        found = {row[0]: verified_message(*row) for row in self._with("message", "hash", "role, content", wanted)}
        if len(found) < len(wanted):
            raise UserError(
                f"The journal is damaged: {len(wanted) - len(found)} messages are missing.",
                hint="Nothing was changed. Restore the journal from a backup.",
            )
        return found

    def _with(self, table: str, key: str, columns: str, wanted: list[str]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows with any of many keys from all files; split the keys over several queries."""
        for file in self._files:
            found: set[str] = set()
            for start in range(0, len(wanted), _AT_ONCE):
                part = wanted[start : start + _AT_ONCE]
                marks = ", ".join("?" * len(part))
                for row in self._rows_of(*file, f"SELECT {key}, {columns} FROM {table} WHERE {key} IN ({marks})", part):
                    found.add(row[0])
                    yield row
            wanted = [value for value in wanted if value not in found]

    def message(self, address: str) -> Message:
        """Return one message by its hash."""
        return self.messages_with([address])[address]

    def conversations(self) -> int:
        """Count the conversations that have begun. Only the index is read."""
        return int(next(self.rows("SELECT count(*) FROM call WHERE stage = 'generate' AND turn = 1"))[0])

    def students(self) -> set[str]:
        """Return the students that wrote a text."""
        return {row[0] for row in self.rows("SELECT DISTINCT student FROM call WHERE stage = 'generate'")}

    def graders(self) -> list[str]:
        """Return the graders that graded a text, sorted."""
        query = "SELECT DISTINCT grader FROM call WHERE stage = 'grade'"
        return sorted({row[0] for file in self._files for row in self._rows_of(*file, query, ())})

    def extent(self) -> tuple[int, int]:
        """Return the approximate numbers of calls and attempts without counting the rows."""
        query = "SELECT coalesce((SELECT max(id) FROM call), 0), coalesce((SELECT max(id) FROM attempt), 0)"
        return next(self.rows(query))


LedgerState = Literal["written", "creating", "created", "read"]
"""The state of a batch.

- written: its calls are recorded and its file may be uploaded, but no batch was created.
- creating: the call that creates it may have been sent.
- created: the provider's id is known.
- read: its results were read; calls that failed in the batch may remain part of it until they are made again.
"""


def custom_id(tag: str, request_key: str, request_hash: str) -> str:
    """Make the id of a call in a batch from the tag of the batch: letters, digits and a hyphen, at most 64 characters.

    >>> len(custom_id("skx0123456789abcdef0", "generate/s/c/0/1", "ab"))
    61
    """
    return f"{tag}-{digest('custom id', request_key, request_hash, size=20).hex()}"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as recorded in the journal."""

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
        """Return the time when the batch was recorded, in seconds since 1970."""
        return datetime.fromisoformat(self.at).timestamp()


class SubmittedCall(NamedTuple):
    """A call that is part of a batch."""

    key: CallKey
    tag: str
    worst: float | None
    """The maximum cost of the call in US dollars; None if the price is unknown."""
    request_hash: str

    @property
    def custom_id(self) -> str:
        """Return the call's id in its batch."""
        return custom_id(self.tag, str(self.key), self.request_hash)


_BATCH_COLUMNS: Final = "tag, model, dialect, address, requests, state, file, provider_id, seen, at, changed"
_SUBMITTED_COLUMNS: Final = (
    "student, combination, generation, turn, text, grader, round, attempt, batch, cost_usd, request_hash"
)


class Submissions:
    """Records batches and their calls. Only the process that has locked the run uses this class."""

    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal
        self._connection = journal.connection

    def submit(self, batch: StoredBatch, calls: Sequence[tuple[Request, float | None]]) -> None:
        """Record a batch that is about to be sent, with the worst-case cost of each call, in one transaction."""
        with self._journal.transaction(is_durable=True):  # the recorded batch is about to cost money
            self._connection.execute(
                f"INSERT INTO batch ({_BATCH_COLUMNS}) VALUES ({', '.join('?' * 11)})", astuple(batch)
            )
            for request, worst in calls:
                self._journal.put_submitted(request, worst, batch.tag)

    def note(self, tag: str, **values: str | None) -> None:
        """Record the progress of a batch in the columns of its row."""
        changes = ", ".join(f"{name} = ?" for name in values)
        with self._journal.transaction(is_durable=True):
            query = f"UPDATE batch SET {changes}, changed = ? WHERE tag = ?"
            self._connection.execute(query, (*values.values(), now(), tag))

    def forget(self, tag: str) -> None:
        """Drop a batch and its calls without an outcome, which then count as missing again."""
        with self._journal.transaction():
            self._connection.execute("DELETE FROM call WHERE status = 'submitted' AND batch = ?", (tag,))
            self._connection.execute("DELETE FROM batch WHERE tag = ?", (tag,))

    def give_up(self, tags: Iterable[str], reason: str) -> int:
        """Abandon batches that may have been billed. Each call counts as an attempt with its worst-case cost."""
        given_up = 0
        with self._journal.transaction():
            for tag in tags:
                rows = [(str(call.key), reason, call.worst, now()) for call in self.calls(tag)]
                given_up += len(rows)
                self._connection.executemany(
                    "INSERT INTO attempt (call, outcome, reason, seconds, cost_usd, at) "
                    "VALUES (?, 'passing', ?, 0, ?, ?)",
                    rows,
                )
                self.forget(tag)
            self._connection.execute("DELETE FROM batch WHERE state != 'read'")
        return given_up

    def lost(self, model: str) -> int:
        """Count the batches of a model that were abandoned, but may exist, since results were last read."""
        query = (
            "SELECT count(*) FROM batch WHERE model = ? AND state != 'read' "
            "AND tag NOT IN (SELECT batch FROM call WHERE status = 'submitted') "
            "AND at > (SELECT coalesce(max(at), '') FROM batch WHERE model = ? AND state = 'read')"
        )
        return int(self._journal.rows(query, (model, model))[0][0])

    def batches(self) -> list[StoredBatch]:
        """Return the batches with calls that have no outcome yet, oldest first."""
        query = (
            f"SELECT {_BATCH_COLUMNS} FROM batch WHERE tag IN (SELECT batch FROM call WHERE status = 'submitted') "
            "ORDER BY at, tag"
        )
        return [StoredBatch(*row) for row in self._journal.rows(query)]

    def calls(self, tag: str | None = None) -> list[SubmittedCall]:
        """Return the calls of one batch in the order of its lines, or the calls of all batches."""
        where, values = ("", ()) if tag is None else ("AND batch = ?", (tag,))
        query = f"SELECT {_SUBMITTED_COLUMNS} FROM call WHERE status = 'submitted' {where} ORDER BY id"
        rows = self._journal.rows(query, values)
        return [SubmittedCall(key_of(key), tag, worst, own) for *key, tag, worst, own in rows]
