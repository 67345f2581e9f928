"""Points given in lines of text: 'Metaphor: 1', or a remark that ends in 'Point earned: 0'."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from skillmix.core.quotations import Quotable
from skillmix.core.rubric import Rubric
from skillmix.core.values import read_leading_value


@dataclass(frozen=True, slots=True)
class Mark:
    """One criterion's point as some row or line gives it."""

    place: int
    value: float | None
    cell: str
    line: str


_EARNED = re.compile(r"\bpoints?\s+(?:earned|awarded|given|received|scored)\b", re.IGNORECASE)
# In small letters, with a literal start, the same search skips through prose ten times as fast.
_MAY_STATE = re.compile(r"points?\s+(?:earned|awarded|given|received|scored)\b[^\n]{0,260}?[:=]")
_STATEMENT = re.compile(
    r"\bpoints?\s+(?:earned|awarded|given|received|scored)\b"
    r"(?:\s+for\s+(?P<label>[^\n]{1,250}?))?\s*[*_`\"]*\s*[:=]\s*[*_`\"]*\s*(?P<value>[^\n]*)",
    re.IGNORECASE,
)
_TOTAL: Final = re.compile(r"\b(?:total|overall|sum)\s*$", re.IGNORECASE)
_BULLET = re.compile(r"^[\s>#*\-•+·▪◦‣]+(?=\S)")
_VALUE_WORD = r"(?:yes|no|true|false|met|not met|pass(?:ed)?|fail(?:ed)?)\b"
_LABEL_THEN_VALUE = re.compile(
    rf"(?:[:=→(]|\s[-–—]|[-–—]>|\t|\s\s|,)[\s*_`\"“]*(?:[-+−]?[.,]?[\d½✓✔✅☑✗✘❌✖☒❎]|{_VALUE_WORD})",
    re.IGNORECASE,
)
_DELIMITER = re.compile(r"\s*(?:[:=→(,]|\s[-–—]>?(?=\s)|\t|\s{2,})\s*")
_HEADING_END = re.compile(r"\s*(?::|\.(?=\s)|\s[-–—]\s|$)")
_MOST_DELIMITERS: Final = 12
_ROOM_FOR_VALUE: Final = 20
_VALUE_SIGN = re.compile(r"[\d½✓✔✅☑✗✘❌✖☒❎]")


class LineReader:
    """Reads lines in order, remembering the heading that a later 'Point earned' belongs to."""

    def __init__(self, rubric: Rubric, whole: str, *, student: Quotable) -> None:
        self._rubric = rubric
        self._student = student
        self._heading: int | None = None
        # Headings matter only to a reply that has such statements: most replies are tables and skip this work.
        self._has_statements = _MAY_STATE.search(whole.lower()) is not None

    def marks(self, line: str) -> Iterator[Mark]:
        """The points that one line gives; mostly none."""
        if self._has_statements and _EARNED.search(line):
            yield from self._from_statements(line)
        elif self._may_give_a_value(line):
            yield from self._from_label(line)
        elif self._has_statements:
            self._heading = self._label_at_start(line, self._heading)

    def _may_give_a_value(self, line: str) -> bool:
        """A quick look that spares prose the search for labels: a value must follow soon enough."""
        head = line[: self._rubric.longest_label + _ROOM_FOR_VALUE]
        if not _VALUE_SIGN.search(head) and len(line) > len(head):
            return False
        return _LABEL_THEN_VALUE.search(head) is not None

    def _from_statements(self, line: str) -> Iterator[Mark]:
        starts = [match.start() for match in _EARNED.finditer(line)]
        own_label: int | None = None
        for start, end in zip(starts, [*starts[1:], len(line)], strict=True):
            statement = _STATEMENT.match(line[start:end])
            before = line[:start]
            if statement is None or _TOTAL.search(before) or self._student.has_quoted(before, statement[0]):
                continue
            place = self._criterion_of_statement(statement["label"], before)
            place = own_label if place is None else place
            value = statement["value"].strip()
            if place is not None and value:
                yield Mark(place, read_leading_value(value), value[:40], line)
                own_label, self._heading = place, None

    def _criterion_of_statement(self, label: str | None, before: str) -> int | None:
        if label:
            return self._rubric.criterion_of(label)
        before = _BULLET.sub("", before).strip()
        if not before:
            return self._heading
        whole = self._rubric.criterion_of(before.rstrip(" :.-–—(*_"))
        return whole if whole is not None else self._label_at_start(before, self._heading)

    def _from_label(self, line: str) -> Iterator[Mark]:
        bare = _BULLET.sub("", line).rstrip()
        best: tuple[int, str] | None = None
        for delimiter in list(_DELIMITER.finditer(bare))[:_MOST_DELIMITERS]:
            place = self._criterion_of(bare[: delimiter.start()])
            if place is not None:
                best = place, bare[delimiter.end() :]
        if best is None:
            return
        place, rest = best
        value = read_leading_value(rest.strip("\"“”'"))
        if value is None:
            self._heading = place
        else:
            yield Mark(place, value, rest[:40], line)

    def _label_at_start(self, line: str, otherwise: int | None) -> int | None:
        bare = _BULLET.sub("", line).strip().rstrip("*_")
        for end in list(_HEADING_END.finditer(bare))[:_MOST_DELIMITERS]:
            place = self._criterion_of(bare[: end.start()])
            if place is not None:
                return place
        return otherwise

    def _criterion_of(self, label: str) -> int | None:
        if not label or len(label) > self._rubric.longest_label:
            return None
        return self._rubric.criterion_of(label)
