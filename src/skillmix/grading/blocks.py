"""Find the blocks of a reply that give points: tables, and lines with no other text between them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from skillmix.catalog.names import fold_name
from skillmix.grading.injections import Quotable, pair_label
from skillmix.grading.point_lines import FindCriterion, LineReader, Mark
from skillmix.grading.tables import NOT_A_GRADING, Table, label_column, parts_of, value_column
from skillmix.grading.values import read_value
from skillmix.prompts.rubric import Rubric


@dataclass(slots=True)
class Block:
    """Marks of one table, or of lines with no other text between them."""

    is_table: bool
    marks: list[Mark]
    fault: str | None = None
    total: float | None = None


@dataclass(slots=True)
class Parsed:
    """The blocks of a reply, notes, and the labels of rows and lines that stand for no criterion."""

    blocks: list[Block] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown_rows: list[str] = field(default_factory=list)
    unknown_lines: list[str] = field(default_factory=list)


def parse(rubric: Rubric, reply: str, student: Quotable, loosely: FindCriterion | None) -> Parsed:
    """Find the tables and lines of a reply that give points to criteria."""
    parsed = Parsed()
    lines: list[Mark] = []
    # If the student's text holds a grade, a quotation of it may be adjacent to the grader's own table.
    parts = list(parts_of(reply, blank_lines_end_tables=bool(student.words)))
    texts = [part for part in parts if isinstance(part, str)]
    reader = LineReader(rubric, texts, student=student, loosely=loosely)
    for part in parts:
        marks = [] if isinstance(part, Table) else reader.marks(part)
        if lines and not marks:
            parsed.blocks.append(Block(is_table=False, marks=lines))
            lines = []
        if marks:
            lines.extend(marks)
        elif isinstance(part, Table):
            block = _table_block(rubric, part, parsed, loosely)
            if block is not None:
                parsed.blocks.append(block)
    if lines:
        parsed.blocks.append(Block(is_table=False, marks=lines))
    parsed.unknown_lines = reader.unknown_labels
    return parsed


def _table_block(rubric: Rubric, table: Table, parsed: Parsed, loosely: FindCriterion | None) -> Block | None:
    labelled = list(_labelled_rows(rubric, table))
    if loosely is not None:
        labelled = _with_loose_rows(rubric, table, labelled, loosely)
    if not labelled:
        return None
    rows = [table.rows[number] for number, _, _ in labelled]
    column = value_column(table, labelled[0][1], rows)
    if column == NOT_A_GRADING:
        parsed.notes.append(NOT_A_GRADING)
        return None
    fault = column if isinstance(column, str) else None
    block = Block(is_table=True, marks=[], fault=fault)
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
    others = [row for number, row in enumerate(table.rows) if number not in {n for n, _, _ in labelled}]
    block.total = _total_of(others, column, parsed.notes)
    if loosely is not None and isinstance(column, int):
        parsed.unknown_rows += _unknown_labels(others, labelled[0][1], column)
    return block if block.marks else None


def _unknown_labels(rows: list[list[str]], labels: int, values: int) -> list[str]:
    """The labels of rows that have something in the column of points."""
    cells = [(row[labels], row[values]) for row in rows if max(labels, values) < len(row)]
    return [label for label, cell in cells if fold_name(label) and (fold_name(cell) or read_value(cell) is not None)]


def _with_loose_rows(
    rubric: Rubric, table: Table, labelled: list[tuple[int, int, int]], loosely: FindCriterion
) -> list[tuple[int, int, int]]:
    """The rows about a criterion, with those whose label stands for one only loosely."""
    column = label_column(table)
    if column is None:
        column = labelled[0][1] if labelled else _first_column_of_words(table)
    taken = {number for number, _, _ in labelled}
    found = list(labelled)
    for number, row in enumerate(table.rows):
        cell = row[column] if number not in taken and column < len(row) else ""
        index = loosely(cell) if 0 < len(cell) <= rubric.longest_label else None
        if index is not None:
            found.append((number, column, index))
    return sorted(found)


def _first_column_of_words(table: Table) -> int:
    for column in range(_MOST_LABEL_COLUMNS):
        if any(len(fold_name(row[column])) > 2 for row in table.rows if column < len(row)):
            return column
    return 0


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


def _total_of(rows: list[list[str]], column: int | str, notes: list[str]) -> float | None:
    total = None
    for row in rows:
        if isinstance(column, str) or column >= len(row):
            continue
        if "total" in row[0].casefold():
            total = read_value(row[column].partition("/")[0])
        elif read_value(row[column]) is not None:
            notes.append(f"a row matches no criterion: {row[0][:60]!r}")
    return total


def without_quotations(blocks: list[Block], student: Quotable) -> list[Block]:
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
