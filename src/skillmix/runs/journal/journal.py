"""The journal: every model call is one row, written before its reply is used.

The journal is the only state of a run. Rows are found by their keys, so that a crash, another order or a longer run
misaligns nothing: a resumed run makes the calls whose keys are missing.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from heapq import merge
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

from skillmix.calls import Call, CallKey, Decoding, GenerateKey, Message, Origin, Outcome, Reply, Request
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.runs.journal.locking import held_lock
from skillmix.runs.journal.rows import (
    CALL_COLUMNS,
    call_of_row,
    combination_of_row,
    json_of_row,
    key_order,
    union,
    verified_message,
)
from skillmix.runs.journal.schema import OlderJournal, connect, opening, telling_what_broke

MAIN_FILE: Final = "calls.sqlite"
_KEY_ORDER: Final = {
    "generate": "student, combination, generation, turn",
    "grade": "student, combination, generation, text, grader, round, attempt",
}


class JournalWriter(AbstractContextManager["JournalWriter"]):
    """Adds calls to a run. Only one process can; the kernel frees its lock when the process dies."""

    def __init__(self, folder: Path, *, file: str = MAIN_FILE) -> None:
        self.path = folder / file
        with opening(self.path):
            self._lock = held_lock(self.path)
        self._absent: set[CallKey] = set()
        """Keys that are known to be missing; no other process can write them while the lock is held."""
        self._sent: set[CallKey] = set()
        try:
            self._connection = connect(self.path, write=True)
            self._identity = _identity(self.path)
            self._count_lost()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and free the lock."""
        self._connection.close()
        self._lock.release()

    def add_combinations(self, combinations: Iterable[Combination]) -> None:
        """Store combinations under their ids."""
        rows = [(c.id, _json(c.skills), c.topic) for c in combinations]
        with self.transaction():
            self._connection.executemany("INSERT OR IGNORE INTO combinations VALUES (?, ?, ?)", rows)

    def record(self, request: Request, outcome: Outcome, *, origin: Origin = "call") -> bool:
        """Store one outcome; False if the key already has its final one.

        A problem that may pass is replaced by a later outcome; a reply never is.
        """
        return self.record_all([(request, outcome)], origin=origin) == 1

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Record everything inside the block, or nothing; inner transactions become part of the outer one."""
        if self._connection.in_transaction:
            yield
            return
        if _identity(self.path) != self._identity:
            raise UserError(
                f"The journal {self.path} was deleted or replaced while this process was writing to it.",
                hint="Nothing more was asked. Put the file back from a copy, or run again to begin anew.",
            )
        with telling_what_broke(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def record_all(self, outcomes: Iterable[tuple[Request, Outcome]], *, origin: Origin = "call") -> int:
        """Store outcomes in one transaction; return how many were new."""
        new = 0
        with self.transaction():
            for request, outcome in outcomes:
                stored = None if request.key in self._absent else self._stored(request)
                if stored is None or stored.is_open:
                    self._put(request, outcome, origin, replace=stored is not None)
                    self._absent.discard(request.key)
                    new += 1
                elif origin != "call":
                    _refuse_other_reply(request, outcome, stored.reply)
        return new

    def find(self, request: Request) -> Outcome | None:
        """The stored final outcome of a request; None if the call must be made (again)."""
        stored = self._stored(request)
        if stored is None:
            self._absent.add(request.key)
        if stored is None or stored.is_open:
            return None
        where, values = _where(request.key)
        row = self._one_row(
            f"SELECT {CALL_COLUMNS} FROM calls LEFT JOIN messages ON messages.hash = calls.reply WHERE {where}", values
        )
        return call_of_row(row or ()).outcome

    def _one_row(self, query: str, values: tuple[object, ...]) -> tuple[str, ...] | None:
        with telling_what_broke(self.path):
            row: tuple[str, ...] | None = self._connection.execute(query, values).fetchone()
        return row

    def conversation(self, student: str, combination: str, generation: int) -> list[Call]:
        """Every call of one conversation: turns, then votes."""
        calls = []
        for stage in _KEY_ORDER:
            with telling_what_broke(self.path):
                rows = self._connection.execute(
                    f"SELECT {CALL_COLUMNS} FROM calls LEFT JOIN messages ON messages.hash = calls.reply "
                    f"WHERE stage = '{stage}' AND student = ? AND combination = ? AND generation = ? "
                    f"ORDER BY {_KEY_ORDER[stage]}",
                    (student, combination, generation),
                ).fetchall()
            calls += [call_of_row(row) for row in rows]
        return calls

    def calls_by_conversation(self, student: str) -> dict[tuple[str, int], int]:
        """How many calls of each conversation have a final outcome; a vote that was asked for again counts once."""
        with telling_what_broke(self.path):
            rows = self._connection.execute(
                "SELECT combination, generation, count(*) FROM calls WHERE student = ? AND coalesce(attempt, 0) = 0 "
                "AND (status = 'done' OR problem_kind = 'final') GROUP BY combination, generation",
                (student,),
            ).fetchall()
        return {(combination, generation): count for combination, generation, count in rows}

    def rows_by_student(self) -> dict[str, int]:
        """How many calls of each student the journal has, gradings included; the indexes alone are read."""
        counts: dict[str, int] = {}
        for stage in _KEY_ORDER:
            query = f"SELECT student, count(*) FROM calls WHERE stage = '{stage}' GROUP BY student"
            with telling_what_broke(self.path):
                for student, count in self._connection.execute(query):
                    counts[student] = counts.get(student, 0) + count
        return counts

    def spent(self) -> tuple[int, float]:
        """How many calls were ever sent, and their cost; a try without a reply counts with its worst case."""
        with telling_what_broke(self.path):
            tries, lost = self._connection.execute("SELECT count(*), total(cost_usd) FROM tries").fetchone()
            cost = self._connection.execute("SELECT total(cost_usd) FROM calls").fetchone()[0]
        return int(tries), float(cost) + float(lost)

    def record_sent(self, request: Request, cost_usd: float) -> None:
        """Note a call that is about to be sent, with its worst case, in case this process dies."""
        self._sent.add(request.key)
        with telling_what_broke(self.path):
            self._connection.execute(
                "INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?)",
                (str(request.key), request.content_hash, cost_usd, _now()),
            )

    def record_try(self, request: Request, outcome: Outcome, seconds: float, *, cost_usd: float | None = None) -> None:
        """Add a try to the append-only record of calls sent; only a try without a reply has a cost here."""
        what, reason = ("reply", outcome.finish or "") if isinstance(outcome, Reply) else (outcome.kind, outcome.reason)
        with telling_what_broke(self.path):
            self._connection.execute(
                "INSERT INTO tries (key, request_hash, outcome, reason, seconds, at, cost_usd) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (str(request.key), request.content_hash, what, reason, seconds, _now(), cost_usd),
            )
            if request.key in self._sent:
                self._sent.discard(request.key)
                self._connection.execute("DELETE FROM sent WHERE key = ?", (str(request.key),))

    def _count_lost(self) -> None:
        """Count the calls that were in flight when an earlier process died: they may have been billed."""
        with self.transaction():
            self._connection.execute(
                "INSERT INTO tries (key, request_hash, outcome, reason, seconds, at, cost_usd) "
                "SELECT key, request_hash, 'passing', 'lost with its process', 0, at, cost_usd FROM sent"
            )
            self._connection.execute("DELETE FROM sent")

    def _stored(self, request: Request) -> "_Stored | None":
        where, values = _where(request.key)
        row = self._one_row(
            "SELECT request_hash, status, problem_kind, reply, model, messages, decoding, seed "
            f"FROM calls WHERE {where}",
            values,
        )
        if row is None:
            return None
        if row[0] != request.content_hash:
            raise _changed_setting(request, row[4:])
        is_open = row[1] == "submitted" or (row[1] == "problem" and row[2] != "final")
        return _Stored(is_open, row[3])

    def _put(self, request: Request, outcome: Outcome, origin: Origin, *, replace: bool) -> None:
        if replace:
            where, values = _where(request.key)
            self._connection.execute(f"DELETE FROM calls WHERE {where}", values)
        self._insert(request, outcome, origin)

    def _insert(self, request: Request, outcome: Outcome, origin: Origin) -> None:
        messages = list(request.messages)
        done: tuple[object, ...]
        if isinstance(outcome, Reply):
            reply = Message("assistant", outcome.text)
            messages.append(reply)
            counts = (outcome.finish, outcome.input_tokens, outcome.output_tokens, outcome.cost_usd)
            done = ("done", reply.content_hash, *counts, None, None, None, _json(outcome.not_sent))
        else:
            problem = (outcome.kind, outcome.reason, outcome.detail)
            done = ("problem", None, None, None, None, None, *problem, "[]")
        self._connection.executemany(
            "INSERT OR IGNORE INTO messages VALUES (?, ?, ?)",
            [(m.content_hash, m.role, m.content) for m in messages],
        )
        asked = (
            request.model,
            _json([m.content_hash for m in request.messages]),
            _decoding(request.decoding),
            request.seed,
            request.content_hash,
        )
        self._connection.execute(_INSERT_CALL, (*_key_values(request.key), *asked, *done, origin, _now()))


class JournalReader(AbstractContextManager["JournalReader"]):
    """Reads all journal files of a run together; only migrating an older file needs the lock."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.sqlite"))
        if not paths:
            raise UserError(f"There is no journal in {folder}.", hint="Check the run's name.")
        self._files: list[tuple[Path, sqlite3.Connection]] = []
        for path in paths:
            self._files.append((path, _connected_for_reading(path)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, connection in self._files:
            connection.close()

    def combinations(self) -> dict[str, Combination]:
        """All combinations by id."""
        rows = self.rows("SELECT id, skills, topic FROM combinations ORDER BY rowid")
        return {row[0]: combination_of_row(row) for row in rows}

    def calls(self, stage: Literal["generate", "grade"]) -> Iterator[Call]:
        """The calls of a stage in key order; a key that several files have comes once."""
        # A literal stage and the key's own order let SQLite walk that stage's index instead of sorting replies.
        query = (
            f"SELECT {CALL_COLUMNS} FROM calls LEFT JOIN messages ON messages.hash = calls.reply "
            f"WHERE stage = '{stage}' ORDER BY {_KEY_ORDER[stage]}"
        )
        files = [self._calls_of(path, connection, query) for path, connection in self._files]
        if len(files) == 1:
            yield from files[0]
            return
        for _, same_key in groupby(merge(*files, key=key_order), key=key_order):
            yield union(list(same_key))

    def students(self) -> set[str]:
        """The students that wrote something."""
        return {row[0] for row in self.rows("SELECT DISTINCT student FROM calls WHERE stage = 'generate'")}

    def graders(self) -> list[str]:
        """The graders that graded something, sorted."""
        rows = self.rows("SELECT DISTINCT grader FROM calls WHERE stage = 'grade' ORDER BY grader")
        return sorted({row[0] for row in rows})

    def messages(self) -> dict[str, Message]:
        """Every message by its hash."""
        return {
            row[0]: verified_message(row[0], row[1], row[2])
            for row in self.rows("SELECT hash, role, content FROM messages")
        }

    def message(self, address: str) -> Message:
        """One message by its hash."""
        for path, connection in self._files:
            with telling_what_broke(path):
                row = connection.execute("SELECT role, content FROM messages WHERE hash = ?", (address,)).fetchone()
            if row is not None:
                return verified_message(address, *row)
        return verified_message(address, None, None)

    def size(self) -> int:
        """The approximate number of calls, without counting them."""
        return sum(int(row[0] or 0) for row in self.rows("SELECT max(id) FROM calls"))

    def tries(self) -> list[tuple[str, str, str]]:
        """Key, outcome and reason of every call sent."""
        rows = self.rows("SELECT key, outcome, reason FROM tries ORDER BY id")
        return [(key, outcome, reason) for key, outcome, reason in rows]

    def cost_without_reply(self) -> float:
        """The possible cost of tries without a reply."""
        return sum(float(row[0]) for row in self.rows("SELECT total(cost_usd) FROM tries"))

    @property
    def files(self) -> list[tuple[Path, sqlite3.Connection]]:
        """The open files, for readers that need only a few columns of many rows."""
        return self._files

    def _calls_of(self, path: Path, connection: sqlite3.Connection, query: str) -> Iterator[Call]:
        with telling_what_broke(path):
            for row in connection.execute(query):
                yield call_of_row(row)

    def rows(self, query: str) -> Iterator[tuple[str, ...]]:
        """The rows of a query, file by file."""
        for path, connection in self._files:
            with telling_what_broke(path):
                # Not `yield from`: a reader that stops early would close a cursor that is closed already.
                for row in connection.execute(query):  # noqa: UP028
                    yield row


def _connected_for_reading(path: Path) -> sqlite3.Connection:
    try:
        return connect(path, write=False)
    except OlderJournal:
        JournalWriter(path.parent, file=path.name).close()  # opening it for writing, under the lock, migrates it
        return connect(path, write=False)


def _identity(path: Path) -> tuple[int, int] | None:
    """The identity of the file at a path; None if there is no file."""
    try:
        file = path.stat()
    except OSError:
        return None
    return file.st_dev, file.st_ino


class _Stored(NamedTuple):
    """The stored state of a key."""

    is_open: bool
    reply: str | None


def _refuse_other_reply(request: Request, outcome: Outcome, stored: str | None) -> None:
    """Refuse an import that has another reply under a stored key: its source has changed."""
    reply = Message("assistant", outcome.text).content_hash if isinstance(outcome, Reply) else None
    if reply != stored:
        raise UserError(
            f"{request.key} is in the journal with another reply.",
            hint="Nothing of this import was stored. Use another run name for changed texts.",
        )


_INSERT_COLUMNS: Final = (
    "stage, student, combination, generation, turn, text, grader, round, attempt, model, messages, decoding, seed, "
    "request_hash, status, reply, finish, input_tokens, output_tokens, cost_usd, problem_kind, problem, detail, "
    "not_sent, origin, at"
)
_INSERT_CALL: Final = f"INSERT INTO calls ({_INSERT_COLUMNS}) VALUES ({', '.join('?' * 26)})"


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


def _where(key: CallKey) -> tuple[str, tuple[object, ...]]:
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


def _changed_setting(request: Request, stored: tuple[str, ...]) -> UserError:
    model, messages, decoding, seed = stored
    before = {
        "model": model,
        "messages": json_of_row(messages, f"the messages of {request.key}"),
        "decoding": json_of_row(decoding, f"the decoding of {request.key}"),
        "seed": seed,
    }
    now = request.settings()
    changed = [_setting_name(name, request, before[name]) for name in now if now[name] != before[name]]
    return UserError(
        f"{request.key} is in the journal with another {' and '.join(changed) or 'request'}.",
        hint="Set it back, or use another name for the student, the grader or the run.",
    )


def _setting_name(name: str, request: Request, before: object) -> str:
    """The name of a changed part of a request; the system text and the extra fields have names of their own."""
    if name == "decoding" and isinstance(before, dict):
        now = request.decoding.settings()
        if {**now, "extra": None} == {**before, "extra": None}:
            return "extra"
    if name == "messages" and isinstance(before, list):
        hashes = [message.content_hash for message in request.messages]
        prompts = hashes[1:] if request.messages[0].role == "system" else hashes
        if prompts in (before, before[1:]):
            return "system text"
    return name


# `json.dumps` with options makes a new encoder for each call, which takes longer than encoding.
_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@lru_cache(maxsize=256)
def _decoding(decoding: Decoding) -> str:
    return _json(decoding.settings())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
