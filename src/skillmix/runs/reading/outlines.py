"""Conversations as hashes: what was said and voted, without a word of it; a million of them fit through here."""

import sqlite3
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from sys import intern
from typing import Any, Final, NamedTuple

from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.journal.rows import combination_of_row, verified_content
from skillmix.runs.journal.schema import telling_what_broke


class IndexedTurn(NamedTuple):
    """One of the student's replies."""

    number: int
    reply: str | None
    """The address of the reply; None if there is none."""
    problem: str | None
    model: str
    origin: str
    request: str


class IndexedVote(NamedTuple):
    """One grading."""

    grader: str
    text: str
    round: int
    attempt: int
    reply: str | None


class ConversationIndex(NamedTuple):
    """One conversation."""

    student: str
    combination: str
    generation: int
    turns: tuple[IndexedTurn, ...]
    votes: tuple[IndexedVote, ...]


_TURNS = (
    "SELECT student, combination, generation, turn, reply, problem_kind, model, origin, request_hash "
    "FROM calls NOT INDEXED WHERE stage = 'generate' {chosen} ORDER BY student, combination, generation, turn"
)
_VOTES = (
    "SELECT student, combination, generation, grader, text, round, attempt, reply "
    "FROM calls NOT INDEXED WHERE stage = 'grade' {chosen} "
    "ORDER BY student, combination, generation, grader, round, attempt, text"
)
# Not indexed: walking the index would fetch every row from another place of a file of gigabytes; sorting the few
# columns that are wanted reads the file once, from front to back.
_conversation = itemgetter(0, 1, 2)


class Ids(NamedTuple):
    """Combination ids from the first up to the end."""

    first: str
    end: str


HALVES: Final = (Ids("", "8"), Ids("8", "g"))
"""Ids are hexadecimal hashes, so each half has about as many conversations as the other."""


def outlines(
    journal: JournalReader, *, students: Iterable[str] | None = None, ids: Ids | None = None
) -> Iterator[ConversationIndex]:
    """Every conversation in the order of its key; of these students and ids if any are named."""
    chosen = _Chosen.by(students, ids)
    votes = groupby(_rows(journal, _VOTES, chosen, width=7), key=_conversation)
    at = next(votes, None)
    for key, rows in groupby(_rows(journal, _TURNS, chosen, width=4), key=_conversation):
        turns = tuple([IndexedTurn._make(row[3:]) for row in rows])
        while at is not None and at[0] < key:
            at = next(votes, None)
        graded: tuple[IndexedVote, ...] = ()
        if at is not None and at[0] == key:
            graded = tuple([IndexedVote._make(row[3:]) for row in at[1]])
            at = next(votes, None)
        yield ConversationIndex(key[0], key[1], key[2], turns, graded)


class _Chosen(NamedTuple):
    """A condition of a query, and its values."""

    condition: str
    values: list[str]

    @classmethod
    def by(cls, students: Iterable[str] | None, ids: Ids | None) -> "_Chosen":
        condition, values = "", []
        if students is not None:
            values = sorted(set(students))
            condition = f"AND student IN ({', '.join('?' * len(values))})"
        if ids is not None:
            condition += " AND combination >= ? AND combination < ?"
            values += ids
        return cls(condition, values)


def _rows(journal: JournalReader, query: str, chosen: _Chosen, *, width: int) -> Iterator[tuple[Any, ...]]:
    """Rows of all files in order; of a key that several files have, the one with a reply."""
    asked = query.format(chosen=chosen.condition)
    files = [_rows_of(path, connection, asked, chosen.values) for path, connection in journal.files]
    if len(files) == 1:
        yield from files[0]
        return
    order = itemgetter(*range(width))
    for _, same in groupby(merge(*files, key=order), key=order):
        found = list(same)
        yield max(found, key=lambda row: row[4 if width == 4 else 7] is not None)


def _rows_of(path: Path, connection: sqlite3.Connection, query: str, values: list[str]) -> Iterator[tuple[Any, ...]]:
    with telling_what_broke(path):
        for row in connection.execute(query, values):  # noqa: UP028  # see JournalReader._rows
            yield row


_AT_ONCE = 500


def _rows_with(journal: JournalReader, query: str, wanted: list[str]) -> Iterator[tuple[Any, ...]]:
    """Rows of all files whose last-named column is one of many values, which are asked for some at a time."""
    for path, connection in journal.files:
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            yield from _rows_of(path, connection, f"{query} IN ({', '.join('?' * len(part))})", part)


def contents(journal: JournalReader, addresses: Iterable[str]) -> dict[str, str]:
    """The words behind addresses, each checked against its hash."""
    wanted = sorted(set(addresses))
    found: dict[str, str] = {}
    for address, role, content in _rows_with(journal, "SELECT hash, role, content FROM messages WHERE hash", wanted):
        found[address] = verified_content(address, role, content)
    if len(found) < len(wanted):
        raise UserError(
            f"The journal is damaged: {len(wanted) - len(found)} replies are not in it.",
            hint="Nothing was changed. Restore it from a copy.",
        )
    return found


def combinations_of(journal: JournalReader, ids: Iterable[str]) -> dict[str, Combination]:
    """What these combination ids stand for; names that repeat are kept in memory once."""
    wanted = sorted(set(ids))
    found: dict[str, Combination] = {}
    for row in _rows_with(journal, "SELECT id, skills, topic FROM combinations WHERE id", wanted):
        whole = combination_of_row(row)
        skills = tuple([intern(skill) for skill in whole.skills])
        found[whole.id] = Combination(whole.id, skills, intern(whole.topic))
    if len(found) < len(wanted):
        raise UserError(
            f"The journal does not say what {len(wanted) - len(found)} of its combinations are.",
            hint="It is damaged. Restore it from a copy.",
        )
    return found
