"""What of a grader's reply merely repeats the student's text: an injected grade is not a grade."""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from skillmix.core.folding import fold

_FRAGMENT_BORDER = re.compile(r"[|,;.\n]")
_MAY_HOLD_A_GRADE = re.compile(
    r"\||(?:[:=→(,]|\s[-–—]|\t|\s\s)[\s*_`\"“]*(?:[-+−]?[.,]?[\d½✓✔✅☑✗✘❌✖☒❎]"
    r"|(?:yes|no|true|false|met|not met|pass|fail)\b)|\bpoints?\s+(?:earned|awarded|given|received|scored)\b",
    re.IGNORECASE,
)
_OPENING_QUOTES: Final = ('"', "“", "«", "'", "‘")
_CLOSING_QUOTE = re.compile(r"[\"”»’']")


@dataclass(frozen=True, slots=True)
class Quotable:
    """A student's text as far as its lines could pass for a grade."""

    words: str
    fragments: frozenset[str]

    def has_line(self, line: str) -> bool:
        """Whether a row or line stands in the text as a line, a row or a fragment of its own."""
        return fold(line) in self.fragments

    def has_quoted(self, before: str, statement: str) -> bool:
        """Whether a statement just after an opening quotation mark stands in the text."""
        if not self.words or not before.rstrip().endswith(_OPENING_QUOTES):
            return False
        quoted = fold(_CLOSING_QUOTE.split(statement, maxsplit=1)[0])
        return f" {quoted} " in self.words


def quotable(text: str | None) -> Quotable:
    """The lines of a text, its rows' neighbouring cells, and its fragments between marks."""
    if not text or not _MAY_HOLD_A_GRADE.search(text):
        return Quotable("", frozenset())
    fragments = {fold(fragment) for fragment in _FRAGMENT_BORDER.split(text)}
    for line in text.splitlines():
        fragments.add(fold(line))
        cells = line.split("|")
        fragments |= {fold(f"{label} {value}") for label, value in pairwise(cells)}
    return Quotable(f" {fold(text)} ", frozenset(fragments - {""}))
