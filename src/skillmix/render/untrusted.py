"""Make text from outside safe to print in a terminal or a log."""

import re
from typing import Final

_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"  # controls; escape sequences of a terminal start with one
    "\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # marks without a glyph, bidi marks
    "\ud800-\udfff\U000e0000-\U000e0fff]"  # half characters, tags
)
_FILLERS: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0]")
"""Characters that show nothing alone, and change their neighbours."""
_SPACES: Final = re.compile(r"[\t-\r\x1c-\x1f\x85\u2028\u2029]")


def printable(text: str) -> str:
    r"""Text without control sequences and invisible characters.

    >>> printable("a\x1b[31mred\u202e b\nc")
    'a[31mred b c'
    """
    return _INVISIBLE.sub("", _SPACES.sub(" ", text))


def without_invisible(text: str) -> str:
    r"""Text without control sequences and characters that have no glyph; spaces and line ends stay.

    >>> without_invisible("k\u200be\ufe0fy\n")
    'key\n'
    """
    return _INVISIBLE.sub("", _FILLERS.sub("", text))


def one_line(text: str) -> str:
    r"""Printable text on one line, with each run of spaces as one space.

    >>> one_line(" a \r\n\tb ")
    'a b'
    """
    return " ".join(printable(text).split())
