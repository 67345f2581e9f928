"""What a grader's cell says as a number."""

import re
import unicodedata
from functools import lru_cache
from typing import Final

_MARKUP = re.compile(r"[*_`~\"“”«»]+")
_TICKS: Final = dict.fromkeys("✓✔✅☑🗸", 1.0) | dict.fromkeys("✗✘❌✖☒❎", 0.0)
_WORDS: Final = {
    "yes": 1.0,
    "true": 1.0,
    "met": 1.0,
    "pass": 1.0,
    "passed": 1.0,
    "one": 1.0,
    "no": 0.0,
    "false": 0.0,
    "not met": 0.0,
    "fail": 0.0,
    "failed": 0.0,
    "zero": 0.0,
}
_NUMBER = re.compile(
    r"(?P<number>[-+−]?(?:\d+(?:[.,]\d+)?|[.,]\d+))"
    r"(?:\s*(?:/|\bout of\b|\bof\b)\s*(?P<worth>\d+(?:[.,]\d+)?))?"
    r"\s*(?:points?\b|pts?\b\.?|marks?\b)?\s*(?:earned|awarded)?",
    re.IGNORECASE,
)
_REMARK = re.compile(r"\s*(?:[.;]|\([^()\d]*\)|[-–—:,;.(]\s*[^\d]*)?\s*$")
_WORD = re.compile(r"(yes|no|true|false|met|not met|pass(?:ed)?|fail(?:ed)?|zero|one)\b", re.IGNORECASE)
_VARIATION_SELECTORS = re.compile(r"[\ufe0e\ufe0f\u200b-\u200d\u2060]")


@lru_cache(maxsize=1 << 12)
def read_value(cell: str) -> float | None:
    """The number that a whole cell says, of any size, or None if it says none.

    >>> [read_value(c) for c in ("**1**", "0/1", "1 point", "½", "✅", "１", "2", "N/A", "1/2", "0 (see 1)")]
    [1.0, 0.0, 1.0, 0.5, 1.0, 1.0, 2.0, None, None, None]
    """
    text = _MARKUP.sub("", _VARIATION_SELECTORS.sub("", cell)).strip()
    ticked, text = _take_ticks(text)
    if not text:
        return ticked
    number, rest = _leading_number(text)
    if number is None or _REMARK.fullmatch(rest) is None:
        return None
    return number if ticked is None or ticked == number else None


def read_leading_value(text: str) -> float | None:
    """The number that a remark starts with, when what follows cannot be part of it.

    >>> [read_leading_value(t) for t in ("1. Well done", "0/1, none seen", "1 example is there", "0.5")]
    [1.0, 0.0, None, 0.5]
    """
    text = _MARKUP.sub("", _VARIATION_SELECTORS.sub("", text)).strip()
    if text[:1] in _TICKS:
        return _TICKS[text[0]]
    number, rest = _leading_number(text)
    if number is None or not (rest.strip() == "" or rest.lstrip()[0] in ".,;:)(]-–—!"):
        return None
    return number


def _take_ticks(text: str) -> tuple[float | None, str]:
    """The value of ticks and crosses at either end, and the text without them."""
    if text.isascii():
        return None, text
    found = {_TICKS[c] for c in text if c in _TICKS}
    if len(found) != 1:
        return None, text
    return found.pop(), "".join(c for c in text if c not in _TICKS).strip()


def _leading_number(text: str) -> tuple[float | None, str]:
    if not text.isascii():
        if len(text) == 1 and unicodedata.category(text) == "No":
            return unicodedata.numeric(text), ""
        text = unicodedata.normalize("NFKC", text.replace("½", "0.5"))
    word = _WORD.match(text)
    if word:
        return _WORDS[word[1].lower()], text[word.end() :]
    match = _NUMBER.match(text)
    if match is None:
        return None, text
    worth = match["worth"]
    if worth is not None and float(worth.replace(",", ".")) != 1:
        return None, text  # out of two or ten: another scale than one point a criterion
    return float(match["number"].replace(",", ".").replace("−", "-")), text[match.end() :]
