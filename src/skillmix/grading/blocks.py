"""Find the blocks of a reply that contain points: tables, and lines with no other text between them.

A line states a point after a label, as in 'Metaphor: 1', or at the end of a remark, as in 'Point earned: 0'. A grade
that only repeats the student's text does not count.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from skillmix.catalog.catalog import APOSTROPHES, INVISIBLE, fold_name
from skillmix.grading.tables import (
    NOT_A_GRADING,
    VALUE_SIGNS,
    VALUE_WORD,
    Table,
    has_value_sign,
    label_column,
    parts_of,
    read_leading_value,
    read_value,
    value_column,
    with_json_as_tables,
)
from skillmix.prompts.rubric import Rubric, label_forms, starts_like_a_criterion

Pair = tuple[str, float]
"""A folded label without numbering, and its value."""

_BORDER = re.compile(r"[｜│┃∣║]")
_ANY_DELIMITER = re.compile(r"[:=→>\t(\[：-]")
_VALUE_WORD = re.compile(rf"\b{VALUE_WORD}", re.IGNORECASE)
_TOKEN = re.compile(
    rf"(?P<value>\d+(?:\.\d+)?(?:\s*/\s*1\b)?|[{VALUE_SIGNS[2:]}]|{VALUE_WORD})|(?P<word>[^\W\d_]+)", re.I
)
_EARNED = re.compile(r"\bpoints?\s+(?:earned|awarded|given|received|scored)\b", re.IGNORECASE)
_EARNED_WORDS: Final = {"earned", "awarded", "given", "received", "scored"}
_FIELDS: Final = {"points", "point", "score", "value", "grade", "mark", "result", "met"}
_LONGEST_LABEL: Final = 16
_LINES_TOGETHER: Final = 3
_OPENING_QUOTES: Final = ('"', "“", "«", "'", "‘")
_CLOSING_QUOTE = re.compile(r"[\"”»’']")


@dataclass(frozen=True, slots=True)
class Quotable:
    """The parts of a student's text that could be mistaken for a grade."""

    words: str
    lines: frozenset[str]
    pairs: tuple[Pair, ...]
    """Labels of criteria, each with the value after it, in order."""

    def has(self, label: str, value: float | None, line: str) -> bool:
        """Return whether a grader's row or line repeats a label with its value, or a whole line, from the text."""
        return (value is not None and (pair_label(label), value) in self.pairs) or fold_name(line) in self.lines

    def has_quoted(self, before: str, statement: str) -> bool:
        """Return whether a statement follows an opening quotation mark and also occurs in the student's text."""
        if not self.words or not before.rstrip().endswith(_OPENING_QUOTES):
            return False
        quoted = fold_name(_CLOSING_QUOTE.split(statement, maxsplit=1)[0])
        return f" {quoted} " in self.words


NOTHING_TO_QUOTE: Final = Quotable("", frozenset(), ())


def pair_label(label: str) -> str:
    """Normalize a label to the form used in `Quotable.pairs`."""
    return label_forms(label).plain[-1]


def quotable(text: str | None, rubric: Rubric) -> Quotable:
    """Collect the parts of a student's text that look like a grade when quoted; almost all texts have none."""
    if not text:
        return NOTHING_TO_QUOTE
    has_sign = has_value_sign(text) or "|" in text or (not text.isascii() and _BORDER.search(text))
    if not has_sign and not (_ANY_DELIMITER.search(text) and _VALUE_WORD.search(text)):
        return NOTHING_TO_QUOTE
    return _quotable(text, rubric)


@lru_cache(maxsize=1024)  # all replies about one text are parsed in succession
def _quotable(text: str, rubric: Rubric) -> Quotable:
    text = with_json_as_tables(text)
    text = INVISIBLE.sub("", unicodedata.normalize("NFKC", text.replace("½", "0.5")))
    pairs = _pairs(text, rubric)
    lines = _lines_together(text) if _EARNED.search(text) else frozenset[str]()
    if not pairs and not lines:
        return NOTHING_TO_QUOTE
    return Quotable(f" {fold_name(text)} ", lines, tuple(pairs))


def _lines_together(text: str) -> frozenset[str]:
    """Return each line, and each two or three consecutive lines joined, because a label may be above its value."""
    lines = [line for line in text.splitlines() if line.strip()]
    return frozenset(
        fold_name(" ".join(lines[start : start + count]))
        for start in range(len(lines))
        for count in range(1, _LINES_TOGETHER + 1)
    )


def _pairs(text: str, rubric: Rubric) -> list[Pair]:
    """Pair each value with the longest sequence of words before it that is a criterion's label."""
    pairs: list[Pair] = []
    words: list[str] = []
    for token in _TOKEN.finditer(APOSTROPHES.sub("", text)):
        if token["word"] is not None:
            words.append(token["word"])
            continue
        value = read_value(token["value"])
        label = _label_at_end(words, rubric)
        if label is not None and value is not None:
            pairs.append((label, value))
        words.append(token["value"])  # a label may contain digits
    return pairs


def _label_at_end(words: list[str], rubric: Rubric) -> str | None:
    end = len(words)
    if end >= 2 and words[-1].lower() in _EARNED_WORDS and words[-2].lower() in ("point", "points"):
        end -= 2
    elif end >= 2 and words[-1].lower() in _FIELDS and fold_name(words[-1]) not in rubric.label_ends:
        end -= 1  # the last word is the name of a JSON field
    if end == 0 or fold_name(words[end - 1]) not in rubric.label_ends:
        return None
    for start in range(max(0, end - _LONGEST_LABEL), end):
        label = " ".join(words[start:end])
        if rubric.criterion_of(label) is not None:
            return fold_name(label)
    return None


FindCriterion = Callable[[str], int | None]
"""Returns the index of the criterion that a label refers to."""


class Mark(NamedTuple):
    """The point that a row or a line states for one criterion."""

    criterion_index: int
    value: float | None
    cell: str
    label: str
    line: str


class _Heading(NamedTuple):
    """A criterion in a heading, to which a later 'Point earned' may refer."""

    criterion_index: int
    label: str
    line: str


# This search starts with a literal and runs on lower-case text, which is ten times as fast in prose.
_MAY_STATE = re.compile(r"points?\s+(?:earned|awarded|given|received|scored)\b[^\n]{0,260}?[:=]")
_STATEMENT = re.compile(
    r"\bpoints?\s+(?:earned|awarded|given|received|scored)\b(?:\s*\([^()]{0,12}\))?"
    r"(?:\s++for\s++(?P<label>[^\n]{1,250}?))?\s*+(?:[*_`\"]++\s*+)?[:=]\s*+(?:[*_`\"]++\s*+)?(?P<value>[^\n]*)",
    re.IGNORECASE,
)
_TOTAL: Final = re.compile(r"\b(?:total|overall|sum|grade|final|score)\b[^.;]{0,20}$", re.IGNORECASE)
_BULLET = re.compile(r"^[\s>#*\-•+·▪◦‣]+(?=\S)")
_OPENS_VALUE: Final = r"(?:[:=→(\[]|\s(?:-{1,3}|[–—])|[-–—]>|\t|\s\s|,|(?<!\.)\.{3,40})[\s*_`\"“]{0,8}"
_LABEL_THEN_NUMBER = re.compile(rf"{_OPENS_VALUE}[-+−]?\.?[{VALUE_SIGNS}]")
# These expressions search lower-case text. Two blanks have a separate expression, because a search that may start at
# every blank is three times as slow.
_LABEL_THEN_WORD = re.compile(rf"[:=→(\[\t–—>-][\s*_`\"“]{{0,8}}{VALUE_WORD}")
_BLANKS_THEN_WORD = re.compile(rf"  [\s*_`\"“]{{0,8}}{VALUE_WORD}")
_DELIMITER = re.compile(r"\s*(?:[:=→(\[,]|\s(?:-{1,3}|[–—])(?=\s)|[-–—]>|\t|\s{2,}|(?<!\.)\.{3,40})\s*")
_BRACKETED_VALUE = re.compile(r"([^()\[\]]+)[)\]]\W*$")
# A match begins in a run of blanks only at the start of the run, or right after a dash that ended the previous match.
_HEADING_END = re.compile(r"(?:(?<!\s)|(?<=\s[-–—]\s))(?:\s*+(?::|\.(?=[*_]{0,3}\s)|$)|\s++(?:[-–—]|->|→)\s)")
_NUMBERING = re.compile(r"^(?:(?:criterion|skill|item)\s)?\(?(?:\d{1,2}|[a-h](?=\)))\s?[.):–—-]\s+", re.IGNORECASE)
_BETWEEN_REMARKS = re.compile(r"[;,.]\s+")
_MARKED_HEADING = re.compile(r"^\s*(?:#+\s|\*\*[^*]+\*\*\W*$|\(?\d{1,2}[.)]\s)|:\s*$")
# A line with a short remark refers to a criterion, but states no point.
_NO_POINT = re.compile(r"[:=][\s*_`(]*+(?:n/?a|none|unknown|unclear|[-–—?])[\s*_`).?-]*+$", re.IGNORECASE)
_MOST_DELIMITERS: Final = 12
_ROOM_FOR_VALUE: Final = 20
_LONGEST_HEADING: Final = 300
_LONGEST_TOTAL: Final = 40
"""A statement is about the sum if a word such as "total" occurs within this many characters before it."""
_AFTER_LABEL: Final = " :.-–—(*_"


def _without_bullet(line: str) -> str:
    bullet = _BULLET.match(line)
    return line[bullet.end() :] if bullet else line


def _label_before(text: str) -> str:
    """Return the part of a line before its first colon, full stop or dash."""
    bare = _NUMBERING.sub("", _without_bullet(text).strip().rstrip("*_")[:_LONGEST_HEADING])
    end = _HEADING_END.search(bare)
    return bare[: end.start()] if end else bare


def _gives_a_word(text: str) -> bool:
    if _LABEL_THEN_WORD.search(text):
        return True
    return "  " in text and _BLANKS_THEN_WORD.search(text) is not None


class LineReader:
    """Reads lines in order and remembers the last heading, for a later 'Point earned'.

    `loosely`, if given, finds the criterion for a label that equals no name. The reader then also collects the labels
    that match no criterion.
    """

    def __init__(
        self, rubric: Rubric, lines: list[str], *, student: Quotable, loosely: FindCriterion | None = None
    ) -> None:
        self._rubric = rubric
        self._student = student
        self._loosely = loosely
        self.unknown_labels: list[str] = []
        self._heading: _Heading | None = None
        self._unknown_heading = ""
        self._follows_a_statement = True
        # Most replies are a table with prose around it, so one search in all the prose saves a search in each line.
        prose = "\n".join(lines).lower()
        self._has_statements = _MAY_STATE.search(prose) is not None
        self._has_numbers = has_value_sign(prose)
        self._has_words = not self._has_statements and _gives_a_word(prose)

    def marks(self, line: str) -> list[Mark]:
        """Return the points in one line; most lines have none."""
        if not (self._has_statements or self._has_numbers or self._has_words):
            return []
        if self._has_statements and _EARNED.search(line):
            return list(self._from_statements(line))
        # A value must come early in the line.
        head = line[: self._rubric.longest_label + _ROOM_FOR_VALUE]
        # In a reply with 'Point earned' lines, "Yes, …" is a remark and not a point.
        has_word = self._has_words and _gives_a_word(head.lower())
        if has_word or (self._has_numbers and _LABEL_THEN_NUMBER.search(head)):
            return list(self._from_label(line))
        if self._has_statements:
            self._take_heading(line)
        elif self._loosely is not None and len(line) <= self._rubric.longest_label + _ROOM_FOR_VALUE:
            no_point = _NO_POINT.search(line)
            self._list_unknown(line[: no_point.start()] if no_point else "")
        return []

    def _from_statements(self, line: str) -> Iterator[Mark]:
        starts = [match.start() for match in _EARNED.finditer(line)]
        own: _Heading | None = None
        for start, end in zip(starts, [*starts[1:], len(line)], strict=True):
            statement = _STATEMENT.match(line[start:end])
            before = line[:start]
            if statement is None or self._student.has_quoted(before, statement[0]):
                continue
            heading = self._heading_of(statement["label"], before, line) or own
            value = statement["value"].strip()
            if heading is not None and value:
                yield Mark(heading.criterion_index, read_leading_value(value), value[:40], heading.label, heading.line)
                own, self._heading = heading, None
            elif value:
                self._list_unknown(statement["label"] or self._unknown_heading or _label_before(before))
            self._unknown_heading, self._follows_a_statement = "", True

    def _list_unknown(self, label: str) -> None:
        label = _without_bullet(label).strip()
        if self._loosely is not None and label and len(label) <= self._rubric.longest_label:
            self.unknown_labels.append(label)

    def _heading_of(self, label: str | None, before: str, line: str) -> _Heading | None:
        """Find the criterion of a statement: in the statement, at the start of its line, or in a heading above."""
        if label:
            return self._heading_named(label, line)
        before = _without_bullet(before).strip()
        if not before:
            above = self._heading
            return above and above._replace(line=f"{above.line} {line}")
        # A line may contain thousands of statements, so only a limited part of the text before each is searched.
        near = len(before.rstrip(_AFTER_LABEL)) - 2 * self._rubric.longest_label
        tail = _BETWEEN_REMARKS.split(before[max(0, near) :])[-1]
        heading = self._heading_named(tail.rstrip(_AFTER_LABEL), line) or self._heading_named(
            before.rstrip(_AFTER_LABEL), line
        )
        heading = heading or self._label_at_start(before, line)
        if heading is None and not _TOTAL.search(before[-_LONGEST_TOTAL:]):
            return self._heading
        return heading

    def _from_label(self, line: str) -> Iterator[Mark]:
        bare = _without_bullet(line).rstrip()
        best: tuple[_Heading, str, str] | None = None
        delimiters = list(_DELIMITER.finditer(bare))[:_MOST_DELIMITERS]
        for delimiter in delimiters:
            heading = self._heading_named(bare[: delimiter.start()], line)
            if heading is not None:
                best = heading, delimiter[0].strip(), bare[delimiter.end() :]
        if best is None:
            values = (d for d in delimiters if self._value_after(d[0].strip(), bare[d.end() :]) is not None)
            first = next(values, None) if self._loosely else None
            if first is not None:
                self._list_unknown(bare[: first.start()])
            return
        heading, delimiter_text, rest = best
        value = self._value_after(delimiter_text, rest)
        if value is None:
            self._heading = heading
        else:
            yield Mark(heading.criterion_index, value, rest[:40], heading.label, line)

    def _value_after(self, delimiter: str, rest: str) -> float | None:
        words = not self._has_statements
        if delimiter in ("(", "["):
            # 'Metaphor (1)' states a point; 'Metaphor (1 point)' states the maximum of the criterion.
            bracketed = _BRACKETED_VALUE.match(rest)
            if bracketed is None or "point" in bracketed[1].lower():
                return None
            rest = bracketed[1]
        return read_leading_value(rest.strip("\"“”'"), words=words)

    def _take_heading(self, line: str) -> None:
        is_marked = _MARKED_HEADING.search(line) is not None or starts_like_a_criterion(line)
        # A sentence in the middle of a remark may begin with the name of a criterion without being its heading.
        may_be_loose = is_marked or self._follows_a_statement
        heading = self._label_at_start(line, line, may_be_loose=may_be_loose)
        if heading is not None or is_marked:
            self._heading = heading
        if heading is not None or may_be_loose:
            self._unknown_heading = "" if heading else _label_before(line)
        self._follows_a_statement = False

    def _label_at_start(self, text: str, line: str, *, may_be_loose: bool = True) -> _Heading | None:
        bare = _without_bullet(text).strip().rstrip("*_")
        reach = self._rubric.longest_label + 2
        for end in islice(_HEADING_END.finditer(bare[:reach]), _MOST_DELIMITERS):
            if end.end() == reach < len(bare) and not end[0].strip():
                break  # this is the end of the searched part, not the end of a label
            heading = self._heading_named(bare[: end.start()], line, may_be_loose=may_be_loose)
            if heading is not None:
                return heading
        return None

    def _heading_named(self, label: str, line: str, *, may_be_loose: bool = True) -> _Heading | None:
        if not label or len(label) > self._rubric.longest_label:
            return None
        criterion_index = self._rubric.criterion_of(label)
        if criterion_index is None and self._loosely is not None and may_be_loose:
            criterion_index = self._loosely(label)
        return None if criterion_index is None else _Heading(criterion_index, label, line)


@dataclass(slots=True)
class Block:
    """The marks from one table, or from lines with no other text between them."""

    is_table: bool
    marks: list[Mark]
    fault: str | None = None
    total: float | None = None


@dataclass(slots=True)
class Parsed:
    """The blocks in a reply, notes on it, and the labels of rows and lines that match no criterion."""

    blocks: list[Block] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown_rows: list[str] = field(default_factory=list)
    unknown_lines: list[str] = field(default_factory=list)


def parse(rubric: Rubric, reply: str, student: Quotable, loosely: FindCriterion | None) -> Parsed:
    """Find the tables and lines of a reply that state points for criteria."""
    parsed = Parsed()
    lines: list[Mark] = []
    # If the student's text contains a grade, a quotation of this grade may be next to the grader's own table.
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
    labelled = _labelled_rows(rubric, table, loosely)
    if not labelled:
        return None
    labels = labelled[min(labelled)][0]
    column = value_column(table, labels, [table.rows[number] for number in labelled])
    if column == NOT_A_GRADING:
        parsed.notes.append(NOT_A_GRADING)
        return None
    block = Block(is_table=True, marks=[], fault=column if isinstance(column, str) else None)
    for number, (own_column, index) in sorted(labelled.items()):
        row = table.rows[number]
        line = " ".join(row)
        if isinstance(column, str):
            block.marks.append(Mark(index, None, "", row[own_column], line))
            continue
        cell = row[column] if column < len(row) and column != own_column else ""
        broken_off = table.last_row_open and number == len(table.rows) - 1
        if cell and not broken_off:
            block.marks.append(Mark(index, read_value(cell), cell[:40], row[own_column], line))
    if isinstance(column, int):
        for number, row in enumerate(table.rows):
            if number not in labelled and column < len(row):
                _take_other_row(row, column, labels, block, parsed, is_listed=loosely is not None)
    return block if block.marks else None


def _take_other_row(row: list[str], column: int, labels: int, block: Block, parsed: Parsed, *, is_listed: bool) -> None:
    """Record the total or the label in a table row that matches no criterion."""
    value = read_value(row[column])
    if "total" in row[0].casefold():
        block.total = read_value(row[column].partition("/")[0])
    elif value is not None:
        parsed.notes.append(f"a row matches no criterion: {row[0][:60]!r}")
    label = row[labels] if is_listed and labels < len(row) else ""
    if fold_name(label) and (fold_name(row[column]) or value is not None):
        parsed.unknown_rows.append(label)


def _labelled_rows(rubric: Rubric, table: Table, loosely: FindCriterion | None) -> dict[int, tuple[int, int]]:
    """Map the number of each row about a criterion to its label column and the criterion's index."""
    by_header = label_column(table)
    found: dict[int, tuple[int, int]] = {}
    for number, row in enumerate(table.rows):
        columns = range(min(len(row), _MOST_LABEL_COLUMNS)) if by_header is None else range(by_header, by_header + 1)
        for column in columns:
            cell = row[column] if column < len(row) else ""
            index = rubric.criterion_of(cell) if cell and len(cell) <= rubric.longest_label else None
            if index is not None:
                found[number] = column, index
                break
    if loosely is None:
        return found
    labels = by_header
    if labels is None:
        rows = [row[:_MOST_LABEL_COLUMNS] for row in table.rows]
        of_words = (column for row in rows for column, cell in enumerate(row) if len(fold_name(cell)) > 2)
        labels = found[min(found)][0] if found else min(of_words, default=0)
    for number, row in enumerate(table.rows):
        cell = row[labels] if number not in found and labels < len(row) else ""
        index = loosely(cell) if 0 < len(cell) <= rubric.longest_label else None
        if index is not None:
            found[number] = labels, index
    return found


_MOST_LABEL_COLUMNS = 4


def without_quotations(blocks: list[Block], student: Quotable) -> list[Block]:
    """Remove marks quoted from the student's text from each block, and drop blocks that only quote the text."""
    if not student.words:
        return blocks
    own = []
    for block in blocks:
        block.marks = _without_run(block.marks, student)
        if not all(student.has(mark.label, mark.value, mark.line) for mark in block.marks):
            own.append(block)
    return own


def _without_run(marks: list[Mark], student: Quotable) -> list[Mark]:
    """Remove the marks that quote all of the student's grades, if a quoted criterion also has another mark."""
    count = len(student.pairs)
    if not 0 < count < len(marks):
        return marks
    all_counts = Counter(mark.criterion_index for mark in marks)
    # Each distinct pair becomes one character, so that a linear-time string search finds sequences of pairs.
    codes: dict[tuple[str, float | None], str] = {}
    run = "".join([codes.setdefault(pair, chr(len(codes))) for pair in student.pairs])
    given = "".join([codes.setdefault((pair_label(mark.label), mark.value), chr(len(codes))) for mark in marks])
    start = given.find(run)
    while start >= 0:
        quoted = Counter(mark.criterion_index for mark in marks[start : start + count])
        if any(all_counts[index] > times for index, times in quoted.items()):
            return marks[:start] + marks[start + count :]
        start = given.find(run, start + 1)
    return marks
