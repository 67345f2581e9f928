"""Read several journal files in key order; files whose combinations do not overlap need no merging.

The files of a divided journal hold ranges of combination ids, so the rows of a student are those of the first file,
then those of the next. The indexes show whether ranges overlap: answers of people, and files from before a run was
divided otherwise, hold ids of any range and form a chain of their own.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from skillmix.errors import UserError
from skillmix.runs.journal.schema import telling_what_broke

Stage = Literal["generate", "grade"]
OpenFile = tuple[Path, sqlite3.Connection]
Row = TypeVar("Row")

_NEXT_STUDENT: Final = "SELECT min(student) FROM calls WHERE stage = '{stage}' AND student > ?"
# Two queries: SQLite answers one `min` or one `max` from an index, but reads all rows for both.
_ENDS: Final = (
    "SELECT (SELECT min(combination) FROM calls WHERE stage = '{stage}' AND student = :student), "
    "(SELECT max(combination) FROM calls WHERE stage = '{stage}' AND student = :student)"
)


class IdSpan(NamedTuple):
    """The first and the last combination id of some rows."""

    first: str
    last: str


def span_of(file: OpenFile, stage: Stage) -> IdSpan | None:
    """The ids of a file's calls of a stage, whoever the student is; None if it has none."""
    path, connection = file
    ends: list[str] = []
    student = ""
    with telling_what_broke(path):
        while (student := connection.execute(_NEXT_STUDENT.format(stage=stage), (student,)).fetchone()[0]) is not None:
            ends += connection.execute(_ENDS.format(stage=stage), {"student": student}).fetchone()
    return IdSpan(min(ends), max(ends)) if ends else None


def chains_of(files: Sequence[OpenFile], stage: Stage) -> list[list[OpenFile]]:
    """The files with calls of a stage in chains; in a chain, all ids of a file come after those of the one before.

    A single file is a chain, with or without calls of the stage.
    """
    if len(files) == 1:
        return [list(files)]
    spans = [(span, file) for file in files if (span := span_of(file, stage)) is not None]
    chains: list[list[OpenFile]] = []
    ends: list[str] = []
    for span, file in sorted(spans, key=lambda pair: pair[0]):
        at = next((at for at, end in enumerate(ends) if end < span.first), None)
        if at is None:
            chains.append([file])
            ends.append(span.last)
        else:
            chains[at].append(file)
            ends[at] = span.last
    return chains


def chained(
    files: Sequence[Iterator[Row]], student_of: Callable[[Row], str], id_of: Callable[[Row], str]
) -> Iterator[Row]:
    """The rows of a chain in key order: student by student, and file by file.

    >>> files = [iter([("a", "1"), ("b", "0")]), iter([("a", "7"), ("a", "8")])]
    >>> [student + id for student, id in chained(files, lambda row: row[0], lambda row: row[1])]
    ['a1', 'a7', 'a8', 'b0']
    """
    if len(files) == 1:
        yield from files[0]
        return
    heads = [next(rows, None) for rows in files]
    while waiting := [student_of(row) for row in heads if row is not None]:
        student = min(waiting)
        last: str | None = None
        for number, rows in enumerate(files):
            row = heads[number]
            if row is None or student_of(row) != student:
                continue
            _require_order(last, id_of(row))
            while row is not None and student_of(row) == student:
                before = row
                yield row
                row = next(rows, None)
            last = id_of(before)
            heads[number] = row


def _require_order(before: str | None, after: str) -> None:
    """Refuse rows out of order: another process has divided the journal anew since the ranges were looked up."""
    if before is not None and after <= before:
        raise UserError("The journal was divided anew while it was read.", hint="Run the same command again.")
