"""Read a grader's reply: points for every criterion, or the reason why the reply cannot be read.

A reply that cannot be read is a value with a reason, never a zero. A row belongs to a criterion if the names are equal.
Totals decide nothing. A grade that only repeats the student's text does not count.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from skillmix.grading.injections import NOTHING_TO_QUOTE, Quotable, pair_label, quotable
from skillmix.grading.point_lines import LineReader, Mark
from skillmix.grading.tables import NOT_A_GRADING, Table, is_plain_header, label_column, parts_of, value_column
from skillmix.grading.values import read_value
from skillmix.prompts.rubric import Rubric

_ROW = re.compile(r"^\|([^|\n]*)\|([^|\n]*)\|[ \t]*$", re.MULTILINE)


_POINT: Final = {"0": 0.0, "1": 1.0}


_SPECIAL: Final = (">", "```", "~~~", "\r", "\\|")


class PlainTable(NamedTuple):
    """Points by index of the criterion, and the total if the table has one."""

    points: dict[int, float]
    total: float | None


def read_plain_table(rubric: Rubric, reply: str) -> PlainTable | None:
    """Read a reply that is one plain table with every criterion once (length is optional); None for any other form."""
    rows = _ROW.findall(reply)
    if len(rows) < rubric.k + 4 or any(mark in reply for mark in _SPECIAL):
        return None
    start, end = reply.find("|"), reply.rfind("|")
    is_one_table = reply.count("|") == 3 * len(rows) and reply.count("\n", start, end) == len(rows) - 1
    header, rule, *rest = rows
    if not is_one_table or "".join(rule).strip("-: ") or not is_plain_header(header[0], header[1]):
        return None
    table = _points(rubric, rest)
    if table is None or len(table.points.keys() - {rubric.k + 2}) < rubric.k + 2:
        return None
    prose = [line for line in (reply[:start] + reply[end + 1 :]).splitlines() if line]
    lines = LineReader(rubric, prose, student=NOTHING_TO_QUOTE)
    return None if any(lines.marks(line) for line in prose) else table


def _points(rubric: Rubric, rows: list[tuple[str, str]]) -> PlainTable | None:
    points: dict[int, float] = {}
    total = None
    for label, cell in rows:
        label, cell = label.strip(), cell.strip()
        index = rubric.criterion_of(label) if 0 < len(label) <= rubric.longest_label else None
        if index is None:
            if total is not None or not label.casefold().startswith("total") or not cell.isdecimal():
                return None
            total = float(cell)
        elif index in points or cell not in _POINT:
            return None
        else:
            points[index] = _POINT[cell]
    return PlainTable(points, total)


@dataclass(frozen=True, slots=True)
class Reading:
    """Points in the rubric's order (the last one, length, may be unknown), or the problem."""

    points: tuple[float | None, ...] | None
    problem: str | None
    notes: tuple[str, ...] = ()

    def by_name(self, rubric: Rubric) -> dict[str, float | None] | None:
        """Points by name of the criterion, as outputs show them."""
        if self.points is None:
            return None
        return {c.name: point for c, point in zip(rubric.criteria, self.points, strict=True)}


def read_grades(rubric: Rubric, reply: str, *, text: str | None = None) -> Reading:
    r"""Read a grader's reply about a student's text.

    >>> from skillmix.prompts.rubric import rubric_of
    >>> read_grades(rubric_of(["metaphor"], "Sewing"), "metaphor | 1\nOn topic | 1\nMakes sense | 0").points
    (1.0, 1.0, 0.0, None)
    """
    if not reply.strip():
        return Reading(None, "the reply is empty")
    student = quotable(text, rubric)
    plain = None if student.words else read_plain_table(rubric, reply)
    if plain is not None:
        return _reading_of_plain(rubric, reply, plain)
    return read_any_form(rubric, reply, student)


def read_any_form(rubric: Rubric, reply: str, student: Quotable) -> Reading:
    """Read a reply of any form, including the plain one."""
    blocks, notes = _blocks(rubric, reply, student)
    own = _without_quotations(blocks, student)
    if len(own) < len(blocks):
        notes.append("a grading that is part of the student's own text was not counted")
    if not own:
        return Reading(None, _why_nothing(blocks, notes), tuple(notes))
    points, problem = _settle(rubric, own)
    if points is None:
        return Reading(None, problem, tuple(notes))
    return _whole_reading(reply, points, notes, [block.total for block in own])


def _reading_of_plain(rubric: Rubric, reply: str, plain: PlainTable) -> Reading:
    points = tuple(plain.points.get(index) for index in range(len(rubric.criteria)))
    return _whole_reading(reply, points, [], [plain.total])


def _whole_reading(
    reply: str, points: tuple[float | None, ...], notes: list[str], totals: list[float | None]
) -> Reading:
    if 0 not in points and _declines(reply):
        # A list of what each criterion is worth looks like full marks; the refusal shows that it is no grading.
        problem = "the reply says that it does not grade, although it gives every point"
        return Reading(None, problem, tuple(notes))
    earned = sum(point for point in points if point is not None)
    for total in totals:
        if total is not None and total != earned:
            notes.append(f"the total {total:g} differs from the sum of the points {earned:g}")
    return Reading(points, None, tuple(notes))


def _why_nothing(blocks: "list[_Block]", notes: list[str]) -> str:
    if blocks:
        return "the reply only repeats the student's text"
    return NOT_A_GRADING if NOT_A_GRADING in notes else "no table and no point lines were found"


def _declines(reply: str) -> bool:
    lowered = reply.lower().replace("’", "'")
    # Plain searches first: the regular expression alone would take as long as the rest of the reader.
    for words in _UNWILLING:
        if words in lowered:
            return _DECLINES.search(lowered) is not None
    return False


# fmt: off
_UNWILLING: Final = (
    "cannot", "can't", "unable to", "not able to", "not possible to", "impossible to", "won't", "will not",
    "decline to",
)
# fmt: on
_DECLINES = re.compile(
    rf"\b(?:{'|'.join(_UNWILLING)})\s+(?:\w+\s+)?(?:grade|mark|assess|evaluate|score)\b"
    r"(?!\s+(?:\w+\s+){0,3}(?:down|off|lower|higher|less|more)\b)"
)


@dataclass(slots=True)
class _Block:
    """Marks of one table, or of lines with no other text between them."""

    is_table: bool
    marks: list[Mark]
    fault: str | None = None
    total: float | None = None


def _blocks(rubric: Rubric, reply: str, student: Quotable) -> tuple[list[_Block], list[str]]:
    blocks: list[_Block] = []
    notes: list[str] = []
    lines: list[Mark] = []
    # If the student's text holds a grade, a quotation of it may be adjacent to the grader's own table.
    parts = list(parts_of(reply, blank_lines_end_tables=bool(student.words)))
    reader = LineReader(rubric, [part for part in parts if isinstance(part, str)], student=student)
    for part in parts:
        marks = [] if isinstance(part, Table) else reader.marks(part)
        if lines and not marks:
            blocks.append(_Block(is_table=False, marks=lines))
            lines = []
        if marks:
            lines.extend(marks)
        elif isinstance(part, Table):
            block = _table_block(rubric, part, notes)
            if block is not None:
                blocks.append(block)
    if lines:
        blocks.append(_Block(is_table=False, marks=lines))
    return blocks, notes


def _table_block(rubric: Rubric, table: Table, notes: list[str]) -> _Block | None:
    labelled = list(_labelled_rows(rubric, table))
    if not labelled:
        return None
    rows = [table.rows[number] for number, _, _ in labelled]
    column = value_column(table, labelled[0][1], rows)
    if column == NOT_A_GRADING:
        notes.append(NOT_A_GRADING)
        return None
    block = _Block(is_table=True, marks=[])
    if isinstance(column, str):
        block.fault = column
    for number, own_column, index in labelled:
        row = table.rows[number]
        line = " ".join(row)
        if isinstance(column, str):
            block.marks.append(Mark(index, None, "", row[own_column], line))
            continue
        cell = row[column] if column < len(row) and column != own_column else ""
        broken_off = table.last_row_open and number == len(table.rows) - 1
        if cell and not broken_off:
            block.marks.append(Mark(index, read_value(cell), cell[:40], row[own_column], line))
    block.total = _total_of(table, column, {number for number, _, _ in labelled}, notes)
    return block if block.marks else None


def _labelled_rows(rubric: Rubric, table: Table) -> Iterator[tuple[int, int, int]]:
    """For each row about a criterion: row number, label column and index of the criterion."""
    by_header = label_column(table)
    for number, row in enumerate(table.rows):
        columns = range(min(len(row), _MOST_LABEL_COLUMNS)) if by_header is None else range(by_header, by_header + 1)
        for column in columns:
            cell = row[column] if column < len(row) else ""
            index = rubric.criterion_of(cell) if cell and len(cell) <= rubric.longest_label else None
            if index is not None:
                yield number, column, index
                break


_MOST_LABEL_COLUMNS = 4


def _total_of(table: Table, column: int | str, labelled: set[int], notes: list[str]) -> float | None:
    total = None
    for number, row in enumerate(table.rows):
        if number in labelled or isinstance(column, str) or column >= len(row):
            continue
        if "total" in row[0].casefold():
            total = read_value(row[column].partition("/")[0])
        elif read_value(row[column]) is not None:
            notes.append(f"a row matches no criterion: {row[0][:60]!r}")
    return total


def _without_quotations(blocks: list[_Block], student: Quotable) -> list[_Block]:
    """The blocks without marks that only repeat the student's text."""
    if not student.words:
        return blocks
    own = []
    for block in blocks:
        block.marks = _without_run(block.marks, student)
        if not all(student.has(mark.label, mark.value, mark.line) for mark in block.marks):
            own.append(block)
    return own


def _without_run(marks: list[Mark], student: Quotable) -> list[Mark]:
    """The marks without a complete quotation of the student's grades, if a quoted criterion also has another mark."""
    count = len(student.pairs)
    if not 0 < count < len(marks):
        return marks
    all_counts = Counter(mark.criterion_index for mark in marks)
    for start in run_starts([(pair_label(mark.label), mark.value) for mark in marks], student.pairs):
        quoted = Counter(mark.criterion_index for mark in marks[start : start + count])
        if any(all_counts[index] > times for index, times in quoted.items()):
            return marks[:start] + marks[start + count :]
    return marks


def run_starts(items: Sequence[object], run: Sequence[object]) -> Iterator[int]:
    """Every index at which `run` starts in `items`, in linear time (Knuth, Morris and Pratt).

    >>> list(run_starts("abababa", "aba"))
    [0, 2, 4]
    """
    back = _fallbacks(run)
    length = 0
    for number, item in enumerate(items):
        while length and (length == len(run) or run[length] != item):
            length = back[length - 1]
        length += run[length] == item
        if length == len(run):
            yield number - length + 1


def _fallbacks(run: Sequence[object]) -> list[int]:
    """For each prefix of a run, the length of its longest proper prefix that is also its suffix."""
    back = [0] * len(run)
    length = 0
    for number in range(1, len(run)):
        while length and run[length] != run[number]:
            length = back[length - 1]
        length += run[length] == run[number]
        back[number] = length
    return back


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The points that a set of marks gives, and the faults in it."""

    points: dict[int, float]
    faults: tuple[str, ...]
    seen: frozenset[int]


def _settle(rubric: Rubric, blocks: list[_Block]) -> tuple[tuple[float | None, ...] | None, str | None]:
    needed = frozenset(range(rubric.k + 2))
    tables = [b for b in blocks if b.is_table]
    line_marks = [mark for b in blocks if not b.is_table for mark in b.marks]
    candidates = [_candidate(rubric, b.marks, b.fault) for b in tables]
    candidates += [_candidate(rubric, marks) for marks in _line_gradings(line_marks, needed)]
    covering = [c for c in candidates if needed <= c.seen]
    if not covering:
        # Two partial tables, or a table of skills and lines for the rest, may make one grading.
        for blocks_together in (tables, blocks):
            together = _candidate(rubric, [mark for b in blocks_together for mark in b.marks])
            if needed <= together.seen:
                covering = [together]
                break
    if not covering:
        return None, _why_incomplete(rubric, candidates, needed)
    for candidate in covering:
        if candidate.faults:
            return None, candidate.faults[0]
    # Lines must agree with a partial table; remarks next to a complete table are ignored.
    partial_tables = [c for c in candidates[: len(tables)] if not needed <= c.seen]
    if covering[0] in candidates[len(tables) :]:
        covering = [*covering, *partial_tables]
    return _agreed(rubric, covering)


def _line_gradings(marks: list[Mark], needed: frozenset[int]) -> Iterator[list[Mark]]:
    """Cut point lines into gradings; a new grading starts when a criterion returns after every criterion has a mark.

    A last, partial grading is added to the one before where the two differ, which makes that one ambiguous.
    """
    gradings: list[list[Mark]] = []
    seen: set[int] = set()
    for mark in marks:
        if not gradings or (mark.criterion_index in seen and needed <= seen):
            gradings.append([])
            seen = set()
        gradings[-1].append(mark)
        seen.add(mark.criterion_index)
    if len(gradings) > 1 and not needed <= seen:
        leftover = gradings.pop()
        given = {mark.criterion_index: mark.value for mark in gradings[-1]}
        gradings[-1] += [mark for mark in leftover if mark.value != given.get(mark.criterion_index, mark.value)]
    yield from gradings


def _candidate(rubric: Rubric, marks: Sequence[Mark], fault: str | None = None) -> _Candidate:
    points: dict[int, float] = {}
    faults = [fault] if fault else []
    seen: set[int] = set()
    for mark in marks:
        name = rubric.criteria[mark.criterion_index].name
        if mark.criterion_index in seen:
            faults.append(f"more than one point for: {name}")
        elif mark.value is None:
            faults.append(f"the value {mark.cell!r} for {name} is not a number from 0 to 1")
        elif not 0 <= mark.value <= 1:
            faults.append(f"the value {mark.cell!r} for {name} is outside 0..1")
        else:
            points[mark.criterion_index] = mark.value
        seen.add(mark.criterion_index)
    return _Candidate(points, tuple(faults), frozenset(seen))


def _why_incomplete(rubric: Rubric, candidates: list[_Candidate], needed: frozenset[int]) -> str:
    best = max(candidates, key=lambda c: len(c.seen & needed))
    missing = [rubric.criteria[index].name for index in sorted(needed - best.seen)]
    reasons = [f"no point found for: {', '.join(missing)}", *best.faults]
    return "; ".join(reasons)


def _agreed(rubric: Rubric, covering: list[_Candidate]) -> tuple[tuple[float | None, ...] | None, str | None]:
    if len(covering) == 1:
        only = covering[0].points
        return tuple(only.get(index) for index in range(len(rubric.criteria))), None
    points: list[float | None] = []
    for index, criterion in enumerate(rubric.criteria):
        values = {c.points[index] for c in covering if index in c.points}
        if len(values) > 1:
            return None, f"two gradings in the reply disagree on: {criterion.name}"
        points.append(values.pop() if values else None)
    return tuple(points), None
