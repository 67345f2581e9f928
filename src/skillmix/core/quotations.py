"""What of a grader's reply merely repeats the student's text: an injected grade is not a grade."""

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from skillmix.core.folding import fold
from skillmix.core.rubric import Rubric, label_forms
from skillmix.core.values import VALUE_SIGNS, VALUE_WORD, read_value

Pair = tuple[str, float]
"""A label, folded and without numbering, and the value it is given."""

_MAY_HOLD_A_GRADE = re.compile(rf"[{VALUE_SIGNS}|]|{VALUE_WORD}", re.IGNORECASE)
_INVISIBLE = re.compile(r"[\u200b-\u200f\u2060\ufeff\u00ad]")
_TOKEN = re.compile(
    rf"(?P<value>\d+(?:\.\d+)?(?:\s*/\s*1\b)?|[{VALUE_SIGNS[2:]}]|{VALUE_WORD})|(?P<word>[^\W\d_]+)", re.I
)
_APOSTROPHE = re.compile(r"['’‘ʼ′`´]")
_EARNED: Final = {"earned", "awarded", "given", "received", "scored"}
_LONGEST_LABEL: Final = 16
_LINES_TOGETHER: Final = 3
_OPENING_QUOTES: Final = ('"', "“", "«", "'", "‘")
_CLOSING_QUOTE = re.compile(r"[\"”»’']")


@dataclass(frozen=True, slots=True)
class Quotable:
    """A student's text as far as it could pass for a grade."""

    words: str
    lines: frozenset[str]
    pairs: tuple[Pair, ...]
    """Labels of criteria with the values next to them, in order."""

    def has(self, label: str, value: float | None, line: str) -> bool:
        """Whether a grader's row or line says what the text says: the same label and value, or the same line."""
        return (value is not None and (pair_label(label), value) in self.pairs) or fold(line) in self.lines

    def has_quoted(self, before: str, statement: str) -> bool:
        """Whether a statement just after an opening quotation mark stands in the text."""
        if not self.words or not before.rstrip().endswith(_OPENING_QUOTES):
            return False
        quoted = fold(_CLOSING_QUOTE.split(statement, maxsplit=1)[0])
        return f" {quoted} " in self.words


_NOTHING: Final = Quotable("", frozenset(), ())


def pair_label(label: str) -> str:
    """A label as pairs have it."""
    return label_forms(label).plain[-1]


def quotable(text: str | None, rubric: Rubric) -> Quotable:
    """What a student's text could lend to a reply; nothing, for nearly every text."""
    if not text or not _MAY_HOLD_A_GRADE.search(text):
        return _NOTHING
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text.replace("½", "0.5")))
    pairs = _pairs(text, rubric)
    lines = [line for line in text.splitlines() if line.strip()]
    together = {
        fold(" ".join(lines[start : start + count]))
        for start in range(len(lines))
        for count in range(1, _LINES_TOGETHER + 1)
    }
    gradelike = {line for line in together if any(character.isdigit() for character in line)}
    if not pairs and not gradelike:
        return _NOTHING
    return Quotable(f" {fold(text)} ", frozenset(gradelike), tuple(pairs))


def _pairs(text: str, rubric: Rubric) -> list[Pair]:
    """For each value the longest run of words before it that is a criterion's label."""
    pairs: list[Pair] = []
    words: list[str] = []
    for token in _TOKEN.finditer(_APOSTROPHE.sub("", text)):
        if token["word"] is not None:
            words.append(token["word"])
            continue
        value = read_value(token["value"])
        label = _label_at_end(words, rubric)
        if label is not None and value is not None:
            pairs.append((label, value))
        words.append(token["value"])  # names may hold digits
    return pairs


def _label_at_end(words: list[str], rubric: Rubric) -> str | None:
    end = len(words)
    if end >= 2 and words[-1].lower() in _EARNED and words[-2].lower() in ("point", "points"):
        end -= 2
    for start in range(max(0, end - _LONGEST_LABEL), end):
        label = " ".join(words[start:end])
        if rubric.criterion_of(label) is not None:
            return fold(label)
    return None
