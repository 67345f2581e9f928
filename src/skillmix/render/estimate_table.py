"""The table of `skillmix run --dry-run`."""

from collections.abc import Sequence
from typing import Final

from skillmix.render.numbers import dollars, hours, whole
from skillmix.render.tables import markdown_table

Row = tuple[str, str, int, int | None, int, float | None, float | None]
_HEADER: Final = (
    "step",
    "model",
    "calls",
    "tokens in, at most",
    "tokens out, at most",
    "US dollars, at most",
    "GPU hours, at most",
)
AT_LEAST: Final = ", at least"
"""How the step of a row ends that is a lower bound, and is in no sum."""


def estimate_table(rows: Sequence[Row]) -> str:
    """One row for each model of each step, and the sum of the most that they may be, unknown if a part of it is."""
    most = [row for row in rows if not row[0].endswith(AT_LEAST)]
    cells = [[step, model, *_numbers(*numbers)] for step, model, *numbers in rows]
    cells.append(["all", "", *_numbers(*(_total([row[place] for row in most]) for place in range(2, 7)))])
    return markdown_table(_HEADER, cells, right=frozenset(range(2, 7)))


def _numbers(
    calls: float | None, tokens_in: float | None, tokens_out: float | None, usd: float | None, gpu: float | None
) -> list[str]:
    counts = ["unknown" if number is None else whole(int(number)) for number in (calls, tokens_in, tokens_out)]
    return [*counts, dollars(usd), hours(gpu)]


def _total(values: Sequence[object]) -> float | None:
    known = [value for value in values if isinstance(value, int | float)]
    return sum(known) if len(known) == len(values) else None
