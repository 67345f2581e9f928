"""Tables as HTML, for notebooks."""

from collections.abc import Sequence
from html import escape

from skillmix.render.untrusted import one_line


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Rows under a header, every cell escaped; the columns in `right` are aligned to the right.

    >>> html_table(["name"], [["<b>"]])
    '<table><thead><tr><th>name</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    body = "".join(f"<tr>{_cells(row, 'td', right)}</tr>" for row in rows)
    return f"<table><thead><tr>{_cells(header, 'th', right)}</tr></thead><tbody>{body}</tbody></table>"


def _cells(row: Sequence[str], tag: str, right: frozenset[int]) -> str:
    styles = [' style="text-align: right"' if column in right else "" for column in range(len(row))]
    return "".join(f"<{tag}{style}>{escape(one_line(cell))}</{tag}>" for cell, style in zip(row, styles, strict=True))
