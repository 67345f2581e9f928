"""Make text from outside safe to print in a terminal or a log."""

import re
from typing import Final

_INVISIBLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # controls; escape sequences of a terminal start with one
    "\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # marks without a glyph, bidi marks
    "\u2028\u2029\ud800-\udfff\U000e0000-\U000e0fff]"  # line ends, half characters, tags
)
_SPACES: Final = re.compile(r"[\t-\r\x1c-\x1f\x85\u2028\u2029]")


def printable(text: str) -> str:
    r"""Text without control sequences and invisible characters.

    >>> printable("a\x1b[31mred\u202e b\nc")
    'a[31mred b c'
    """
    return _INVISIBLE.sub("", _SPACES.sub(" ", text))


def one_line(text: str) -> str:
    r"""Printable text on one line, with each run of spaces as one space.

    >>> one_line(" a \r\n\tb ")
    'a b'
    """
    return " ".join(printable(text).split())
