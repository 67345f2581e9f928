"""Read a number from a grader's cell or remark."""

import re
import unicodedata
from functools import lru_cache
from typing import Final

_MARKUP = re.compile(r"[*_`\"“”«»]+|</?\w+ ?/?>")
_INVISIBLE = re.compile(r"[\ufe0e\ufe0f\u200b-\u200f\u2060\ufeff\u00ad]")
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
VALUE_SIGNS: Final = "\\d½" + "".join(_TICKS)
"""First characters of values that are not words, for a character class of a regular expression."""
_SIGN = re.compile(rf"[{VALUE_SIGNS}]")
VALUE_WORD: Final = r"(?:yes|no|true|false|met|not met|pass(?:ed)?|fail(?:ed)?)\b"

# A decimal comma counts only if it cannot separate two numbers: "0,5" and "1,0", not "0,1".
_NUMBER = re.compile(
    r"(?P<number>[-+−]?(?:\d+(?:\.\d+|,[05]0?(?!\d))?|\.\d+))"
    r"(?:\s*+(?:\(\s*+)?(?:/|\bout of\b|\bof\b)\s*+(?P<worth>\d+(?:\.\d+)?)\s*+\)?)?"
    r"\s*+(?:(?:points?\b|pts?\b\.?|marks?\b)\s*+)?(?:earned|awarded)?",
    re.IGNORECASE,
)
_WORD = re.compile(
    r"(yes|no|true|false|met|not met|pass(?:ed)?|fail(?:ed)?|zero|one)\b(?:\s+points?\b)?(?!\.\s+[a-z])", re.IGNORECASE
)
# No run of blanks may match two parts of an expression: the search would try every division of a long run.
_REMARK = re.compile(r"\s*+(?:[.;]|\((?:[^()\d]|\d+(?= sentences?\b)|100(?=%))*+\)|[-–—:,;.(][^\d]*+)?\s*+")
_BRACKETED = re.compile(r"[(\[]([^()\[\]]++)[)\]]")
_SAME_AGAIN = re.compile(r"\s*+[(\[]\s*+([01])\s*+(?:points?\s*+)?[)\]]\s*+")


@lru_cache(maxsize=1 << 12)
def read_value(cell: str) -> float | None:
    """The number in a cell, of any size; None if the cell as a whole is not a number.

    >>> [read_value(c) for c in ("**1**", "0/1", "1 point", "½", "✅", "１", "2", "N/A", "1/2", "0 (see 1)")]
    [1.0, 0.0, 1.0, 0.5, 1.0, 1.0, 2.0, None, None, None]
    """
    text = _plain(cell)
    bracketed = _BRACKETED.fullmatch(text)
    ticked, text = _take_ticks(bracketed[1].strip() if bracketed else text)
    if not text:
        return ticked
    number, rest = _leading_number(text)
    if number is None and ticked is not None:
        number, rest = ticked, text
    again = _SAME_AGAIN.fullmatch(rest)
    if number is None or (again is None and _REMARK.fullmatch(rest) is None):
        return None
    values = {number, *([ticked] if ticked is not None else []), *([float(again[1])] if again else [])}
    return number if len(values) == 1 else None


def has_value_sign(text: str) -> bool:
    """Whether a text has a digit or a tick; for ASCII, ten substring searches are fastest."""
    if text.isascii():
        return any(digit in text for digit in "1023456789")
    return _SIGN.search(text) is not None


def read_leading_value(text: str, *, words: bool = True) -> float | None:
    """The number at the start of a remark; None if the text after it could be part of it.

    >>> [read_leading_value(t) for t in ("1. Well done", "0/1, none seen", "1 example is there", "0.5", "1-5")]
    [1.0, 0.0, None, 0.5, None]
    """
    text = _plain(text)
    if text[:1] in _TICKS:
        return _TICKS[text[0]]
    number, rest = _leading_number(text)
    if number is None or (not words and text[:1].isalpha()):
        return None
    return number if _GOES_NO_FURTHER.match(rest) else None


# A number must not continue as another number ("1-5", "0, 1"), an enumeration ("1) … 2) …") or a sentence
# ("1 example").
_GOES_NO_FURTHER = re.compile(r"\s*(?:$|[.,;:!\]](?!\s*\d)|[-–—(](?!\s*(?:\d|out of|of \d))|\(100\s?%\))")


def _plain(text: str) -> str:
    return _MARKUP.sub("", _INVISIBLE.sub("", text)).strip()


def _take_ticks(text: str) -> tuple[float | None, str]:
    """The common value of the ticks and crosses in a text, and the text without them."""
    if text.isascii():
        return None, text
    values = {_TICKS[c] for c in text if c in _TICKS}
    if len(values) != 1:
        return None, text
    return values.pop(), "".join(c for c in text if c not in _TICKS).strip()


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
    if worth is not None and float(worth) != 1:
        return None, text  # out of two or ten: not the scale of one point for each criterion
    return float(match["number"].replace(",", ".").replace("−", "-")), text[match.end() :]
