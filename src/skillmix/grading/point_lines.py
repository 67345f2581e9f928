"""Read points from lines of text: 'Metaphor: 1', or a remark that ends in 'Point earned: 0'."""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from skillmix.grading.injections import Quotable
from skillmix.grading.values import VALUE_SIGNS, VALUE_WORD, has_value_sign, read_leading_value
from skillmix.prompts.rubric import Rubric, starts_like_a_criterion

FindCriterion = Callable[[str], int | None]
"""The index of the criterion that a label stands for."""


class Mark(NamedTuple):
    """The point that a row or a line gives to one criterion."""

    criterion_index: int
    value: float | None
    cell: str
    label: str
    line: str


class _Heading(NamedTuple):
    """A criterion named in a heading, for a later 'Point earned'."""

    criterion_index: int
    label: str
    line: str


_EARNED = re.compile(r"\bpoints?\s+(?:earned|awarded|given|received|scored)\b", re.IGNORECASE)
# In lower case, with a literal start, the same search is ten times as fast in prose.
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
# Searched in lower case. Two blanks have their own expression: a search that may start at every blank is three times
# as slow.
_LABEL_THEN_WORD = re.compile(rf"[:=→(\[\t–—>-][\s*_`\"“]{{0,8}}{VALUE_WORD}")
_BLANKS_THEN_WORD = re.compile(rf"  [\s*_`\"“]{{0,8}}{VALUE_WORD}")
_DELIMITER = re.compile(r"\s*(?:[:=→(\[,]|\s(?:-{1,3}|[–—])(?=\s)|[-–—]>|\t|\s{2,}|(?<!\.)\.{3,40})\s*")
_BRACKETED_VALUE = re.compile(r"([^()\[\]]+)[)\]]\W*$")
# Enters a run of blanks only at its start, or right after a dash that ended a match.
_HEADING_END = re.compile(r"(?:(?<!\s)|(?<=\s[-–—]\s))(?:\s*+(?::|\.(?=[*_]{0,3}\s)|$)|\s++(?:[-–—]|->|→)\s)")
_NUMBERING = re.compile(r"^(?:(?:criterion|skill|item)\s)?\(?(?:\d{1,2}|[a-h](?=\)))\s?[.):–—-]\s+", re.IGNORECASE)
_BETWEEN_REMARKS = re.compile(r"[;,.]\s+")
_MARKED_HEADING = re.compile(r"^\s*(?:#+\s|\*\*[^*]+\*\*\W*$|\(?\d{1,2}[.)]\s)|:\s*$")
# A short remark where a point should be: the line is about something, but gives no point.
_NO_POINT = re.compile(r"[:=][\s*_`(]*+(?:n/?a|none|unknown|unclear|[-–—?])[\s*_`).?-]*+$", re.IGNORECASE)
_MOST_DELIMITERS: Final = 12
_ROOM_FOR_VALUE: Final = 20
_LONGEST_HEADING: Final = 300
_LONGEST_TOTAL: Final = 40
"""If a word such as "total" is among this many characters before a statement, the statement is about the sum."""
_AFTER_LABEL: Final = " :.-–—(*_"


def _without_bullet(line: str) -> str:
    bullet = _BULLET.match(line)
    return line[bullet.end() :] if bullet else line


def _label_before(text: str) -> str:
    """The part of a line before its first colon, full stop or dash."""
    bare = _NUMBERING.sub("", _without_bullet(text).strip().rstrip("*_")[:_LONGEST_HEADING])
    end = _HEADING_END.search(bare)
    return bare[: end.start()] if end else bare


def _gives_a_word(text: str) -> bool:
    if _LABEL_THEN_WORD.search(text):
        return True
    return "  " in text and _BLANKS_THEN_WORD.search(text) is not None


class LineReader:
    """Reads lines in order and remembers the last heading, for a later 'Point earned'.

    `loosely` finds the criterion of a label that equals no name. With it, the reader also lists the labels of lines
    that give a point to no criterion.
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
        # Most replies are a table with prose around it: one search in all of the prose saves a search in each line.
        prose = "\n".join(lines).lower()
        self._has_statements = _MAY_STATE.search(prose) is not None
        self._has_numbers = has_value_sign(prose)
        self._has_words = not self._has_statements and _gives_a_word(prose)

    def marks(self, line: str) -> list[Mark]:
        """The points in one line; most lines have none."""
        if not (self._has_statements or self._has_numbers or self._has_words):
            return []
        if self._has_statements and _EARNED.search(line):
            return list(self._from_statements(line))
        if self._may_give_a_value(line):
            return list(self._from_label(line))
        if self._has_statements:
            self._take_heading(line)
        elif self._loosely is not None and len(line) <= self._rubric.longest_label + _ROOM_FOR_VALUE:
            no_point = _NO_POINT.search(line)
            self._list_unknown(line[: no_point.start()] if no_point else "")
        return []

    def _may_give_a_value(self, line: str) -> bool:
        """A quick test that saves the search for labels in prose: whether a value comes early enough in the line."""
        head = line[: self._rubric.longest_label + _ROOM_FOR_VALUE]
        if self._has_numbers and has_value_sign(head) and _LABEL_THEN_NUMBER.search(head):
            return True
        # In a reply with 'Point earned' lines, "Yes, …" is a remark and not a point.
        return self._has_words and _gives_a_word(head.lower())

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
        """The criterion of a statement: named in the statement, at the start of its line, or in a heading above."""
        if label:
            return self._heading_named(label, line)
        before = _without_bullet(before).strip()
        if not before:
            above = self._heading
            return above and above._replace(line=f"{above.line} {line}")
        # A line may hold thousands of statements, so only a limited part of the text before each is searched.
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
            # 'Metaphor (1)' gives a point; 'Metaphor (1 point)' says what the criterion is worth.
            bracketed = _BRACKETED_VALUE.match(rest)
            if bracketed is None or "point" in bracketed[1].lower():
                return None
            rest = bracketed[1]
        return read_leading_value(rest.strip("\"“”'"), words=words)

    def _take_heading(self, line: str) -> None:
        is_marked = _MARKED_HEADING.search(line) is not None or starts_like_a_criterion(line)
        # A sentence in the middle of a remark may begin with the name of a criterion and is not its heading.
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
                break  # the end of the searched part, not of a label
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
