"""The journal's tables; open a file of any version, and refuse a damaged one."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from skillmix.errors import UserError
from skillmix.runs.journal.soundness import open_read_only, refuse_broken_pages, refuse_other_tables

APPLICATION_ID: Final = 0x736B6D78  # "skmx"
VERSION: Final = 3

SCHEMA: Final = """
CREATE TABLE combinations (
    id     TEXT PRIMARY KEY,
    skills TEXT NOT NULL,             -- JSON list, in prompt order
    topic  TEXT NOT NULL
);
CREATE TABLE messages (
    hash    TEXT PRIMARY KEY,
    role    TEXT NOT NULL,
    content TEXT NOT NULL
);
CREATE TABLE calls (
    id          INTEGER PRIMARY KEY,
    stage       TEXT NOT NULL CHECK (stage IN ('generate', 'grade')),
    student     TEXT NOT NULL,
    combination TEXT NOT NULL,
    generation  INTEGER NOT NULL,
    turn        INTEGER,
    text        TEXT,
    grader      TEXT,
    round       INTEGER,
    attempt     INTEGER,
    model        TEXT NOT NULL,
    messages     TEXT NOT NULL,       -- JSON list of message hashes
    decoding     TEXT NOT NULL,       -- JSON
    seed         INTEGER,
    request_hash TEXT NOT NULL,
    status        TEXT NOT NULL CHECK (status IN ('done', 'problem', 'submitted')),
    origin        TEXT NOT NULL CHECK (origin IN ('call', 'imported', 'imported-text')),
    reply         TEXT REFERENCES messages (hash),
    finish        TEXT,
    problem_kind  TEXT,
    problem       TEXT,
    detail        TEXT,
    input_tokens  INTEGER,
    output_tokens INTEGER,
    cost_usd      REAL,
    not_sent      TEXT NOT NULL,      -- JSON list of parameters the provider could not take
    batch         TEXT,               -- the tag of the batch that the call is part of, while status is 'submitted'
    at            TEXT NOT NULL,      -- UTC
    CHECK ((stage = 'generate') = (turn IS NOT NULL)),
    CHECK ((stage = 'grade')
        = (text IS NOT NULL AND grader IS NOT NULL AND round IS NOT NULL AND attempt IS NOT NULL)),
    CHECK ((status = 'done') = (reply IS NOT NULL)),
    CHECK ((status = 'problem') = (problem_kind IS NOT NULL))
);
CREATE UNIQUE INDEX generate_key ON calls (student, combination, generation, turn) WHERE stage = 'generate';
CREATE UNIQUE INDEX grade_key ON calls (student, combination, generation, text, grader, round, attempt)
    WHERE stage = 'grade';
CREATE INDEX submitted_calls ON calls (batch) WHERE status = 'submitted';
CREATE TABLE tries (
    id           INTEGER PRIMARY KEY,
    key          TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    outcome      TEXT NOT NULL,       -- 'reply', or the kind of problem
    reason       TEXT NOT NULL,
    seconds      REAL NOT NULL,
    at           TEXT NOT NULL,
    cost_usd     REAL                 -- what a try without a reply may have cost; a reply's cost is in calls
);
CREATE TABLE sent (                   -- calls in flight, while a budget is kept: a crash must not forget them
    key          TEXT PRIMARY KEY,
    request_hash TEXT NOT NULL,
    cost_usd     REAL NOT NULL,
    at           TEXT NOT NULL
);
CREATE TABLE batches (                -- noted before anything of a batch is sent
    tag      TEXT PRIMARY KEY,
    model    TEXT NOT NULL,           -- the name that tasks use, such as 'grader:judge'
    dialect  TEXT NOT NULL,
    address  TEXT NOT NULL,
    requests INTEGER NOT NULL,
    state    TEXT NOT NULL CHECK (state IN ('written', 'creating', 'created', 'read')),
    file     TEXT,                    -- the provider's id of the uploaded file
    batch    TEXT,                    -- the provider's id of the batch
    seen     TEXT,                    -- the provider's last word for its state
    at       TEXT NOT NULL,
    changed  TEXT NOT NULL
);
"""

MIGRATIONS: Final[dict[int, str]] = {
    1: (
        "ALTER TABLE tries ADD COLUMN cost_usd REAL; "
        "CREATE TABLE sent (key TEXT PRIMARY KEY, request_hash TEXT NOT NULL, cost_usd REAL NOT NULL, "
        "at TEXT NOT NULL); "
        # A prompt that is too long, or a grader that refuses, is not what a student did; version 1 scored it as such.
        "UPDATE calls SET problem_kind = 'failed' "
        "WHERE problem_kind = 'final' AND (stage = 'grade' OR problem = 'prompt too long');"
    ),
    2: (
        "CREATE TABLE IF NOT EXISTS batches (tag TEXT PRIMARY KEY, model TEXT NOT NULL, dialect TEXT NOT NULL, "
        "address TEXT NOT NULL, requests INTEGER NOT NULL, "
        "state TEXT NOT NULL CHECK (state IN ('written', 'creating', 'created', 'read')), "
        "file TEXT, batch TEXT, seen TEXT, at TEXT NOT NULL, changed TEXT NOT NULL); "
        "CREATE INDEX IF NOT EXISTS submitted_calls ON calls (batch) WHERE status = 'submitted';"
    ),
}
"""SQL that turns a file of version n into one of version n + 1, by n."""


class OlderJournal(Exception):
    """A reader has opened a file that a writer must migrate first, since that needs the lock."""


_OTHER_TROUBLES: Final = {
    sqlite3.SQLITE_FULL: ("cannot be written: the disk is full", "Make room and run again; what is in it is kept."),
    sqlite3.SQLITE_BUSY: ("is busy", "Another program has it open; run again when that is done."),
    sqlite3.SQLITE_LOCKED: ("is busy", "Another program has it open; run again when that is done."),
    sqlite3.SQLITE_READONLY: ("cannot be written", "Check the permissions of the file and its folder."),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "Check the permissions of the file and its folder."),
}


@contextmanager
def telling_what_broke(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into one line that the user can act on."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if isinstance(error, sqlite3.ProgrammingError):
            raise
        trouble = _OTHER_TROUBLES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if trouble is not None:
            raise UserError(f"The journal {path} {trouble[0]}.", hint=trouble[1]) from None
        # SQLite quotes a text that is not UTF-8, which may be a whole reply.
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise UserError(
            f"The journal {path} cannot be read: {reason}.",
            hint="Restore the file from a copy, or move it away to start it anew.",
        ) from None


_LONGEST_REASON: Final = 120


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into one line, while a journal is opened."""
    try:
        with telling_what_broke(path):
            yield
    except OSError as error:
        raise UserError(
            f"The journal {path} cannot be opened: {error.strerror or error}.",
            hint="Nothing was changed. Check the path, its permissions and the space on the disk.",
        ) from None


@contextmanager
def closed_on_error(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A connection that stays open for its user, unless the first steps with it fail."""
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Connect to a journal file; an older version is copied, then migrated."""
    with opening(path):
        version = _checked_version(path) if path.exists() and path.stat().st_size else None
        if version is None and not write:
            raise UserError(f"The journal {path} is empty.", hint="Run the experiment again to fill it.")
        if version is not None:
            _refuse_unsound(path, version, write=write)
        return open_for_writing(path) if write else _reading(path)


def _refuse_unsound(path: Path, version: int, *, write: bool) -> None:
    """Check a whole file before use, through a connection that cannot change it."""
    if version < VERSION and not write:
        raise OlderJournal
    if write:
        refuse_broken_pages(path)
    if version < VERSION:
        _migrate(path)
    refuse_other_tables(path, SCHEMA)


BUSY_S: Final = 60.0
"""Seconds to wait for the other connection of a run; one large transaction on a slow disk may take many."""


_CACHE_KB: Final = 32 * 1024
"""Messages are stored by their hashes, so that every row touches pages all over the file."""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """A connection that writes to a file that is checked already."""
    with closed_on_error(sqlite3.connect(path, isolation_level=None, timeout=BUSY_S)) as connection:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        # In WAL mode NORMAL loses no row when the process dies; elsewhere FULL is what keeps the file whole.
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        if connection.execute("PRAGMA application_id").fetchone()[0] == 0:
            connection.executescript(
                f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
            )
    return connection


def _reading(path: Path) -> sqlite3.Connection:
    address = path.resolve().as_uri()
    try:
        with closed_on_error(sqlite3.connect(f"{address}?mode=ro", uri=True, isolation_level=None)) as connection:
            connection.execute("SELECT 1 FROM calls LIMIT 1")
    except sqlite3.OperationalError:
        if path.with_name(path.name + "-wal").exists():
            raise
        # A folder that cannot be written has no room for WAL's side files; without a writer none are needed.
        with closed_on_error(sqlite3.connect(f"{address}?immutable=1", uri=True, isolation_level=None)) as connection:
            connection.execute("SELECT 1 FROM calls LIMIT 1")
    return connection


def _refuse_torn(path: Path) -> None:
    """Refuse a file that is shorter than its header says; SQLite would notice only when it reads the missing part.

    On POSIX, closing the file drops the locks that SQLite holds on it for this process. Only a second writer would take
    advantage of that, and the lock file of the journal keeps second writers out.
    """
    with path.open("rb") as file:
        header = file.read(100)
    wal = path.with_name(path.name + "-wal")
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise UserError(f"{path} is not a journal.", hint="Nothing was changed. Check the path.")
    page = int.from_bytes(header[16:18]) or 1
    size = (65536 if page == 1 else page) * int.from_bytes(header[28:32])
    if header[24:28] == header[92:96] and path.stat().st_size < size and not (wal.exists() and wal.stat().st_size):
        raise UserError(
            f"The journal {path} is torn: {path.stat().st_size} of {size} bytes are there.",
            hint="Nothing was changed. Restore the file from a copy, or move it away to start it anew.",
        )


def _checked_version(path: Path) -> int | None:
    """The version of a journal; None if its first writer died before it made the tables."""
    _refuse_torn(path)
    connection = open_read_only(path)
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        is_blank = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    finally:
        connection.close()
    if application == 0 and version == 0 and is_blank:
        return None
    if application != APPLICATION_ID:
        raise UserError(f"{path} is a database, but not a journal.", hint="Nothing was changed. Check the path.")
    if version < 1:
        raise UserError(
            f"The journal {path} has no valid version.", hint="Nothing was changed. Restore it from a copy."
        )
    if version > VERSION:
        raise UserError(
            f"The journal {path} has version {version}; this skillmix knows versions up to {VERSION}.",
            hint="Nothing was changed. Update skillmix.",
        )
    return version


def _migrate(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy2(path, path.with_name(f"{path.name}.version-{version}"))
        for step in range(version, VERSION):
            connection.executescript(f"BEGIN; {MIGRATIONS[step]} PRAGMA user_version = {step + 1}; COMMIT;")
    finally:
        connection.close()
