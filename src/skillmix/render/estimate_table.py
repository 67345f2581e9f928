"""The table of `skillmix run --dry-run`."""

from collections.abc import Sequence

from skillmix.render.numbers import dollars, whole
from skillmix.render.tables import markdown_table

Row = tuple[str, str, int, int, int, float | None]
_HEADER = ("step", "model", "calls", "tokens in, at most", "tokens out, at most", "US dollars, at most")


def estimate_table(rows: Sequence[Row]) -> str:
    """One row for each model of each step, and their sum."""
    cells = [[step, model, whole(c), whole(i), whole(o), dollars(usd)] for step, model, c, i, o, usd in rows]
    known = [usd for *_, usd in rows if usd is not None]
    total = sum(known) if len(known) == len(rows) else None
    cells.append(
        [
            "all",
            "",
            whole(sum(r[2] for r in rows)),
            whole(sum(r[3] for r in rows)),
            whole(sum(r[4] for r in rows)),
            dollars(total),
        ]
    )
    return markdown_table(_HEADER, cells, right=frozenset({2, 3, 4, 5}))
