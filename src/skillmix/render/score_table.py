"""The table of `skillmix scores`."""

from collections.abc import Iterable, Sequence

from skillmix.core.scoring import METRICS, Score
from skillmix.render.numbers import share_with_interval
from skillmix.render.tables import markdown_table

_HEADER = (
    "student",
    "grader",
    "setting",
    "k",
    "full marks",
    "all skills",
    "skill fraction",
    "full marks, one try",
    "complete",
    "ungraded",
    "format failures",
)
NOTE = (
    "Best of the generations of a combination, mean over complete combinations, 95 % interval; "
    "complete counts combinations, ungraded and format failures count texts, as full marks see them."
)


def score_table(scores: Iterable[Score]) -> str:
    """One row for each student, grader, setting and k."""
    cells: dict[tuple[str, str, str, int], dict[str, Score]] = {}
    for score in scores:
        cells.setdefault((score.student, score.grader, score.setting, score.k), {})[score.metric] = score
    rows = [_row(place, by_metric) for place, by_metric in cells.items()]
    return markdown_table(_HEADER, rows, right=frozenset({3, 8, 9, 10}))


def _row(place: tuple[str, str, str, int], by_metric: dict[str, Score]) -> Sequence[str]:
    full = by_metric["full_marks"]
    return (
        *map(str, place),
        *(share_with_interval(m.value, m.low, m.high) for m in (by_metric[name] for name in METRICS)),
        share_with_interval(full.one_try, full.one_try_low, full.one_try_high),
        f"{full.complete}/{full.combinations}",
        str(full.ungraded),
        str(full.format_failures),
    )
