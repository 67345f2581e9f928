"""Lay out tables and sentences for a terminal of 100 columns."""

from collections.abc import Sequence
from itertools import zip_longest
from math import ceil
from textwrap import fill, wrap
from typing import Final

from skillmix.render.markdown import markdown_table

WIDTH: Final = 100
"""Columns of a terminal that every output fits into."""


def wrapped(text: str, *, indent: int = 0) -> str:
    """A text in lines that fit the terminal; its own line breaks stay, and later lines are indented.

    >>> print(wrapped("word " * 25 + "end", indent=2))
    word word word word word word word word word word word word word word word word word word word word
      word word word word word end
    """
    lines = text.split("\n")
    return "\n".join(
        fill(line, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
        for line in lines
    )


def side_by_side(left: Sequence[str], right: Sequence[str], *, marked: Sequence[bool] = ()) -> str:
    """Paragraphs in two columns, each pair level; a star stands before a marked pair.

    >>> print(side_by_side(["tuned", "+ topic"], ["base", "- topic: no word of it"], marked=[False, True]))
      tuned                                             base
    * + topic                                           - topic: no word of it
    """
    lines = []
    for number, pair in enumerate(zip(left, right, strict=True)):
        first, second = (wrap(text, _HALF, subsequent_indent="  ") or [""] for text in pair)
        for level, (one, two) in enumerate(zip_longest(first, second, fillvalue="")):
            is_marked = not level and number < len(marked) and marked[number]
            lines.append(f"{'*' if is_marked else ' '} {one:<{_HALF}}  {two}".rstrip())
    return "\n".join(lines)


_HALF: Final = (WIDTH - 4) // 2


def panels(header: Sequence[str], rows: Sequence[Sequence[str]], *, names: int, right: frozenset[int]) -> str:
    """A table that fits the terminal: if it is too wide, its columns go into several tables of similar width.

    The first columns, as many as `names` says, are in each of them.

    >>> row = ["a", *["x" * 40] * 3]
    >>> print(panels(["name", "one", "two", "three"], [row], names=1, right=frozenset()))
    | name | one                                      | two                                      |
    |:-----|:-----------------------------------------|:-----------------------------------------|
    | a    | xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx |
    <BLANKLINE>
    | name | three                                    |
    |:-----|:-----------------------------------------|
    | a    | xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx |
    """
    tables: list[str] = []
    others = range(names, len(header))
    for count in range(1, len(others) + 1):
        size = ceil(len(others) / count)
        starts = range(names, len(header), size)
        tables = [_part(header, rows, [*range(names), *others[s - names : s - names + size]], right) for s in starts]
        if all(len(line) <= WIDTH for table in tables for line in table.splitlines()):
            break
    return "\n\n".join(tables)


def _part(header: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int], right: frozenset[int]) -> str:
    own = frozenset(index for index, column in enumerate(columns) if column in right)
    return markdown_table([header[c] for c in columns], [[row[c] for c in columns] for row in rows], right=own)
