"""The database of a run, `run.sqlite`: its tables, its lock, and connections that refuse a damaged file.

A person's answers are in a file with the same tables (`people.py`).
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from skillmix.errors import UserError

RUN_FILE: Final = "run.sqlite"
APPLICATION_ID: Final = 0x736B6D78  # "skmx"
FIRST_VERSION: Final = 4
"""Versions 1 to 3 were journals in `journal/calls.sqlite`; `migrate.py` reads them."""
MIGRATIONS: Final[tuple[str, ...]] = ()
"""SQL that turns a file of `FIRST_VERSION` into one of the next version, and so on; `SCHEMA` is the last one."""
VERSION: Final = FIRST_VERSION + len(MIGRATIONS)

SCHEMA: Final = """
CREATE TABLE experiment (             -- a row for each change of the experiment, of skillmix or of the machine
    version  INTEGER PRIMARY KEY,
    yaml     TEXT NOT NULL,
    at       TEXT,                    -- UTC; NULL, as the next three, where an older version did not note it
    skillmix TEXT,
    python   TEXT,
    machine  TEXT,
    notes    TEXT NOT NULL            -- JSON: hashes of prompt sets, and what else a command notes
) STRICT;
CREATE TABLE combination (
    id     TEXT PRIMARY KEY,
    skills TEXT NOT NULL,             -- JSON list, in prompt order
    topic  TEXT NOT NULL
) STRICT;
CREATE TABLE message (
    hash    TEXT PRIMARY KEY,
    role    TEXT NOT NULL,
    content TEXT NOT NULL
) STRICT;
CREATE TABLE call (                   -- one row for each key, written before anyone uses the reply
    id            INTEGER PRIMARY KEY,
    stage         TEXT NOT NULL CHECK (stage IN ('generate', 'grade')),
    student       TEXT NOT NULL,
    combination   TEXT NOT NULL,
    generation    INTEGER NOT NULL,
    turn          INTEGER,
    text          TEXT,
    grader        TEXT,
    round         INTEGER,
    attempt       INTEGER,
    model         TEXT NOT NULL,
    messages      TEXT NOT NULL,      -- JSON list of hashes
    decoding      TEXT NOT NULL,      -- JSON
    seed          INTEGER,
    request_hash  TEXT NOT NULL,
    status        TEXT NOT NULL CHECK (status IN ('done', 'problem', 'submitted')),
    reply         TEXT,               -- hash of a message
    finish        TEXT,
    input_tokens  INTEGER,
    output_tokens INTEGER,
    cost_usd      REAL,
    problem_kind  TEXT,
    problem       TEXT,
    detail        TEXT,
    not_sent      TEXT NOT NULL,      -- JSON list of parameters that the provider could not take
    origin        TEXT NOT NULL CHECK (origin IN ('call', 'imported', 'imported-text')),
    batch         TEXT,               -- the tag of the batch, while the status is 'submitted'
    at            TEXT NOT NULL,      -- UTC
    CHECK ((stage = 'generate') = (turn IS NOT NULL)),
    CHECK ((stage = 'grade')
        = (text IS NOT NULL AND grader IS NOT NULL AND round IS NOT NULL AND attempt IS NOT NULL)),
    CHECK ((status = 'done') = (reply IS NOT NULL)),
    CHECK ((status = 'problem') = (problem_kind IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX generate_key ON call (student, combination, generation, turn) WHERE stage = 'generate';
CREATE UNIQUE INDEX grade_key ON call (student, combination, generation, text, grader, round, attempt)
    WHERE stage = 'grade';
CREATE INDEX submitted_calls ON call (batch) WHERE status = 'submitted';
CREATE TABLE attempt (                -- every request that was sent
    id       INTEGER PRIMARY KEY,
    call     TEXT NOT NULL,           -- key of the call
    outcome  TEXT NOT NULL,           -- 'reply', or the kind of problem
    reason   TEXT NOT NULL,
    seconds  REAL NOT NULL,
    cost_usd REAL,                    -- what an attempt without a reply may have cost; a reply's cost is in call
    at       TEXT NOT NULL
) STRICT;
CREATE TABLE sent (                   -- calls in flight while a budget is kept: a crash still charges them
    call     TEXT PRIMARY KEY,
    cost_usd REAL NOT NULL,
    at       TEXT NOT NULL
) STRICT;
CREATE TABLE batch (                  -- noted before anything of a batch is sent
    tag         TEXT PRIMARY KEY,
    model       TEXT NOT NULL,        -- the name that tasks use, such as 'grader:judge'
    dialect     TEXT NOT NULL,
    address     TEXT NOT NULL,
    requests    INTEGER NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('written', 'creating', 'created', 'read')),
    file        TEXT,                 -- the provider's id of the uploaded file
    provider_id TEXT,                 -- the provider's id of the batch
    seen        TEXT,                 -- the provider's last word for its state
    at          TEXT NOT NULL,
    changed     TEXT NOT NULL
) STRICT;
CREATE TABLE excluded (               -- combinations that draws skip, because a student was trained on them
    step        TEXT NOT NULL,
    combination TEXT NOT NULL,
    PRIMARY KEY (step, combination)
) STRICT;
CREATE TABLE uncounted (              -- conversations that an earlier version began ahead, until a step uses them
    student     TEXT NOT NULL,
    combination TEXT NOT NULL,
    generation  INTEGER NOT NULL,
    PRIMARY KEY (student, combination, generation)
) STRICT;
CREATE TABLE step (
    name    TEXT PRIMARY KEY,
    inputs  TEXT NOT NULL,            -- JSON by name: settings, and hashes of content
    result  TEXT,                     -- JSON; NULL while a training has begun and is not finished
    seconds REAL NOT NULL,
    at      TEXT NOT NULL
) STRICT;
"""

_BUSY_S: Final = 60.0
"""Seconds to wait for another connection; one large transaction on a slow disk may take many."""
_CACHE_KB: Final = 32 * 1024
"""Messages are stored by their hashes, so that every row touches pages all over the file."""
_LONGEST_REASON: Final = 120
_RESTORE: Final = "Nothing was changed. Restore the file from a copy."
_TROUBLES: Final = {
    sqlite3.SQLITE_FULL: ("cannot be written: the disk is full", "Make room and run again; what is in it is kept."),
    sqlite3.SQLITE_BUSY: ("is busy", "Another program has it open; run again when that is done."),
    sqlite3.SQLITE_LOCKED: ("is busy", "Another program has it open; run again when that is done."),
    sqlite3.SQLITE_READONLY: ("cannot be written", "Check the permissions of the file and its folder."),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "Check the permissions of the file and its folder."),
}


def held_lock(file: Path) -> FileLock:
    """Take the lock of a file that one process at a time may write; the kernel frees it when the process dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file.with_name(f"{file.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"Another process is writing to {file}.", hint="Wait for it, or stop it, and run again."
        ) from None
    return lock


@contextmanager
def telling_what_broke(path: Path) -> Iterator[None]:
    """Turn SQLite's errors, and those of the file system, into one line that the user can act on."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if isinstance(error, sqlite3.ProgrammingError):
            raise
        trouble = _TROUBLES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if trouble is not None:
            raise UserError(f"The journal {path} {trouble[0]}.", hint=trouble[1]) from None
        # SQLite quotes a text that is not UTF-8, which may be a whole reply.
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise UserError(f"The journal {path} cannot be read: {reason}.", hint=_RESTORE) from None
    except OSError as error:
        raise UserError(
            f"The journal {path} cannot be opened: {error.strerror or error}.",
            hint="Nothing was changed. Check the path, its permissions and the space on the disk.",
        ) from None


def connect(path: Path, *, write: bool, is_checked: bool = True) -> sqlite3.Connection:
    """Connect to a file of this version; whoever writes holds its lock, and makes the tables of a new file.

    The pages of the file are checked first. Whoever reads only a few rows may do without.
    """
    with telling_what_broke(path):
        if write and not (path.exists() and path.stat().st_size):
            _create(path)
        version = _version_of(path)
        if version < VERSION:
            with nullcontext() if write else held_lock(path):
                _migrate(path, version)
        file, wal = path.stat(), path.with_name(path.name + "-wal")
        state = (file.st_ino, file.st_size, file.st_mtime_ns, wal.stat().st_size if wal.exists() else 0)
        if fault := _other_tables(path, state) or (_broken_pages(path, state) if is_checked else ""):
            raise UserError(f"The journal {path} is damaged: {fault}.", hint=_RESTORE)
        if not write:
            return _reading(path)
        connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_S)
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            # In WAL mode NORMAL loses no row when the process dies; elsewhere FULL is what keeps the file whole.
            connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        except BaseException:
            connection.close()
            raise
    return connection


def _create(path: Path) -> None:
    """Make a file with empty tables at once: a reader must not meet it without them."""
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)  # of a file that was deleted
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.executescript(
            f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
        )
    new.replace(path)


def _version_of(path: Path) -> int:
    """The version of a file."""
    refuse_torn(path)
    with closing(_reading(path)) as connection:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if application != APPLICATION_ID:
        raise UserError(f"{path} is a database, but not a journal.", hint="Nothing was changed. Check the path.")
    if version < FIRST_VERSION:
        raise UserError(f"The journal {path} has no valid version.", hint=_RESTORE)
    if version > VERSION:
        raise UserError(
            f"The journal {path} has version {version}; this skillmix knows versions up to {VERSION}.",
            hint="Nothing was changed. Update skillmix.",
        )
    return version


def _migrate(path: Path, version: int) -> None:
    """Bring a file to this version; a copy of the former one stays beside it, and the caller holds the lock."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        former = path.with_name(f"{path.name}.version-{version}")
        shutil.copy2(path, former)
        for number, script in enumerate(MIGRATIONS[version - FIRST_VERSION :], start=version + 1):
            connection.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")


def refuse_torn(path: Path) -> None:
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
        raise UserError(f"The journal {path} is torn: {path.stat().st_size} of {size} bytes are there.", hint=_RESTORE)


def _reading(path: Path) -> sqlite3.Connection:
    """A connection that cannot change the file or run code that the file holds."""
    address = path.resolve().as_uri()
    try:
        return _opened(f"{address}?mode=ro")
    except sqlite3.OperationalError:
        if path.with_name(path.name + "-wal").exists():
            raise
        # A folder that cannot be written has no room for WAL's side files; without a writer none are needed.
        return _opened(f"{address}?immutable=1")


def _opened(address: str) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=_BUSY_S)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1")
    except BaseException:
        connection.close()
        raise
    return connection


@lru_cache(maxsize=64)  # a command may open a file several times
def _other_tables(path: Path, state: tuple[int, ...]) -> str:
    """How the tables differ from those of this version; empty if they do not. Triggers and views are code."""
    with closing(_reading(path)) as connection:
        found = _schema_of(connection)
    if different := found ^ _wanted_schema():
        kind, name, column, *_ = min(different, key=str)
        return f"it differs in the {kind} {name!r}" + (f", column {column!r}" if column else "")
    return ""


@lru_cache(maxsize=64)
def _broken_pages(path: Path, state: tuple[int, ...]) -> str:
    """The last line of what `quick_check` finds: pages, types of values and CHECKs; empty if all is well."""
    with closing(_reading(path)) as connection:
        said = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    return "" if said == "ok" else said.splitlines()[-1]


@lru_cache(maxsize=1)
def _wanted_schema() -> frozenset[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return _schema_of(connection)


def _schema_of(connection: sqlite3.Connection) -> frozenset[tuple[object, ...]]:
    query = (
        'SELECT m.type, m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk, c.hidden '
        "FROM sqlite_master AS m LEFT JOIN pragma_table_xinfo(m.name) AS c WHERE m.name NOT LIKE 'sqlite_%'"
    )
    return frozenset(connection.execute(query))
