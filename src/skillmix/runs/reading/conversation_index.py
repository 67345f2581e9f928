"""Conversations as keys and hashes, so that a million can be scanned without loading their texts."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from sys import intern
from typing import Any, Final, NamedTuple

from skillmix.calls import CallProblem, GenerateKey, Message, Outcome, Reply, Request, content_address
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.runs.journal.file_order import Stage, chained, chains_of
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.journal.rows import combination_of_row, verified_content, verified_message
from skillmix.runs.journal.schema import telling_what_broke


class IndexedTurn(NamedTuple):
    """One call of the student."""

    number: int
    reply: str | None
    """The hash under which the journal keeps the reply; None if there is no reply."""
    problem: str | None
    model: str
    origin: str
    request: str


class IndexedVote(NamedTuple):
    """One grading call."""

    grader: str
    text: str
    round: int
    attempt: int
    reply: str | None


class ConversationIndex(NamedTuple):
    """One conversation without its words."""

    student: str
    combination: str
    generation: int
    turns: tuple[IndexedTurn, ...]
    votes: tuple[IndexedVote, ...]


class _Query(NamedTuple):
    """A scan of one kind of call."""

    stage: Stage
    sql: str
    key_columns: int
    """How many columns, from the first, make up the key of a call."""
    reply_column: int


# Not indexed: walking the index would fetch each row from another part of a file of gigabytes; sorting the few columns
# that are needed reads the file once, from front to back.
_TURNS: Final = _Query(
    "generate",
    "SELECT student, combination, generation, turn, reply, problem_kind, model, origin, request_hash "
    "FROM calls NOT INDEXED WHERE stage = 'generate' {chosen} ORDER BY student, combination, generation, turn",
    key_columns=4,
    reply_column=4,
)
_VOTES: Final = _Query(
    "grade",
    "SELECT student, combination, generation, grader, text, round, attempt, reply "
    "FROM calls NOT INDEXED WHERE stage = 'grade' {chosen} "
    "ORDER BY student, combination, generation, grader, round, attempt, text",
    key_columns=7,
    reply_column=7,
)
_conversation = itemgetter(0, 1, 2)


class IdRange(NamedTuple):
    """Combination ids from the first up to the end."""

    first: str
    end: str


def id_ranges(count: int) -> list[IdRange]:
    """Ranges that together have every id; ids are hexadecimal hashes, so each range has about as many conversations.

    >>> id_ranges(2)
    [IdRange(first='', end='800'), IdRange(first='800', end='g')]
    """
    bounds = ["", *(f"{number * 4096 // count:03x}" for number in range(1, count)), "g"]
    return [IdRange(first, end) for first, end in pairwise(bounds)]


class KeyRange(NamedTuple):
    """The conversations of one student with some combination ids."""

    student: str
    ids: IdRange
    calls: int
    """The number of the student's calls."""


def key_ranges(journal: JournalReader, calls: int) -> Iterator[KeyRange]:
    """Ranges that together have every conversation, in key order, each with about so many calls of a student.

    Only the index of keys is read. All conversations of a combination are in one range.
    """
    query = (
        "SELECT student, combination, count(*) FROM calls WHERE stage = 'generate' "
        f"{'AND combination IN (SELECT id FROM temp.chosen)' if journal.is_limited else ''} "
        "GROUP BY student, combination ORDER BY student, combination"
    )
    counts = _in_order(merge(*(_rows_of(*file, query, []) for file in journal.files)))
    for student, own in groupby(counts, key=itemgetter(0)):
        first, count, last = "", 0, ""
        for _, combination, more in own:
            if count >= calls and combination != last:
                yield KeyRange(student, IdRange(first, combination), count)
                first, count = combination, 0
            count += more
            last = combination
        yield KeyRange(student, IdRange(first, _AFTER_ANY_ID), count)


_AFTER_ANY_ID: Final = "\U0010ffff"
"""Comes after every text, also after an id that is damaged, which must not be left out in silence."""


def _in_order(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Rows of students and combinations; a damaged index could give them out of order."""
    before: tuple[str, ...] = ()
    for row in rows:
        if row[:2] < before:
            raise UserError("The journal is damaged: its calls are out of order.", hint="Restore it from a copy.")
        before = row[:2]
        yield row


def indexed_conversations(
    journal: JournalReader, *, students: Iterable[str] | None = None, ids: IdRange | None = None
) -> Iterator[ConversationIndex]:
    """Every conversation in key order; of these students and ids if any are named."""
    chosen = _Condition.of(students, ids)
    yield from _joined(_rows(journal, _TURNS, chosen), _rows(journal, _VOTES, chosen))


def conversations_with(
    journal: JournalReader, student: str, keys: Iterable[tuple[str, int]]
) -> Iterator[ConversationIndex]:
    """The conversations of a student with these combinations and generations, looked up in the index of keys."""
    wanted = set(keys)
    ids = sorted({combination for combination, _ in wanted})
    for start in range(0, len(ids), _AT_ONCE):
        part = ids[start : start + _AT_ONCE]
        chosen = _Condition(f"AND student = ? AND combination IN ({', '.join('?' * len(part))})", [student, *part])
        turns, votes = (query._replace(sql=query.sql.replace("NOT INDEXED ", "")) for query in (_TURNS, _VOTES))
        for index in _joined(_rows(journal, turns, chosen), _rows(journal, votes, chosen)):
            if (index.combination, index.generation) in wanted:
                yield index


def _joined(turn_rows: Iterator[tuple[Any, ...]], vote_rows: Iterator[tuple[Any, ...]]) -> Iterator[ConversationIndex]:
    """Conversations from the rows of turns and of votes, both in key order."""
    votes = groupby(vote_rows, key=_conversation)
    group = next(votes, None)
    for key, rows in groupby(turn_rows, key=_conversation):
        turns = tuple([IndexedTurn._make(row[3:]) for row in rows])
        while group is not None and group[0] < key:
            group = next(votes, None)
        gradings: tuple[IndexedVote, ...] = ()
        if group is not None and group[0] == key:
            gradings = tuple([IndexedVote._make(row[3:]) for row in group[1]])
            group = next(votes, None)
        yield ConversationIndex(key[0], key[1], key[2], turns, gradings)


class _Condition(NamedTuple):
    """A condition of a query, and its values."""

    sql: str
    values: list[str]

    @classmethod
    def of(cls, students: Iterable[str] | None, ids: IdRange | None) -> "_Condition":
        sql, values = "", []
        if students is not None:
            values = sorted(set(students))
            sql = f"AND student IN ({', '.join('?' * len(values))})"
        if ids is not None:
            sql += " AND combination >= ? AND combination < ?"
            values += ids
        return cls(sql, values)


def _rows(journal: JournalReader, query: _Query, condition: _Condition) -> Iterator[tuple[Any, ...]]:
    """Rows of all files in order; of a key that several files have, the one with a reply."""
    sql = query.sql.format(chosen=condition.sql)
    chains = [
        chained([_rows_of(*file, sql, condition.values) for file in chain], itemgetter(0), itemgetter(1))
        for chain in chains_of(journal.files, query.stage)
    ]
    if len(chains) <= 1:
        yield from chains[0] if chains else ()
        return
    order = itemgetter(*range(query.key_columns))
    for _, rows in groupby(merge(*chains, key=order), key=order):
        yield max(rows, key=lambda row: row[query.reply_column] is not None)


def _rows_of(path: Path, connection: sqlite3.Connection, query: str, values: list[str]) -> Iterator[tuple[Any, ...]]:
    with telling_what_broke(path):
        for row in connection.execute(query, values):  # noqa: UP028  # see JournalReader._rows
            yield row


_AT_ONCE = 500


def _rows_with(journal: JournalReader, query: str, wanted: list[str]) -> Iterator[tuple[Any, ...]]:
    """Rows whose first column is one of many values, each once; a query takes only some values at a time."""
    for path, connection in journal.files:
        found: set[str] = set()
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            for row in _rows_of(path, connection, f"{query} IN ({', '.join('?' * len(part))})", part):
                found.add(row[0])
                yield row
        wanted = [value for value in wanted if value not in found]


class KnownTexts(NamedTuple):
    """Messages by hash and combinations by id that need not be read from a journal."""

    contents: Mapping[str, str] = {}
    combinations: Mapping[str, Combination] = {}


NOTHING_KNOWN: Final = KnownTexts()


def contents(journal: JournalReader, addresses: Iterable[str], known: KnownTexts = NOTHING_KNOWN) -> dict[str, str]:
    """The messages stored under these hashes, each checked against its hash."""
    wanted = sorted(set(addresses))
    found = {address: known.contents[address] for address in wanted if address in known.contents}
    unread = [address for address in wanted if address not in found]
    for address, role, content in _rows_with(journal, _MESSAGES, unread):
        found[address] = verified_content(address, role, content)
    _require_all(found, wanted, "replies")
    return found


def messages_with(journal: JournalReader, addresses: Iterable[str]) -> dict[str, Message]:
    """The same with their roles."""
    wanted = sorted(set(addresses))
    found = {row[0]: verified_message(*row) for row in _rows_with(journal, _MESSAGES, wanted)}
    _require_all(found, wanted, "messages")
    return found


_MESSAGES: Final = "SELECT hash, role, content FROM messages WHERE hash"


def _require_all(found: Mapping[str, object], wanted: Sequence[str], what: str) -> None:
    if len(found) < len(wanted):
        raise UserError(
            f"The journal is damaged: {len(wanted) - len(found)} {what} are not in it.",
            hint="Nothing was changed. Restore it from a copy.",
        )


def combinations_of(
    journal: JournalReader, ids: Iterable[str], known: KnownTexts = NOTHING_KNOWN, *, is_complete: bool = True
) -> dict[str, Combination]:
    """The combinations with these ids; a name that repeats is in memory once.

    An id that the journal does not have is an error, unless the caller does not need all of them.
    """
    wanted = sorted(set(ids))
    found = {address: known.combinations[address] for address in wanted if address in known.combinations}
    unread = [address for address in wanted if address not in found]
    for row in _rows_with(journal, "SELECT id, skills, topic FROM combinations WHERE id", unread):
        whole = combination_of_row(row)
        skills = tuple([intern(skill) for skill in whole.skills])
        found[whole.id] = Combination(whole.id, skills, intern(whole.topic))
    if is_complete and len(found) < len(wanted):
        raise UserError(
            f"The journal does not say what {len(wanted) - len(found)} of its combinations are.",
            hint="It is damaged. Restore it from a copy.",
        )
    return found


Made = tuple[Request, Outcome]
"""A call of this process, journaled already."""


def conversations_made(calls: Iterable[Sequence[Made]]) -> tuple[list[ConversationIndex], KnownTexts]:
    """Conversations from the calls that this process made or found, in order of their keys, and their texts."""
    indexes: list[ConversationIndex] = []
    words: dict[str, str] = {}
    combinations: dict[str, Combination] = {}
    for own in calls:
        turns, votes = [], []
        for request, outcome in own:
            key = request.key
            reply = None
            if isinstance(outcome, Reply):
                reply = content_address("assistant", outcome.text)
                words[reply] = outcome.text
            if isinstance(key, GenerateKey):
                problem = outcome.kind if isinstance(outcome, CallProblem) else None
                turns.append(IndexedTurn(key.turn, reply, problem, request.model, "call", request.content_hash))
            else:
                votes.append(IndexedVote(key.grader, key.text, key.round, key.attempt, reply))
            if request.subject is not None:
                combinations[key.combination] = request.subject.combination
        turns.sort()
        votes.sort(key=lambda vote: (vote.grader, vote.round, vote.attempt, vote.text))
        indexes.append(ConversationIndex(key.student, key.combination, key.generation, tuple(turns), tuple(votes)))
    return indexes, KnownTexts(words, combinations)
