"""Parts of the Markdown pages that tools.docs writes."""

from collections.abc import Iterable, Sequence
from typing import Final

WRITTEN: Final = "<!-- written by `make docs` from the code; change the code, not this page -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(table(["key", "kind"], [["a|b", "text"]]))
    | key | kind |
    |---|---|
    | a\\|b | text |
    """
    lines = [list(head), ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("|---" * len(head) + "|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)
