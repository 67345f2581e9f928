"""Find grades in a grader's reply that only repeat the student's text: an injected grade is not a grade."""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from skillmix.catalog.names import APOSTROPHES, INVISIBLE, fold_name
from skillmix.grading.replies.json_tables import with_json_as_tables
from skillmix.grading.values import VALUE_SIGNS, VALUE_WORD, has_value_sign, read_value
from skillmix.prompts.rubric import Rubric, label_forms

Pair = tuple[str, float]
"""A folded label without numbering, and its value."""

_BORDER = re.compile(r"[｜│┃∣║]")
_DELIMITER = re.compile(r"[:=→>\t(\[：-]")
_VALUE_WORD = re.compile(rf"\b{VALUE_WORD}", re.IGNORECASE)
_TOKEN = re.compile(
    rf"(?P<value>\d+(?:\.\d+)?(?:\s*/\s*1\b)?|[{VALUE_SIGNS[2:]}]|{VALUE_WORD})|(?P<word>[^\W\d_]+)", re.I
)
_STATEMENT = re.compile(r"\bpoints?\s+(?:earned|awarded|given|received|scored)\b", re.IGNORECASE)
_EARNED: Final = {"earned", "awarded", "given", "received", "scored"}
_FIELDS: Final = {"points", "point", "score", "value", "grade", "mark", "result", "met"}
_LONGEST_LABEL: Final = 16
_LINES_TOGETHER: Final = 3
_OPENING_QUOTES: Final = ('"', "“", "«", "'", "‘")
_CLOSING_QUOTE = re.compile(r"[\"”»’']")


@dataclass(frozen=True, slots=True)
class Quotable:
    """The parts of a student's text that could pass for a grade."""

    words: str
    lines: frozenset[str]
    pairs: tuple[Pair, ...]
    """Labels of criteria with the values after them, in order."""
    pair_set: frozenset[Pair] = frozenset()
    """The same pairs as a set."""

    def has(self, label: str, value: float | None, line: str) -> bool:
        """Whether a grader's row or line repeats the text: the same label and value, or the same line."""
        return (value is not None and (pair_label(label), value) in self.pair_set) or fold_name(line) in self.lines

    def has_quoted(self, before: str, statement: str) -> bool:
        """Whether a statement right after an opening quotation mark is in the text."""
        if not self.words or not before.rstrip().endswith(_OPENING_QUOTES):
            return False
        quoted = fold_name(_CLOSING_QUOTE.split(statement, maxsplit=1)[0])
        return f" {quoted} " in self.words


NOTHING_TO_QUOTE: Final = Quotable("", frozenset(), ())


def pair_label(label: str) -> str:
    """A label in the form that pairs use."""
    return label_forms(label).plain[-1]


@lru_cache(maxsize=1024)  # the rounds of one text come one after the other
def quotable(text: str | None, rubric: Rubric) -> Quotable:
    """Collect what a grader's reply could repeat from a student's text; nearly always nothing."""
    if not text or not _may_hold_a_grade(text):
        return NOTHING_TO_QUOTE
    text = with_json_as_tables(text)
    text = INVISIBLE.sub("", unicodedata.normalize("NFKC", text.replace("½", "0.5")))
    pairs = _pairs(text, rubric)
    lines = _lines_together(text) if _STATEMENT.search(text) else frozenset[str]()
    if not pairs and not lines:
        return NOTHING_TO_QUOTE
    return Quotable(f" {fold_name(text)} ", lines, tuple(pairs), frozenset(pairs))


def _lines_together(text: str) -> frozenset[str]:
    """Single lines, and two or three consecutive lines joined, since a statement's label may be above it."""
    lines = [line for line in text.splitlines() if line.strip()]
    return frozenset(
        fold_name(" ".join(lines[start : start + count]))
        for start in range(len(lines))
        for count in range(1, _LINES_TOGETHER + 1)
    )


def _may_hold_a_grade(text: str) -> bool:
    """Whether a text has a number, a tick or a table border, or both a word such as "yes" and a delimiter."""
    if has_value_sign(text) or "|" in text or (not text.isascii() and _BORDER.search(text)):
        return True
    return _DELIMITER.search(text) is not None and _VALUE_WORD.search(text) is not None


def _pairs(text: str, rubric: Rubric) -> list[Pair]:
    """Pair each value with the longest run of words before it that is a criterion's label."""
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
    if end >= 2 and words[-1].lower() in _EARNED and words[-2].lower() in ("point", "points"):
        end -= 2
    elif end >= 2 and words[-1].lower() in _FIELDS and fold_name(words[-1]) not in rubric.label_ends:
        end -= 1  # a field of JSON
    if end == 0 or fold_name(words[end - 1]) not in rubric.label_ends:
        return None
    for start in range(max(0, end - _LONGEST_LABEL), end):
        label = " ".join(words[start:end])
        if rubric.criterion_of(label) is not None:
            return fold_name(label)
    return None
