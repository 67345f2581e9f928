"""Helpers for the Markdown pages that tools.docs generates."""

from collections.abc import Iterable, Sequence
from typing import Final

WRITTEN: Final = "<!-- written by `make docs` from the code; change the code, not the lines below -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Return a Markdown table.

    >>> print(table(["key", "kind"], [["a|b", "text"]]))
    | key | kind |
    |---|---|
    | a\|b | text |
    """
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (head, *rows)]
    first, *others = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([first, "|---" * len(head) + "|", *others])
