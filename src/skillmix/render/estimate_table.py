"""The table of `skillmix run --dry-run`."""

from collections.abc import Sequence

from skillmix.render.numbers import dollars, whole
from skillmix.render.tables import markdown_table

Row = tuple[str, str, int, int, int, float | None]
_HEADER = ("step", "model", "calls", "tokens in, at most", "tokens out, at most", "US dollars, at most")
AT_LEAST = ", at least"
"""How the step of a row ends that is a lower bound, and is in no sum."""


def estimate_table(rows: Sequence[Row]) -> str:
    """One row for each model of each step, and the sum of the most that they may be."""
    cells = [[step, model, whole(c), whole(i), whole(o), dollars(usd)] for step, model, c, i, o, usd in rows]
    most = [row for row in rows if not row[0].endswith(AT_LEAST)]
    known = [usd for *_, usd in most if usd is not None]
    total = sum(known) if len(known) == len(most) else None
    cells.append(
        [
            "all",
            "",
            whole(sum(r[2] for r in most)),
            whole(sum(r[3] for r in most)),
            whole(sum(r[4] for r in most)),
            dollars(total),
        ]
    )
    return markdown_table(_HEADER, cells, right=frozenset({2, 3, 4, 5}))
