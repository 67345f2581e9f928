"""The database of a run, `run.sqlite`: its tables, its lock, and connections that reject a damaged file.

Each person's answers are in a separate file with the same tables (`people.py`).
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
"""Versions 1 to 3 were journals in `journal/calls.sqlite`. `migrate.py` reads them."""
MIGRATIONS: Final = (
    "CREATE TABLE graded (name TEXT PRIMARY KEY, inputs TEXT NOT NULL, content TEXT NOT NULL) STRICT;",
)
"""SQL scripts that each upgrade a file by one version, from `FIRST_VERSION` on. `SCHEMA` is the newest version."""
VERSION: Final = FIRST_VERSION + len(MIGRATIONS)

SCHEMA: Final = (Path(__file__).parent / "schema.sql").read_text(encoding="utf-8")

_BUSY_S: Final = 60.0
"""Seconds to wait for another connection, because one large transaction on a slow disk can take long."""
_CACHE_KB: Final = 32 * 1024
"""Size of the page cache in KiB.

Messages are stored by their hashes, so every row touches pages all over the file.
"""
_LONGEST_REASON: Final = 120
_RESTORE: Final = "Nothing was changed. Restore the file from a backup."
_TROUBLES: Final = {
    sqlite3.SQLITE_FULL: (
        "cannot be written: the disk is full",
        "Free disk space and rerun the command; the contents are kept.",
    ),
    sqlite3.SQLITE_BUSY: ("is busy", "Another program has it open; rerun the command when that program is done."),
    sqlite3.SQLITE_LOCKED: ("is busy", "Another program has it open; rerun the command when that program is done."),
    sqlite3.SQLITE_READONLY: ("cannot be written", "Check the permissions of the file and its folder."),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "Check the permissions of the file and its folder."),
}


def held_lock(file: Path) -> FileLock:
    """Lock a file that only one process at a time may write to. The kernel releases the lock when the process dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file.with_name(f"{file.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"Another process is writing to {file}.", hint="Wait for it or stop it, then rerun the command."
        ) from None
    return lock


@contextmanager
def telling_what_broke(path: Path) -> Iterator[None]:
    """Turn errors from SQLite and the file system into a one-line message that the user can act on."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if isinstance(error, sqlite3.ProgrammingError):
            raise
        trouble = _TROUBLES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if trouble is not None:
            raise UserError(f"The journal {path} {trouble[0]}.", hint=trouble[1]) from None
        # SQLite quotes any text that is not UTF-8 in its error, even a whole reply.
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise UserError(f"The journal {path} cannot be read: {reason}.", hint=_RESTORE) from None
    except OSError as error:
        raise UserError(
            f"The journal {path} cannot be opened: {error.strerror or error}.",
            hint="Nothing was changed. Check the path, its permissions and the disk space.",
        ) from None


def connect(path: Path, *, write: bool, is_checked: bool = True) -> sqlite3.Connection:
    """Connect to a file after migrating it to the current version. With `write`, the caller must have locked the file.

    The pages of the file are checked first, unless the caller reads only a few rows.
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
        if fault := _fault_of(path, state, is_checked=is_checked):
            raise UserError(f"The journal {path} is damaged: {fault}.", hint=_RESTORE)
        if not write:
            return _reading(path)
        connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_S)
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            # In WAL mode, NORMAL loses no row when the process dies. In other modes, only FULL keeps the file intact.
            connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        except BaseException:
            connection.close()
            raise
    return connection


def _create(path: Path) -> None:
    """Create a file with empty tables in one step, so that no reader finds the file without its tables."""
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)  # left over from a deleted file
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.executescript(
            f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
        )
    new.replace(path)


def _version_of(path: Path) -> int:
    """Return the version of a file; raise an error if the file is not a journal or its version is not supported."""
    with closing(_reading(path)) as connection:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if application != APPLICATION_ID:
        raise UserError(f"{path} is not a journal.", hint="Nothing was changed. Check the path.")
    if version < FIRST_VERSION:
        raise UserError(f"The journal {path} has no valid version.", hint=_RESTORE)
    if version > VERSION:
        raise UserError(
            f"The journal {path} has version {version}; this skillmix supports versions up to {VERSION}.",
            hint="Nothing was changed. Update skillmix.",
        )
    return version


def _migrate(path: Path, version: int) -> None:
    """Upgrade a file to the current version, and keep a copy of the old file. The caller must have locked the file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        former = path.with_name(f"{path.name}.version-{version}")
        shutil.copy2(path, former)
        for number, script in enumerate(MIGRATIONS[version - FIRST_VERSION :], start=version + 1):
            connection.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")


def _reading(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot change the file or run code that the file contains."""
    address = path.resolve().as_uri()
    # WAL's side files cannot be created in a read-only folder, but without a writer they are not needed.
    modes = ["mode=ro"] if path.with_name(path.name + "-wal").exists() else ["mode=ro", "immutable=1"]
    for mode in modes:
        connection = sqlite3.connect(f"{address}?{mode}", uri=True, isolation_level=None, timeout=_BUSY_S)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1")
        except BaseException as error:
            connection.close()
            if mode == modes[-1] or not isinstance(error, sqlite3.OperationalError):
                raise
        else:
            break
    return connection


@lru_cache(maxsize=64)  # a command may open a file several times
def _fault_of(path: Path, state: tuple[int, ...], *, is_checked: bool) -> str:
    """Describe how the tables differ from the current version, or what `quick_check` finds; empty if nothing is wrong.

    Triggers and views count as differences because they are code. `quick_check` covers pages, types of values and
    CHECKs.
    """
    with closing(_reading(path)) as connection, closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(SCHEMA)
        if different := _tables_of(connection) ^ _tables_of(empty):
            kind, name, column, *_ = min(different, key=str)
            return f"it differs in the {kind} {name!r}" + (f", column {column!r}" if column else "")
        said = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0]) if is_checked else "ok"
    return "" if said == "ok" else said.splitlines()[-1]


def _tables_of(connection: sqlite3.Connection) -> frozenset[tuple[object, ...]]:
    query = (
        'SELECT m.type, m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk, c.hidden '
        "FROM sqlite_master AS m LEFT JOIN pragma_table_xinfo(m.name) AS c WHERE m.name NOT LIKE 'sqlite_%'"
    )
    return frozenset(connection.execute(query))
