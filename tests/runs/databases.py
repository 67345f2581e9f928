"""Read and change what the database of a run holds, as no command does."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from skillmix.calls import Message
from skillmix.runs.journal import JournalReader
from skillmix.runs.run import Run, new_run, open_run


def execute(run: str, *statements: str) -> None:
    """Execute SQL in the database of a run."""
    with closing(sqlite3.connect(new_run(run).file)) as database, database:
        for statement in statements:
            database.execute(statement)


def forget_steps(run: str) -> None:
    """Delete the records of finished steps."""
    execute(run, "DELETE FROM step")


def forget_earlier(run: str) -> None:
    """Delete all experiments but the present one, as if the run had never had another."""
    execute(run, "DELETE FROM experiment WHERE version < (SELECT max(version) FROM experiment)")


def rewrite_experiment(run: str, document: Any) -> Run:
    """Put a document in the place of the present experiment, without an earlier one."""
    forget_earlier(run)
    with closing(sqlite3.connect(new_run(run).file)) as database, database:
        database.execute("UPDATE experiment SET yaml = ?", (yaml.safe_dump(document, sort_keys=False),))
    return open_run(run)


def row_counts(file: Path) -> dict[str, int]:
    """The number of rows of each table."""
    with closing(sqlite3.connect(file)) as database:
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}


def attempts(journal: JournalReader) -> list[tuple[str, str, str]]:
    """Key, outcome and reason of every call that was sent."""
    return list(journal.rows("SELECT call, outcome, reason FROM attempt ORDER BY id"))


def messages(journal: JournalReader) -> dict[str, Message]:
    """Every message by its hash, in the order in which they were stored."""
    addresses = [row[0] for row in journal.rows("SELECT hash FROM message ORDER BY rowid")]
    found = journal.messages_with(addresses)
    return {address: found[address] for address in addresses}
