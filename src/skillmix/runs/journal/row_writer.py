"""Write calls and tries into a journal file, many rows in one statement and one transaction.

The interpreter is free for other threads while SQLite works on a statement, so a few statements with many rows hold up
an event loop far less than many statements with one row.
"""

import json
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from skillmix.calls import (
    CallKey,
    CallProblem,
    Decoding,
    GenerateKey,
    Message,
    Origin,
    Outcome,
    Reply,
    Request,
    content_address,
)
from skillmix.errors import UserError
from skillmix.runs.journal.changed_settings import changed_settings
from skillmix.runs.journal.schema import telling_what_broke

_SIZES: Final = (128, 64, 32, 16, 8, 4, 2, 1)
"""Rows in a statement: few sizes, so that SQLite's prepared statements are reused."""
_MOST_KNOWN_MESSAGES: Final = 50_000


class Attempt(NamedTuple):
    """One call that was sent, with its outcome."""

    request: Request
    outcome: Outcome
    seconds: float
    cost_usd: float | None = None
    """The possible cost of an attempt without a reply."""
    stored: Outcome | None = None
    """The outcome under the call's key; None if the call has none yet."""
    wait: float | None = None
    """Seconds until the call is tried again; None if it is not."""


class StoredCall(NamedTuple):
    """The stored state of a key."""

    is_open: bool
    """Whether the call may be made (again)."""
    reply: str | None
    is_submitted: bool = False
    """Whether the call is part of a batch, whose result takes the place of this row."""

    @property
    def has_outcome(self) -> bool:
        """Whether the stored outcome is final."""
        return not self.is_open and not self.is_submitted


class KnownKeys:
    """What a writer knows of its file without a look at it; no other process can write while the lock is held.

    Two threads share this record. Each change is one operation on a set, which the other thread cannot break.
    """

    def __init__(self) -> None:
        self.absent: set[CallKey] = set()
        """Keys that were looked up and are missing."""
        self.sent: set[CallKey] = set()
        """Keys of calls that are noted as sent."""
        self.combinations: deque[tuple[str, str, str]] = deque()
        """Rows of combinations that go into the file with the next tries."""
        self._conversations: dict[str, set[tuple[str, int]]] = {}
        """By student, the conversations of which the file had any row when it was asked."""
        self._written: dict[str, set[int]] = {}
        """By student, the hashes of the keys that were written since then: a step may write millions of keys.

        A key with the hash of another one is looked up in the file, which costs a moment and is right.
        """

    def begin(self, student: str) -> None:
        """Collect the keys that are written from now on; `learn` follows with what the file had before."""
        self._conversations.pop(student, None)
        self._written[student] = set()

    def learn(self, student: str, conversations: Iterable[tuple[str, int]]) -> None:
        """Note all conversations of a student that have a row."""
        self._conversations[student] = set(conversations)

    def is_absent(self, key: CallKey) -> bool:
        """Whether a key is certainly missing."""
        if key in self.absent:
            return True
        known = self._conversations.get(key.student)
        if known is None or (key.combination, key.generation) in known:
            return False
        return hash(key) not in self._written[key.student]

    def note_written(self, keys: Iterable[CallKey]) -> None:
        """Note keys that are about to be stored."""
        new = set(keys)  # with the hashes that a dictionary has already: to hash a key takes longer than the rest
        students = {key.student for key in new}
        for student in students.intersection(self._written):
            own = new if len(students) == 1 else {key for key in new if key.student == student}
            self._written[student].update(map(hash, own))
        self.absent.difference_update(new)


class RowWriter:
    """Writes rows through one connection; a connection belongs to one thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection, keys: KnownKeys) -> None:
        self.path = path
        self.connection = connection
        self._keys = keys
        self._identity = _identity(path)
        self._known_messages: set[str] = set()
        """Hashes of messages that are stored for certain: worked examples are part of every request."""

    def with_connection(self, connection: sqlite3.Connection) -> "RowWriter":
        """A writer to the same file, with the same keys and another connection."""
        other = RowWriter(self.path, connection, self._keys)
        other._identity = self._identity
        return other

    def refuse_other_file(self) -> None:
        """Refuse to write if the file is gone or another one."""
        if _identity(self.path) != self._identity:
            raise UserError(
                f"The journal {self.path} was deleted or replaced while this process was writing to it.",
                hint="Nothing more was asked. Put the file back from a copy, or run again to begin anew.",
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Record everything inside the block, or nothing; inner transactions become part of the outer one."""
        if self.connection.in_transaction:
            yield
            return
        self.refuse_other_file()
        with telling_what_broke(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                self._known_messages.clear()
                if self.connection.in_transaction:  # SQLite has ended it already if the disk is full
                    self.connection.execute("ROLLBACK")
                raise

    def put_attempts(self, tries: Sequence[Attempt]) -> None:
        """Store tries, and the outcomes of calls that are over, in one transaction."""
        with self.transaction():
            self._put_noted_combinations()
            at = now()
            self._insert(_TRIES, [_try_row(one, at) for one in tries])
            if self._keys.sent:
                noted = [one.request.key for one in tries if one.request.key in self._keys.sent]
                self._keys.sent.difference_update(noted)
                self.connection.executemany("DELETE FROM sent WHERE key = ?", [(str(key),) for key in noted])
            self.put_outcomes([(one.request, one.stored) for one in tries if one.stored is not None])
            for one in tries:
                if one.stored is None and isinstance(one.outcome, CallProblem) and one.outcome.kind == "passing":
                    # A try in a batch is over and paid for, so the call is in no batch any more.
                    where, values = where_key(one.request.key)
                    self.connection.execute(f"DELETE FROM calls WHERE {where} AND status = 'submitted'", values)

    def put_combinations(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Store combinations under their ids."""
        self.connection.executemany("INSERT OR IGNORE INTO combinations VALUES (?, ?, ?)", rows)

    def _put_noted_combinations(self) -> None:
        """Store the combinations that were noted, before the first call that needs them.

        Only the thread that holds the transaction gets here. If it fails, the run ends, and the next run notes them.
        """
        noted = list(self._keys.combinations)
        self.put_combinations(noted)
        for _ in noted:
            self._keys.combinations.popleft()

    def put_outcomes(self, outcomes: Iterable[tuple[Request, Outcome]], *, origin: Origin = "call") -> int:
        """Store outcomes in one transaction; return how many were new.

        A problem that may pass is replaced by a later outcome; a reply never is.
        """
        new = 0
        waiting: dict[CallKey, tuple[Request, Outcome]] = {}
        with self.transaction():
            for request, outcome in outcomes:
                if request.key in waiting or len(waiting) == _SIZES[0]:
                    self._insert_calls(waiting, origin)
                if self._is_new(request, outcome, origin):
                    waiting[request.key] = request, outcome
                    new += 1
            self._insert_calls(waiting, origin)
        return new

    def stored(self, request: Request) -> StoredCall | None:
        """The stored state of a request's key; None if there is none. Another request under the key is an error."""
        where, values = where_key(request.key)
        with telling_what_broke(self.path):
            row: tuple[str, ...] | None = self.connection.execute(
                "SELECT request_hash, status, problem_kind, reply, model, messages, decoding, seed "
                f"FROM calls WHERE {where}",
                values,
            ).fetchone()
        if row is None:
            return None
        if row[0] != request.content_hash:
            raise changed_settings(request, row[4:])
        is_open = row[1] == "problem" and row[2] != "final"
        return StoredCall(is_open, row[3], is_submitted=row[1] == "submitted")

    def _is_new(self, request: Request, outcome: Outcome, origin: Origin) -> bool:
        """Whether an outcome is to be stored; a problem in its way is deleted."""
        stored = None if self._keys.is_absent(request.key) else self.stored(request)
        if stored is None:
            return True
        if not stored.has_outcome:
            where, values = where_key(request.key)
            self.connection.execute(f"DELETE FROM calls WHERE {where}", values)
        elif origin != "call":
            _refuse_other_reply(request, outcome, stored.reply)
        return not stored.has_outcome

    def put_submitted(self, requests: Iterable[tuple[Request, float | None]], tag: str) -> None:
        """Note requests with their worst cases as part of a batch, in place of problems and of earlier batches."""
        with self.transaction():
            self._put_noted_combinations()
            for request, worst in requests:
                self._put_submitted(request, worst, tag)

    def _put_submitted(self, request: Request, worst: float | None, tag: str) -> None:
        stored = None if self._keys.is_absent(request.key) else self.stored(request)
        if stored is not None:
            if stored.has_outcome:
                raise ValueError(f"{request.key} has its outcome")
            where, values = where_key(request.key)
            self.connection.execute(f"DELETE FROM calls WHERE {where}", values)
        self._keys.note_written([request.key])
        self._insert(_MESSAGES, [(m.content_hash, m.role, m.content) for m in request.messages])
        done = ("submitted", None, None, None, None, worst, None, None, None, "[]")
        row = (*_key_values(request.key), *_asked(request), *done, "call", now())
        self._insert(_SUBMITTED, [(*row, tag)])

    def _insert_calls(self, calls: dict[CallKey, tuple[Request, Outcome]], origin: Origin) -> None:
        """Insert calls with their messages, and empty the dictionary."""
        messages: dict[str, tuple[str, str, str]] = {}
        rows = []
        known = self._known_messages
        at = now()
        for request, outcome in calls.values():
            for message in request.messages:
                address = message.content_hash
                if address not in known:
                    messages[address] = address, message.role, message.content
            reply = None
            if isinstance(outcome, Reply):
                reply = content_address("assistant", outcome.text)  # a reply's text is clean, as that of a message is
                if reply not in known:
                    messages[reply] = reply, "assistant", outcome.text
            rows.append((*_call_row(request, outcome, reply), origin, at))
        self._keys.note_written(calls)
        self._insert(_MESSAGES, list(messages.values()))
        self._insert(_CALLS, rows)
        if len(self._known_messages) > _MOST_KNOWN_MESSAGES:
            self._known_messages.clear()
        self._known_messages.update(messages)
        calls.clear()

    def _insert(self, table: "_Table", rows: Sequence[tuple[object, ...]]) -> None:
        start = 0
        most = self.connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // table.columns
        for size in _SIZES:
            while size <= min(len(rows) - start, most):
                self.connection.execute(_statement(table, size), list(chain.from_iterable(rows[start : start + size])))
                start += size


class _Table(NamedTuple):
    """An INSERT up to its values."""

    insert: str
    columns: int


_MESSAGES: Final = _Table("INSERT OR IGNORE INTO messages", 3)
_TRIES: Final = _Table("INSERT INTO tries (key, request_hash, outcome, reason, seconds, at, cost_usd)", 7)
_CALLS: Final = _Table(
    "INSERT INTO calls (stage, student, combination, generation, turn, text, grader, round, attempt, model, messages, "
    "decoding, seed, request_hash, status, reply, finish, input_tokens, output_tokens, cost_usd, problem_kind, "
    "problem, detail, not_sent, origin, at)",
    26,
)
_SUBMITTED: Final = _Table(f"{_CALLS.insert[:-1]}, batch)", _CALLS.columns + 1)


@lru_cache(maxsize=16)
def _statement(table: _Table, rows: int) -> str:
    row = f"({', '.join('?' * table.columns)})"
    return f"{table.insert} VALUES {', '.join([row] * rows)}"


def _try_row(one: Attempt, at: str) -> tuple[object, ...]:
    request, outcome = one.request, one.outcome
    what, reason = ("reply", outcome.finish or "") if isinstance(outcome, Reply) else (outcome.kind, outcome.reason)
    return str(request.key), request.content_hash, what, reason, one.seconds, at, one.cost_usd


def _call_row(request: Request, outcome: Outcome, reply: str | None) -> tuple[object, ...]:
    """The columns of a call; a reply is given by its hash."""
    done: tuple[object, ...]
    if isinstance(outcome, Reply):
        counts = (outcome.finish, outcome.input_tokens, outcome.output_tokens, outcome.cost_usd)
        not_sent = json_text(outcome.not_sent) if outcome.not_sent else "[]"
        done = ("done", reply, *counts, None, None, None, not_sent)
    else:
        problem = (outcome.kind, outcome.reason, outcome.detail)
        done = ("problem", None, None, None, None, None, *problem, "[]")
    return (*_key_values(request.key), *_asked(request), *done)


def _asked(request: Request) -> tuple[object, ...]:
    return (
        request.model,
        _addresses_json([message.content_hash for message in request.messages]),
        _decoding(request.decoding),
        request.seed,
        request.content_hash,
    )


def _addresses_json(addresses: Sequence[str]) -> str:
    """The JSON list of hexadecimal hashes, in which nothing needs an escape.

    >>> _addresses_json(["0a", "1b"]), _addresses_json([])
    ('["0a","1b"]', '[]')
    """
    return '["' + '","'.join(addresses) + '"]' if addresses else "[]"


def _identity(path: Path) -> tuple[int, int] | None:
    """The identity of the file at a path; None if there is no file."""
    try:
        file = path.stat()
    except OSError:
        return None
    return file.st_dev, file.st_ino


def _refuse_other_reply(request: Request, outcome: Outcome, stored: str | None) -> None:
    """Refuse an import that has another reply under a stored key: its source has changed."""
    reply = Message("assistant", outcome.text).content_hash if isinstance(outcome, Reply) else None
    if reply != stored:
        raise UserError(
            f"{request.key} is in the journal with another reply.",
            hint="Nothing of this import was stored. Use another run name for changed texts.",
        )


def _key_values(key: CallKey) -> tuple[object, ...]:
    if isinstance(key, GenerateKey):
        votes: tuple[object, ...] = (key.turn, None, None, None, None)
        return ("generate", key.student, key.combination, key.generation, *votes)
    votes = (None, key.text, key.grader, key.round, key.attempt)
    return ("grade", key.student, key.combination, key.generation, *votes)


# A literal stage lets SQLite use the partial index of that stage.
_WHERE_GENERATE: Final = "stage = 'generate' AND student = ? AND combination = ? AND generation = ? AND turn = ?"
_WHERE_GRADE: Final = (
    "stage = 'grade' AND student = ? AND combination = ? AND generation = ? AND text = ? AND grader = ? "
    "AND round = ? AND attempt = ?"
)


def where_key(key: CallKey) -> tuple[str, tuple[object, ...]]:
    """The condition that finds a key, and its values."""
    if isinstance(key, GenerateKey):
        return _WHERE_GENERATE, (key.student, key.combination, key.generation, key.turn)
    return _WHERE_GRADE, (
        key.student,
        key.combination,
        key.generation,
        key.text,
        key.grader,
        key.round,
        key.attempt,
    )


# `json.dumps` with options makes a new encoder for each call, which takes longer than encoding.
json_text: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@lru_cache(maxsize=256)
def _decoding(decoding: Decoding) -> str:
    return json_text(decoding.settings())


def now() -> str:
    """The time in UTC, as a journal stores it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
