"""A damaged journal is refused in one line or read as far as it is whole, and never made worse."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Final

import pytest

from skillmix.calls import CallProblem, Decoding, GenerateKey, GradeKey, Message, Reply, Request
from skillmix.catalog.combinations import combination_of
from skillmix.runs.database import VERSION
from skillmix.runs.journal import Attempt, JournalReader, JournalWriter
from tests.fuzz.common import ODD_VALUES, cases, command, damaged_bytes, nothing_changes_in, refused
from tests.runs.databases import attempts, forget_steps, messages

EXPERIMENT: Final = """
name: tiny
students: {s: {model: "scripted:student"}}
graders: {g: {model: "scripted:grader", rounds: 1}}
steps:
  - {name: e, stage: evaluate, students: [s], graders: [g], settings: [train], k: [1], combinations: 2, generations: 1}
"""
COMBINATION: Final = combination_of(["metaphor"], "Sewing")
ASKED: Final = [
    Request(GenerateKey("s", COMBINATION.id, number, 1), "m", (Message("user", "Write"),), Decoding(), number)
    for number in range(3)
]
GRADED: Final = [
    Request(GradeKey("s", COMBINATION.id, 0, "t", "g", vote, 0), "m", (Message("user", "Grade"),), Decoding(), vote)
    for vote in range(3)
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    with JournalWriter(folder / "run.sqlite") as journal:
        journal.add_combinations([COMBINATION])
        for number, request in enumerate([*ASKED, *GRADED]):
            journal.record_attempts([Attempt(request, Reply("x"), 0.1, None)])
            journal.record(request, CallProblem("passing", "busy") if number == 1 else Reply(f"Answer: {number}" * 50))
    return folder / "run.sqlite"


def read_everything(folder: Path) -> None:
    with JournalReader(folder / "run.sqlite") as journal:
        journal.combinations()
        calls = [*journal.calls("generate"), *journal.calls("grade")]
        messages(journal)
        attempts(journal)
        journal.messages_with(address for call in calls for address in call.messages)
        journal.combinations_of(call.key.combination for call in calls)


def write_something(folder: Path) -> None:
    with JournalWriter(folder / "run.sqlite") as journal:
        journal.spent()
        journal.calls_by_conversation("s")
        journal.conversation("s", COMBINATION.id, 0)
        for request in [*ASKED, *GRADED]:
            if journal.find(request) is None:
                journal.record(request, Reply("again"))


def changed_by_sql(file: Path, draw: Random) -> None:
    """Another schema, or other values in it."""
    with closing(sqlite3.connect(file)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = draw.choice(tables)
        column = draw.choice([row[1] for row in connection.execute(f"PRAGMA table_info({table})")])
        connection.execute("PRAGMA ignore_check_constraints = ON")
        try:
            _change(connection, table, column, draw)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError):  # the schema itself does not let this happen
            connection.rollback()
        connection.commit()


def _change(connection: sqlite3.Connection, table: str, column: str, draw: Random) -> None:
    kind = draw.randrange(10)
    if kind < 5:
        value = draw.choice([v for v in ODD_VALUES if not isinstance(v, list | dict)] + [b"\xff\x00", b""])
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass") if draw.random() < 0.5 else value.replace("\ud800", "x")
        one = draw.choice(("", f"WHERE rowid = (SELECT min(rowid) FROM {table})"))
        connection.execute(f"UPDATE {table} SET {column} = {draw.choice(('?', 'CAST(? AS TEXT)'))} {one}", (value,))
        return
    statements = (
        f"DROP TABLE {table}",
        f"ALTER TABLE {table} RENAME TO other",
        f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
        f"ALTER TABLE {table} DROP COLUMN {column}",
        f"DELETE FROM {table}",
        f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM message; END",
        f"CREATE VIEW v AS SELECT * FROM {table}",
        f"CREATE UNIQUE INDEX i ON {table} ({column})",
        f"DROP INDEX {draw.choice(('generate_key', 'grade_key'))}",
        f"ALTER TABLE {table} ADD COLUMN other TEXT NOT NULL DEFAULT 'x'",
        f"PRAGMA user_version = {draw.choice((-1, 0, VERSION + 1, 2**31 - 1))}",
        f"PRAGMA application_id = {draw.choice((0, 1))}",
        f"CREATE TABLE copy AS SELECT * FROM {table}; DROP TABLE {table}; ALTER TABLE copy RENAME TO {table}",
    )
    connection.executescript(draw.choice(statements))


def changed_in_place(file: Path, draw: Random) -> None:
    """Not a file any more, or one beside it that belongs to it."""
    kind = draw.randrange(5)
    if kind == 0:
        file.unlink()
        file.mkdir()
    elif kind == 1:
        file.with_name(file.name + draw.choice(("-wal", "-shm", "-journal"))).write_bytes(draw.randbytes(5_000))
    elif kind == 2:
        file.with_name(file.name + draw.choice(("-wal", "-journal", ".lock"))).mkdir()
    elif kind == 3:
        file.write_bytes(draw.choice((b"", b"x", b"SQLite format 3\x00", b"\x80\x04pickle", b"{}")))
    else:
        header = bytearray(file.read_bytes())
        header[draw.randrange(100)] = draw.randrange(256)
        file.write_bytes(header)


def changed_bytes(file: Path, draw: Random) -> None:
    file.write_bytes(damaged_bytes(file.read_bytes(), draw))


def stored(file: Path) -> set[object]:
    """The messages and answered calls of a file, if it is a journal."""
    found: set[object] = set()
    if file.is_file():
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            connection.text_factory = bytes
            for query in ("SELECT * FROM message", "SELECT * FROM call WHERE status = 'done'"):
                with suppress(sqlite3.Error, UnicodeDecodeError):
                    found.update(connection.execute(query))
    return found


FOUND_LATER: Final = ("The journal is damaged: ", "generate/", "grade/", "Could not decode to UTF-8")
"""What errors say about single rows, which are met when they are needed; other rows may have been added by then."""
DAMAGE: Final[tuple[Callable[[Path, Random], None], ...]] = (changed_by_sql, changed_in_place, changed_bytes)


def test_a_damaged_journal_is_refused_or_read_but_never_made_worse(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "beside.txt").write_text("not to be touched", encoding="utf-8")
    folder = tmp_path / "run"
    refusals = count = 0
    for number, draw in cases("journals", few=150):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        file = folder / "run.sqlite"
        shutil.copy(whole, file)
        DAMAGE[number % len(DAMAGE)](file, draw)
        before = file.read_bytes() if file.is_file() else None
        kept = stored(file)

        with nothing_changes_in(tmp_path, but=folder):
            refused(lambda: read_everything(folder))
            assert before == (file.read_bytes() if file.is_file() else None), number
            error = refused(lambda: write_something(folder))

        count += 1
        refusals += error is not None
        assert error is None or len(error.message.splitlines()) == 1
        if error is not None and any(said in error.message for said in FOUND_LATER):
            assert kept <= stored(file), (number, error.message)
        elif error is not None:
            assert before == (file.read_bytes() if file.is_file() else None), (number, error.message)
    assert count / 4 < refusals < count


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small experiment that has been run, without the record that it is finished."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("tiny.yaml").write_text(EXPERIMENT, encoding="utf-8")
        assert command("run", "tiny.yaml")[0] == 0
    forget_steps(str(folder / "runs/tiny"))  # a finished step is taken without a look at its calls
    return folder


def sql(script: str) -> Callable[[Path], object]:
    def change(file: Path) -> None:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.executescript(script)

    return change


def in_its_place(file: Path) -> None:
    file.unlink()
    file.mkdir()


def zeroed(page: int) -> Callable[[Path], object]:
    def change(file: Path) -> None:
        content = file.read_bytes()
        file.write_bytes(content[: page * 4096] + bytes(4096) + content[(page + 1) * 4096 :])

    return change


KINDS: Final[dict[str, Callable[[Path], object]]] = {
    "half of it": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "a page short": lambda file: file.write_bytes(file.read_bytes()[:-4096]),
    "only the header": lambda file: file.write_bytes(file.read_bytes()[:100]),
    "text": lambda file: file.write_text("not a database, but as long as a header has to be" * 4, encoding="utf-8"),
    "a folder": in_its_place,
    **{f"page {page} zeroed": zeroed(page) for page in range(8)},
    **{f"no table {name}": sql(f"DROP TABLE {name}") for name in ("call", "message", "combination", "attempt", "step")},
    **{f"version {number}": sql(f"PRAGMA user_version = {number}") for number in (-1, 0, VERSION + 1, 99)},
    "another application": sql("PRAGMA application_id = 1"),
    "no column": sql("ALTER TABLE call DROP COLUMN detail"),
    "a renamed column": sql("ALTER TABLE attempt RENAME COLUMN seconds TO minutes"),
    "no index": sql("DROP INDEX generate_key"),
    "a trigger": sql("CREATE TRIGGER t AFTER INSERT ON call BEGIN DELETE FROM message; END"),
    "other columns": sql(
        "CREATE TABLE c AS SELECT * FROM attempt; DROP TABLE attempt; ALTER TABLE c RENAME TO attempt"
    ),
    "broken JSON": sql("UPDATE call SET messages = '[', request_hash = 'x'"),
    "deep JSON": sql(f"UPDATE call SET decoding = '{'[' * 3000}', request_hash = 'x'"),
    "no UTF-8": sql("UPDATE message SET content = CAST(x'ff41' AS TEXT)"),
    "another text": sql("UPDATE message SET content = 'Answer: better'"),
    "no messages": sql("PRAGMA foreign_keys = OFF; DELETE FROM message"),
    "an unknown status": sql("UPDATE call SET status = 'perhaps'"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_run_on_a_damaged_journal_is_one_line_and_a_hint(
    kind: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    file = folder / "runs/tiny/run.sqlite"
    KINDS[kind](file)
    before = file.read_bytes() if file.is_file() else None

    with nothing_changes_in(tmp_path, but=folder / "runs/tiny"):
        status, said = command("run", "tiny.yaml")

    assert status == 2, said
    assert said.count("error: ") == said.count("hint: ") == 1
    assert before == (file.read_bytes() if file.is_file() else None)
