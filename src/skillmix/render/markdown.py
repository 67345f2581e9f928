"""Tables as text: aligned for a terminal, and valid Markdown at the same time."""

import re
from collections.abc import Sequence
from typing import Final


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    r"""Rows under a header; the columns in `right` are aligned to the right, scores with intervals by their points.

    >>> rows = [["a|b", "1", ".50 [.10, .90]"], ["c", "12", "1.00 [.44, 1.00]"]]
    >>> print(markdown_table(["name", "n", "score"], rows, right=frozenset({1})))
    | name |  n | score            |
    |:-----|---:|:-----------------|
    | a\|b |  1 |  .50 [.10, .90]  |
    | c    | 12 | 1.00 [.44, 1.00] |
    """
    cells = [[_one_line(cell) for cell in header], *_aligned([[_one_line(cell) for cell in row] for row in rows])]
    widths = [max(2, *(len(row[column]) for row in cells)) for column in range(len(header))]
    lines = [_line(row, widths, right) for row in cells]
    rule = "|".join("-" * (w + 1) + ":" if c in right else ":" + "-" * (w + 1) for c, w in enumerate(widths))
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


_SCORE: Final = re.compile(r"[+−]?\d?\.\d\d(?= \[|$)|–$")


def _aligned(rows: list[list[str]]) -> list[list[str]]:
    """The rows with the first number of each cell padded, in columns that hold only scores."""
    columns = [_with_equal_scores(column) for column in zip(*rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def _with_equal_scores(column: Sequence[str]) -> Sequence[str]:
    matches = [_SCORE.match(cell) for cell in column]
    widths = [match.end() for match in matches if match]
    if len(widths) < len(column):
        return column
    return [" " * (max(widths) - width) + cell for width, cell in zip(widths, column, strict=True)]


def _line(row: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> str:
    padded = [
        cell.rjust(w) if c in right else cell.ljust(w) for c, (cell, w) in enumerate(zip(row, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _one_line(cell: str) -> str:
    """A cell without line breaks, borders and control characters; model output can contain any of them."""
    printable = "".join(c if c.isprintable() else " " for c in cell)
    return " ".join(printable.split()).replace("|", "\\|")
