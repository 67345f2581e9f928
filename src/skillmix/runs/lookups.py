"""Look messages and combinations up in a journal by their hashes and ids, many at a time."""

from collections.abc import Iterable, Iterator, Sequence
from sys import intern
from typing import Any

from skillmix.calls import Message
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.journal.rows import combination_of_row, verified_message
from skillmix.runs.journal.schema import telling_what_broke

_AT_ONCE = 500


def messages_with(journal: JournalReader, addresses: Iterable[str]) -> dict[str, Message]:
    """The messages stored under these hashes, each checked against its hash."""
    wanted = sorted(set(addresses))
    rows = _rows_with(journal, "SELECT hash, role, content FROM messages WHERE hash", wanted)
    found = {row[0]: verified_message(*row) for row in rows}
    if len(found) < len(wanted):
        raise UserError(
            f"The journal is damaged: {len(wanted) - len(found)} messages are not in it.",
            hint="Nothing was changed. Restore it from a copy.",
        )
    return found


def combinations_of(journal: JournalReader, ids: Iterable[str], *, is_complete: bool = True) -> dict[str, Combination]:
    """The combinations with these ids; a name that repeats is in memory once.

    An id that the journal does not have is an error, unless the caller does not need all of them.
    """
    wanted = sorted(set(ids))
    found: dict[str, Combination] = {}
    for row in _rows_with(journal, "SELECT id, skills, topic FROM combinations WHERE id", wanted):
        whole = combination_of_row(row)
        skills = tuple([intern(skill) for skill in whole.skills])
        found[whole.id] = Combination(whole.id, skills, intern(whole.topic))
    if is_complete and len(found) < len(wanted):
        raise UserError(
            f"The journal does not say what {len(wanted) - len(found)} of its combinations are.",
            hint="It is damaged. Restore it from a copy.",
        )
    return found


def _rows_with(journal: JournalReader, query: str, wanted: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Rows whose first column is one of many values, each once; a query takes only some values at a time."""
    for path, connection in journal.files:
        found: set[str] = set()
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            with telling_what_broke(path):
                for row in connection.execute(f"{query} IN ({', '.join('?' * len(part))})", part):
                    found.add(row[0])
                    yield row
        wanted = [value for value in wanted if value not in found]
