"""The journal: every model call is one row, written before anyone uses the reply.

It is the only state of a run. Rows are found by what they are for (their key), so a crash, a reorder or a longer
run misaligns nothing: whoever resumes asks which keys are missing.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

from filelock import FileLock, Timeout

from skillmix.core.calls import (
    Call,
    CallKey,
    CallProblem,
    Decoding,
    GenerateKey,
    GradeKey,
    Message,
    Origin,
    Outcome,
    Reply,
    Request,
    Role,
)
from skillmix.core.combinations import Combination
from skillmix.core.errors import UserError
from skillmix.engine.schema import connect, telling_what_broke

MAIN_FILE: Final = "calls.sqlite"
_KEY_COLUMNS: Final = "student, combination, generation, turn, text, grader, round, attempt"
_KEY_ORDER: Final = {
    "generate": "student, combination, generation, turn",
    "grade": "student, combination, generation, text, grader, round, attempt",
}


class JournalWriter(AbstractContextManager["JournalWriter"]):
    """The one process that may add to a run; the kernel frees its lock when it dies."""

    def __init__(self, folder: Path, *, file: str = MAIN_FILE) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / file
        self._lock = FileLock(folder / f"{file}.lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise UserError(
                f"Another process is writing to {self.path}.", hint="Wait for it, or stop it, and run again."
            ) from None
        try:
            self._connection = connect(self.path, write=True)
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
        """Put everything into the one file and free the lock."""
        self._connection.close()
        self._lock.release()

    def add_combinations(self, combinations: Iterable[Combination]) -> None:
        """Store what combination ids stand for."""
        rows = [(c.id, _json(c.skills), c.topic) for c in combinations]
        with telling_what_broke(self.path), self._transaction():
            self._connection.executemany("INSERT OR IGNORE INTO combinations VALUES (?, ?, ?)", rows)

    def record(self, request: Request, outcome: Outcome, *, origin: Origin = "call") -> bool:
        """Store one outcome; False if the key already has its final one.

        A problem that might pass is replaced by what comes later; a reply never is.
        """
        return self.record_all([(request, outcome)], origin=origin) == 1

    def record_all(self, outcomes: Iterable[tuple[Request, Outcome]], *, origin: Origin = "call") -> int:
        """Store outcomes in one transaction; how many were new."""
        new = 0
        with telling_what_broke(self.path), self._transaction():
            for request, outcome in outcomes:
                stored = self._stored(request)
                if stored is None or stored.is_open:
                    self._put(request, outcome, origin, replace=stored is not None)
                    new += 1
                elif origin != "call":
                    _refuse_other_reply(request, outcome, stored.reply)
        return new

    def record_try(self, request: Request, outcome: Outcome, seconds: float) -> None:
        """Add a try to the append-only record of everything that was sent."""
        what, reason = ("reply", outcome.finish or "") if isinstance(outcome, Reply) else (outcome.kind, outcome.reason)
        with telling_what_broke(self.path):
            self._connection.execute(
                "INSERT INTO tries (key, request_hash, outcome, reason, seconds, at) VALUES (?, ?, ?, ?, ?, ?)",
                (str(request.key), request.content_hash(), what, reason, seconds, _now()),
            )

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._connection)

    def _stored(self, request: Request) -> "_Stored | None":
        where, values = _where(request.key)
        row = self._connection.execute(
            "SELECT request_hash, status, problem_kind, reply, model, messages, decoding, seed "
            f"FROM calls WHERE {where}",
            values,
        ).fetchone()
        if row is None:
            return None
        if row[0] != request.content_hash():
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
        row: dict[str, object] = {
            **_key_columns(request.key),
            "model": request.model,
            "messages": _json([m.content_hash() for m in messages]),
            "decoding": _json(asdict(request.decoding)),
            "seed": request.seed,
            "request_hash": request.content_hash(),
            "origin": origin,
            "not_sent": "[]",
            "at": _now(),
        }
        if isinstance(outcome, Reply):
            reply = Message("assistant", outcome.text)
            messages.append(reply)
            row |= {
                "status": "done",
                "reply": reply.content_hash(),
                "finish": outcome.finish,
                "input_tokens": outcome.input_tokens,
                "output_tokens": outcome.output_tokens,
                "cost_usd": outcome.cost_usd,
                "not_sent": _json(outcome.not_sent),
            }
        else:
            row |= {
                "status": "problem",
                "problem_kind": outcome.kind,
                "problem": outcome.reason,
                "detail": outcome.detail,
            }
        self._connection.executemany(
            "INSERT OR IGNORE INTO messages VALUES (?, ?, ?)",
            [(m.content_hash(), m.role, m.content) for m in messages],
        )
        columns = ", ".join(row)
        places = ", ".join("?" * len(row))
        self._connection.execute(f"INSERT INTO calls ({columns}) VALUES ({places})", list(row.values()))


class JournalReader(AbstractContextManager["JournalReader"]):
    """All journal files of a run together; reading changes nothing and needs no lock."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.sqlite"))
        if not paths:
            raise UserError(f"There is no journal in {folder}.", hint="Check the run's name.")
        self._files: list[tuple[Path, sqlite3.Connection]] = []
        for path in paths:
            self._files.append((path, connect(path, write=False)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, connection in self._files:
            connection.close()

    def combinations(self) -> dict[str, Combination]:
        """What the combination ids stand for."""
        rows = self._rows("SELECT id, skills, topic FROM combinations ORDER BY rowid")
        return {row[0]: Combination(row[0], tuple(json.loads(row[1])), row[2]) for row in rows}

    def calls(self, stage: Literal["generate", "grade"]) -> Iterator[Call]:
        """The calls of a stage in the order of their keys; a key that several files have comes once."""
        # A literal stage and the key's own order let SQLite walk that stage's index instead of sorting replies.
        query = f"""
            SELECT {_KEY_COLUMNS}, model, messages, decoding, seed, request_hash, origin, at, status, reply, finish,
                   problem_kind, problem, detail, input_tokens, output_tokens, cost_usd, not_sent, role, content
            FROM calls LEFT JOIN messages ON messages.hash = calls.reply
            WHERE stage = '{stage}' ORDER BY {_KEY_ORDER[stage]}"""
        seen: set[CallKey] = set()
        for row in self._rows(query):
            call = _call_of(row)
            if call.key not in seen:
                yield call
            if len(self._files) > 1:
                seen.add(call.key)

    def messages(self) -> dict[str, Message]:
        """Every message by its hash."""
        return {
            row[0]: _verified(row[0], row[1], row[2]) for row in self._rows("SELECT hash, role, content FROM messages")
        }

    def tries(self) -> list[tuple[str, str, str]]:
        """Key, outcome and reason of everything that was sent."""
        rows = self._rows("SELECT key, outcome, reason FROM tries ORDER BY id")
        return [(key, outcome, reason) for key, outcome, reason in rows]

    def _rows(self, query: str) -> Iterator[tuple[str, ...]]:
        for path, connection in self._files:
            with telling_what_broke(path):
                yield from connection.execute(query)


class _Transaction(AbstractContextManager[None]):
    """All or nothing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.execute("ROLLBACK" if kind else "COMMIT")


class _Stored(NamedTuple):
    """What the journal has under a key."""

    is_open: bool
    reply: str | None


def _refuse_other_reply(request: Request, outcome: Outcome, stored: str | None) -> None:
    """An import brings each key once; another reply under it means another source."""
    reply = Message("assistant", outcome.text).content_hash() if isinstance(outcome, Reply) else None
    if reply != stored:
        raise UserError(
            f"{request.key} is in the journal with another reply.",
            hint="Nothing of this import after it was stored. Use another run name for changed texts.",
        )


def _key_columns(key: CallKey) -> dict[str, object]:
    return {"stage": "generate" if isinstance(key, GenerateKey) else "grade", **asdict(key)}


def _where(key: CallKey) -> tuple[str, list[object]]:
    columns = _key_columns(key)
    # A literal stage lets SQLite use the partial index of that stage.
    stage = columns.pop("stage")
    return f"stage = '{stage}' AND " + " AND ".join(f"{c} = ?" for c in columns), list(columns.values())


def _changed_setting(request: Request, stored: tuple[str, str, str, int | None]) -> UserError:
    model, messages, decoding, seed = stored
    before = {
        "model": model,
        "messages": json.loads(messages),
        "decoding": json.loads(decoding),
        "seed": seed,
    }
    now = request.settings()
    changed = [name for name in now if now[name] != before[name]]
    return UserError(
        f"{request.key} is in the journal with another {' and '.join(changed) or 'request'}.",
        hint="Set it back, or use another name for the student, the grader or the run.",
    )


def _call_of(row: tuple[str, ...]) -> Call:
    (student, combination, generation, turn, text, grader, round_number, attempt, *rest) = row
    key: CallKey
    if turn is not None:
        key = GenerateKey(student, combination, int(generation), int(turn))
    else:
        key = GradeKey(student, combination, int(generation), text, grader, int(round_number), int(attempt))
    model, messages, decoding, seed, request_hash, origin, at, *outcome = rest
    return Call(
        key=key,
        outcome=_outcome_of(outcome),
        model=model,
        messages=tuple(json.loads(messages)),
        decoding=_decoding_of(decoding),
        seed=None if seed is None else int(seed),
        request_hash=request_hash,
        origin=origin,  # type: ignore[arg-type]  # the table's CHECK holds it to the literal
        at=at,
    )


@lru_cache(maxsize=256)
def _decoding_of(stored: str) -> Decoding:
    return Decoding(**json.loads(stored))


def _outcome_of(columns: list[str]) -> Outcome | None:
    status, reply, finish, kind, problem, detail, *numbers, not_sent, role, content = columns
    if status == "submitted":
        return None
    if status == "problem":
        return CallProblem(kind, problem, detail or "")  # type: ignore[arg-type]  # as written
    tokens_in, tokens_out, cost = numbers
    return Reply(
        text=_verified(reply, role, content).content,
        finish=finish,
        input_tokens=None if tokens_in is None else int(tokens_in),
        output_tokens=None if tokens_out is None else int(tokens_out),
        cost_usd=None if cost is None else float(cost),
        not_sent=tuple(json.loads(not_sent)) if not_sent != "[]" else (),
    )


def _verified(address: str, role: str | None, content: str | None) -> Message:
    """A message whose content still has the hash it is stored under."""
    message = Message(_role(role), content or "")
    if content is None or message.content_hash() != address:
        raise UserError(
            f"A message in the journal is damaged: its content no longer has the hash {address}.",
            hint="Nothing was changed. Restore the journal from a copy.",
        )
    return message


def _role(role: str | None) -> Role:
    return role if role in ("system", "user") else "assistant"  # type: ignore[return-value]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
