"""Tables as text: aligned for a terminal, and valid Markdown at the same time."""

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    r"""Rows under a header; the columns in `right` are aligned to the right.

    >>> print(markdown_table(["name", "n"], [["a|b", "1"]], right=frozenset({1})))
    | name |  n |
    |:-----|---:|
    | a\|b |  1 |
    """
    cells = [[_one_line(cell) for cell in row] for row in [header, *rows]]
    widths = [max(2, *(len(row[column]) for row in cells)) for column in range(len(header))]
    lines = [_line(row, widths, right) for row in cells]
    rule = "|".join("-" * (w + 1) + ":" if c in right else ":" + "-" * (w + 1) for c, w in enumerate(widths))
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def _line(row: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> str:
    padded = [
        cell.rjust(w) if c in right else cell.ljust(w) for c, (cell, w) in enumerate(zip(row, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _one_line(cell: str) -> str:
    """A cell without line breaks, borders and control characters; model output can contain any of them."""
    printable = "".join(c if c.isprintable() else " " for c in cell)
    return " ".join(printable.split()).replace("|", "\\|")
