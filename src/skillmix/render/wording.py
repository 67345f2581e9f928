"""Parts of sentences: plurals and short quotations."""

from collections.abc import Sequence
from typing import Final


def plural(count: int, noun: str) -> str:
    """A number and its noun.

    >>> plural(1, "word"), plural(2000, "word")
    ('1 word', '2,000 words')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def are(count: int, noun: str, *, verb: tuple[str, str] = ("is", "are")) -> str:
    """A number, its noun and a verb.

    >>> are(1, "text"), are(2, "text"), are(1, "text", verb=("has", "have"))
    ('1 text is', '2 texts are', '1 text has')
    """
    return f"{plural(count, noun)} {verb[0] if count == 1 else verb[1]}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def middle_cut(name: str, *, longest: int = 30) -> str:
    """A long name without its middle, since names of models differ at their starts or at their ends.

    >>> middle_cut("local:models/mistral-7b-instruct/step-400")
    'local:models/mi…truct/step-400'
    """
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[half + 1 - longest :]}"


_LONGEST_QUOTE: Final = 60


def shortened(words: str) -> str:
    r"""A quotation on one line, cut after sixty characters.

    >>> shortened("Sure,\nhere it is")
    'Sure, here it is'
    """
    line = " ".join(words[: 4 * _LONGEST_QUOTE].split())
    return line if len(line) <= _LONGEST_QUOTE else f"{line[: _LONGEST_QUOTE - 1]}…"
