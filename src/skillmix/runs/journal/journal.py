"""The journal: every model call is one row, written before its reply is used.

The journal is the only state of a run. Rows are found by their keys, so that a crash, another order or a longer run
misaligns nothing: a resumed run makes the calls whose keys are missing.
"""

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from heapq import merge
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from skillmix.calls import Call, GenerateKey, Message, Origin, Outcome, Request
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.runs.journal.locking import held_lock
from skillmix.runs.journal.row_writer import Attempt, KnownKeys, RowWriter, json_text, now, where_key
from skillmix.runs.journal.rows import (
    CALL_COLUMNS,
    call_of_row,
    combination_of_row,
    key_order,
    union,
    verified_message,
)
from skillmix.runs.journal.schema import BUSY_S, OlderJournal, connect, open_for_writing, opening, telling_what_broke
from skillmix.runs.journal.submissions import Submissions

MAIN_FILE: Final = "calls.sqlite"
_PART: Final = re.compile(r"calls-[1-9][0-9]{0,3}\.sqlite")
_Key = TypeVar("_Key")
Stage = Literal["generate", "grade"]
_PATIENCE_MS: Final = 1000
"""How long a writer waits for readers before it leaves rows in the log."""
_KEY_ORDER: Final = {
    "generate": "student, combination, generation, turn",
    "grade": "student, combination, generation, text, grader, round, attempt",
}


class JournalWriter(AbstractContextManager["JournalWriter"]):
    """Adds calls to a run. Only one process can; the kernel frees its lock when the process dies."""

    few: Final = 16
    """Tries that are written at once; handing so few over to the thread takes longer than writing them."""

    def __init__(self, folder: Path, *, file: str = MAIN_FILE) -> None:
        self.path = folder / file
        with opening(self.path):
            self._lock = held_lock(self.path)
        self._keys = KnownKeys()
        try:
            self._connection = connect(self.path, write=True)
            self._rows = RowWriter(self.path, self._connection, self._keys)
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

    def into_one_file(self) -> bool:
        """Move what the file's log holds into the file, so that a copy of the file alone is whole.

        False inside a transaction, if another connection reads all the while, or if the disk is full: the rows stay in
        the log, which is durable too.
        """
        if self._connection.in_transaction:
            return False
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
            is_busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error:
            return False
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_S)}")
        return not is_busy

    def add_combinations(self, combinations: Iterable[Combination]) -> None:
        """Store combinations under their ids."""
        with self.transaction():
            self._rows.put_combinations([_combination_row(combination) for combination in combinations])

    def note_combinations(self, combinations: Iterable[Combination]) -> None:
        """Store combinations with the next tries, in one transaction; this does not wait for a thread that writes."""
        self._keys.combinations.extend(map(_combination_row, combinations))

    def record(self, request: Request, outcome: Outcome, *, origin: Origin = "call") -> bool:
        """Store one outcome; False if the key already has its final one.

        A problem that may pass is replaced by a later outcome; a reply never is.
        """
        return self.record_all([(request, outcome)], origin=origin) == 1

    def transaction(self) -> AbstractContextManager[None]:
        """Record everything inside the block, or nothing; inner transactions become part of the outer one."""
        return self._rows.transaction()

    def record_all(self, outcomes: Iterable[tuple[Request, Outcome]], *, origin: Origin = "call") -> int:
        """Store outcomes in one transaction; return how many were new."""
        return self._rows.put_outcomes(outcomes, origin=origin)

    def record_attempts(self, tries: Sequence[Attempt]) -> None:
        """Store tries, and the outcomes of calls that are over, in one transaction."""
        self._rows.put_attempts(tries)

    @property
    def submissions(self) -> Submissions:
        """The calls that are part of batches, and these batches."""
        return Submissions(self._rows)

    def in_thread(self) -> "JournalThread":
        """A thread that writes tries to the same file while this writer reads; the caller closes it."""
        return JournalThread(self._rows)

    def find(self, request: Request) -> Outcome | None:
        """The stored final outcome of a request; None if the call must be made (again), or is part of a batch.

        `submissions` knows the calls that are part of a batch; they must not be made again.
        """
        if self._keys.is_absent(request.key):
            return None
        stored = self._rows.stored(request)
        if stored is None:
            self._keys.absent.add(request.key)
        if stored is None or not stored.has_outcome:
            return None
        where, values = where_key(request.key)
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
        """How many calls of each conversation have a final outcome; a vote that was asked for again counts once.

        Conversations without one are absent. Afterwards `find` need not look for keys of conversations without a row.
        """
        self._keys.begin(student)
        with telling_what_broke(self.path):
            rows = self._connection.execute(
                "SELECT combination, generation, sum(coalesce(attempt, 0) = 0 "
                "AND (status = 'done' OR coalesce(problem_kind, '') = 'final')) "
                "FROM calls WHERE student = ? GROUP BY combination, generation",
                (student,),
            ).fetchall()
        self._keys.learn(student, [(combination, generation) for combination, generation, _ in rows])
        return {(combination, generation): count for combination, generation, count in rows if count}

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
            # The worst case of a call in a batch is not spent yet; `submissions` has it.
            cost = self._connection.execute("SELECT total(cost_usd) FROM calls WHERE status != 'submitted'").fetchone()[
                0
            ]
        return int(tries), float(cost) + float(lost)

    def record_sent(self, request: Request, cost_usd: float) -> None:
        """Note a call that is about to be sent, with its worst case, in case this process dies."""
        self._keys.sent.add(request.key)
        with telling_what_broke(self.path):
            self._connection.execute(
                "INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?)",
                (str(request.key), request.content_hash, cost_usd, now()),
            )

    def _count_lost(self) -> None:
        """Count the calls that were in flight when an earlier process died: they may have been billed."""
        with self.transaction():
            self._connection.execute(
                "INSERT INTO tries (key, request_hash, outcome, reason, seconds, at, cost_usd) "
                "SELECT key, request_hash, 'passing', 'lost with its process', 0, at, cost_usd FROM sent"
            )
            self._connection.execute("DELETE FROM sent")


def _combination_row(combination: Combination) -> tuple[str, str, str]:
    return combination.id, json_text(combination.skills), combination.topic


class JournalThread:
    """Writes tries in a thread with a connection of its own, one transaction for each batch, in order."""

    def __init__(self, main: RowWriter) -> None:
        self._main = main
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._rows: RowWriter | None = None

    def record_attempts(self, tries: Sequence[Attempt]) -> "Future[None]":
        """Store tries; they are durable when the future has its result."""
        return self._thread.submit(self._write, tries)

    def close(self) -> None:
        """Wait until everything is written, and close the file."""
        self._thread.submit(self._close)
        self._thread.shutdown()

    def _write(self, tries: Sequence[Attempt]) -> None:
        if self._rows is None:
            self._main.refuse_other_file()
            self._rows = self._main.with_connection(open_for_writing(self._main.path))
        self._rows.put_attempts(tries)

    def _close(self) -> None:
        if self._rows is not None:
            self._rows.connection.close()


class JournalReader(AbstractContextManager["JournalReader"]):
    """Reads all journal files of a run together, or one of them; only migrating an older file needs the lock."""

    def __init__(self, folder: Path, *, file: str = "*.sqlite") -> None:
        paths = sorted(folder.glob(file))
        if not paths:
            raise UserError(f"There is no journal in {folder}.", hint="Check the run's name.")
        self._files: list[tuple[Path, sqlite3.Connection]] = []
        self.is_limited = False
        """Whether `calls` gives only the calls of some combinations."""
        try:
            for path in paths:
                self._files.append((path, _connected_for_reading(path)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for _, connection in self._files:
            connection.close()

    def combinations(self) -> dict[str, Combination]:
        """All combinations by id."""
        rows = self.rows("SELECT id, skills, topic FROM combinations ORDER BY rowid")
        return {row[0]: combination_of_row(row) for row in rows}

    def calls(self, stage: Stage, *, student: str | None = None) -> Iterator[Call]:
        """The calls of a stage in key order.

        With `student`, only calls about this student are read. A key that several files have comes once.
        """
        # A literal stage and the key's own order let SQLite walk that stage's index instead of sorting replies.
        query = (
            f"SELECT {CALL_COLUMNS} FROM calls LEFT JOIN messages ON messages.hash = calls.reply "
            f"WHERE stage = '{stage}' {'AND student = ?' if student is not None else ''} "
            f"{'AND combination IN (SELECT id FROM temp.chosen)' if self.is_limited else ''} "
            f"ORDER BY {_KEY_ORDER[stage]}"
        )
        values = () if student is None else (student,)
        files = self._files
        if len(files) > 1:  # most have calls of one stage only
            any_call = f"SELECT 1 FROM calls WHERE stage = '{stage}' LIMIT 1"
            files = [file for file in files if file[1].execute(any_call).fetchone()]
        rows = [self._calls_of(*file, query, values) for file in files]
        if len(rows) <= 1:
            yield from rows[0] if rows else ()
            return
        for _, same_key in groupby(merge(*rows, key=key_order), key=key_order):
            yield union(list(same_key))

    def limit_calls(self, combinations: Iterable[str]) -> None:
        """Let `calls` give only the calls of these combinations from now on."""
        rows = [(combination,) for combination in combinations]
        for path, connection in self._files:
            with telling_what_broke(path):
                connection.execute("CREATE TEMP TABLE IF NOT EXISTS chosen (id TEXT PRIMARY KEY) WITHOUT ROWID")
                connection.execute("DELETE FROM temp.chosen")
                connection.executemany("INSERT OR IGNORE INTO temp.chosen VALUES (?)", rows)
        self.is_limited = True

    def conversations(self) -> int:
        """The number of conversations that have begun; the indexes alone are read."""
        return sum(int(row[0]) for row in self.rows("SELECT count(*) FROM calls WHERE stage = 'generate' AND turn = 1"))

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

    def _calls_of(
        self, path: Path, connection: sqlite3.Connection, query: str, values: tuple[str, ...]
    ) -> Iterator[Call]:
        with telling_what_broke(path):
            for row in connection.execute(query, values):
                yield call_of_row(row)

    def rows(self, query: str) -> Iterator[tuple[str, ...]]:
        """The rows of a query, file by file."""
        for path, connection in self._files:
            with telling_what_broke(path):
                # Not `yield from`: a reader that stops early would close a cursor that is closed already.
                for row in connection.execute(query):  # noqa: UP028
                    yield row


def make_file(folder: Path, file: str) -> None:
    """Make an empty journal file at once, unless it exists: a reader must not meet it before it has its tables."""
    if (folder / file).exists():
        return
    new = f"{file}.new"
    JournalWriter(folder, file=new).close()
    (folder / new).replace(folder / file)
    (folder / f"{new}.lock").unlink(missing_ok=True)


def _connected_for_reading(path: Path) -> sqlite3.Connection:
    try:
        return connect(path, write=False)
    except OlderJournal:
        JournalWriter(path.parent, file=path.name).close()  # opening it for writing, under the lock, migrates it
        return connect(path, write=False)


def run_journal(folder: Path) -> JournalWriter:
    """Open a run's journal for writing."""
    parts = sorted(path.name for path in folder.glob("calls-*.sqlite") if _PART.fullmatch(path.name))
    return DividedJournal(folder, parts) if parts else JournalWriter(folder)


class DividedJournal(JournalWriter):
    """Adds calls to the first file of a run, and finds those of the other files too."""

    def __init__(self, folder: Path, parts: Iterable[str]) -> None:
        super().__init__(folder)
        self._parts: list[JournalWriter] = []
        try:
            for part in parts:
                self._parts.append(JournalWriter(folder, file=part))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all files and free their locks, that of the run last."""
        for part in self._parts:
            part.close()
        super().close()

    def into_one_file(self) -> bool:
        """Move what the log of each file holds into the file; False if that is not possible for all."""
        return all([super().into_one_file(), *(part.into_one_file() for part in self._parts)])

    def record_all(self, outcomes: Iterable[tuple[Request, Outcome]], *, origin: Origin = "call") -> int:
        """Store outcomes that no other file has in one transaction; return how many were new."""
        new = [pair for pair in outcomes if all(part.find(pair[0]) is None for part in self._parts)]
        return super().record_all(new, origin=origin)

    def find(self, request: Request) -> Outcome | None:
        """The stored final outcome of a request; None if the call must be made (again)."""
        found = (super().find(request), *(part.find(request) for part in self._parts))
        return next((outcome for outcome in found if outcome is not None), None)

    def conversation(self, student: str, combination: str, generation: int) -> list[Call]:
        """Every call of one conversation: turns, then votes."""
        calls = super().conversation(student, combination, generation)
        for part in self._parts:
            calls += part.conversation(student, combination, generation)
        turns = [call for call in calls if isinstance(call.key, GenerateKey)]
        votes = [call for call in calls if not isinstance(call.key, GenerateKey)]
        return [
            union(list(same))
            for own in (turns, votes)
            for _, same in groupby(sorted(own, key=key_order), key=key_order)
        ]

    def calls_by_conversation(self, student: str) -> dict[tuple[str, int], int]:
        """How many calls of each conversation have a final outcome; conversations without one are absent."""
        parts = (part.calls_by_conversation(student) for part in self._parts)
        return _added((super().calls_by_conversation(student), *parts))

    def rows_by_student(self) -> dict[str, int]:
        """How many calls of each student the files have, gradings included."""
        return _added((super().rows_by_student(), *(part.rows_by_student() for part in self._parts)))

    def spent(self) -> tuple[int, float]:
        """How many calls were ever sent, and their cost; a try without a reply counts with its worst case."""
        amounts = [super().spent(), *(part.spent() for part in self._parts)]
        return sum(calls for calls, _ in amounts), sum(cost for _, cost in amounts)


def _added(counts: Iterable[Mapping[_Key, int]]) -> dict[_Key, int]:
    total: dict[_Key, int] = {}
    for own in counts:
        for key, count in own.items():
            total[key] = total.get(key, 0) + count
    return total
