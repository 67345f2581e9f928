"""Check the pages, the tables and the types of values of a journal file, without changing it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from skillmix.errors import UserError

_TYPES: Final = {"TEXT": ("text",), "INTEGER": ("integer",), "REAL": ("real", "integer")}
"""The types of values that SQLite stores in a column of each kind."""


class Column(NamedTuple):
    """One column of a table."""

    name: str
    kind: str
    is_required: bool
    has_default: bool


Tables = dict[str, dict[str, Column]]


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that cannot change a file or run code that the file holds."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def refuse_broken_pages(path: Path) -> None:
    """Refuse a file whose pages do not fit together: writing could destroy the rest."""
    with closing(open_read_only(path)) as connection:
        result = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if result != "ok":
        raise _damaged(path, str(result).splitlines()[-1])


def refuse_other_tables(path: Path, schema: str) -> None:
    """Refuse a file that lacks a table or column of the schema, or holds code or values of other types."""
    file = path.stat()
    wal = path.with_name(path.name + "-wal")
    _checked(path, schema, (file.st_ino, file.st_size, file.st_mtime_ns, wal.stat().st_size if wal.exists() else 0))


@lru_cache(maxsize=64)  # a command may open the files of a run several times
def _checked(path: Path, schema: str, state: tuple[int, ...]) -> None:
    with closing(open_read_only(path)) as connection:
        fault = next(_faults(connection, schema), None)
    if fault is not None:
        raise _damaged(path, fault)


def _damaged(path: Path, why: str) -> UserError:
    return UserError(
        f"The journal {path} is damaged: {why}.",
        hint="Nothing was changed. Restore the file from a copy, or move it away to start it anew.",
    )


def _faults(connection: sqlite3.Connection, schema: str) -> Iterator[str]:
    wanted, wanted_indexes = _of_schema(schema)
    code = "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')"
    yield from (f"it holds the {kind} {name!r}" for kind, name in connection.execute(code))
    indexes = _indexes(connection)
    yield from (f"the index {name!r} is missing" for name in wanted_indexes - indexes)
    yield from (f"it holds the index {name!r}" for name in indexes - wanted_indexes)
    found = _tables(connection)
    for table, columns in wanted.items():
        if table not in found:
            yield f"the table {table!r} is missing"
        else:
            yield from _column_faults(table, columns, found[table])
            yield from _value_faults(connection, table, columns)


def _column_faults(table: str, wanted: dict[str, Column], found: dict[str, Column]) -> Iterator[str]:
    for name, column in wanted.items():
        if name not in found:
            yield f"the table {table!r} has no column {name!r}"
        elif found[name] != column:
            yield f"the column {table}.{name} is not a column of {column.kind} values as it should be"
    for name, column in found.items():
        if name not in wanted and column.is_required and not column.has_default:
            yield f"the table {table!r} has a column {name!r} that nothing fills"


def _value_faults(connection: sqlite3.Connection, table: str, columns: dict[str, Column]) -> Iterator[str]:
    wrong = [
        f"typeof({column.name}) NOT IN ({', '.join(repr(kind) for kind in _stored_as(column))})"
        for column in columns.values()
    ]
    row = connection.execute(f"SELECT rowid FROM {table} WHERE {' OR '.join(wrong)} LIMIT 1").fetchone()
    if row is not None:
        yield f"row {row[0]} of the table {table!r} holds a value of a wrong type"


def _stored_as(column: Column) -> tuple[str, ...]:
    return _TYPES[column.kind] if column.is_required else (*_TYPES[column.kind], "null")


@lru_cache(maxsize=4)
def _of_schema(schema: str) -> tuple[Tables, frozenset[str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema)
        return _tables(connection), frozenset(_indexes(connection))


def _indexes(connection: sqlite3.Connection) -> set[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'index' AND name NOT LIKE 'sqlite_autoindex_%'"
    return {row[0] for row in connection.execute(query)}


def _tables(connection: sqlite3.Connection) -> Tables:
    query = (
        'SELECT m.name, c.name, c.type, c."notnull", c.dflt_value IS NOT NULL, c.pk, c.hidden '
        "FROM sqlite_master AS m JOIN pragma_table_xinfo(m.name) AS c WHERE m.type = 'table'"
    )
    found: Tables = {}
    for table, name, kind, required, default, key, hidden in connection.execute(query):
        kind = f"{kind} (computed)" if hidden else kind
        found.setdefault(table, {})[name] = Column(name, kind, bool(required or key), bool(default))
    return found
