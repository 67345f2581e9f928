"""The texts behind one cell of a table, with everything that is counted from them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

from skillmix.catalog.combinations import Combination
from skillmix.grading.answers import AnswerStatus
from skillmix.grading.points import Metric, Points, text_score
from skillmix.scores.statistics.intervals import mean_interval, wilson_interval


@dataclass(frozen=True, slots=True)
class Summary:
    """One metric over the combinations of a cell."""

    value: float | None
    """Mean of the best of G over complete combinations; None if none is complete."""
    low: float | None
    high: float | None
    bound_low: float | None
    """The same over all combinations with ungraded texts as 0, and as 1 in bound_high."""
    bound_high: float | None
    combinations: int
    complete: int
    ungraded: int
    """Texts without a score for this metric."""
    one_try: float | None
    """Mean over single texts of complete combinations."""
    one_try_low: float | None
    one_try_high: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """One metric in one cell of a run; the fields are those that `scores --json` prints."""

    run: str
    student: str
    grader: str
    catalog: str | None
    partition: str | None
    prompts: str | None
    seed: int | None
    setting: str
    k: int
    metric: Metric
    value: float | None
    low: float | None
    high: float | None
    bound_low: float | None
    bound_high: float | None
    combinations: int
    complete: int
    ungraded: int
    format_failures: int
    """Texts without the marker, or empty."""
    one_try: float | None
    one_try_low: float | None
    one_try_high: float | None
    sets: str = "all"
    """Which skill sets of the cell: all, those that are reserved, or those that data sets may hold ("seen")."""
    trained_on: int | None = None
    """Combinations that the student was trained on; None if its lineage is not known."""
    written: int = 0
    """Texts that are there and no refusals: those that have a format."""

    @property
    def format_valid(self) -> float | None:
        """The share of them with the marker and something behind it."""
        return valid_share(self.format_failures, self.written)


def valid_share(failures: int, written: int) -> float | None:
    """The share of texts whose format was valid; nothing is known where none was written.

    >>> valid_share(1, 4), valid_share(0, 0)
    (0.75, None)
    """
    return (written - failures) / written if written else None


def summarise(scores: Sequence[Sequence[float | None]], metric: Metric) -> Summary:
    """Sum up a cell: for each combination the scores of its G texts, None where ungraded."""
    complete = [[s for s in texts if s is not None] for texts in scores if texts and None not in texts]
    best = [max(texts) for texts in complete]
    tries = [fmean(texts) for texts in complete]
    value, low, high = _mean_with(best, binary=metric != "skill_fraction")
    one_try, one_try_low, one_try_high = _mean_with(tries, binary=False)
    return Summary(
        value=value,
        low=low,
        high=high,
        bound_low=_mean([max(_filled(texts, 0.0), default=0.0) for texts in scores]),
        bound_high=_mean([max(_filled(texts, 1.0), default=1.0) for texts in scores]),
        combinations=len(scores),
        complete=len(complete),
        ungraded=sum(texts.count(None) for texts in map(list, scores)),
        one_try=one_try,
        one_try_low=one_try_low,
        one_try_high=one_try_high,
    )


def _mean_with(values: list[float], *, binary: bool) -> tuple[float | None, float | None, float | None]:
    mean = _mean(values)
    if mean is None:
        return None, None, None
    interval = wilson_interval(mean, len(values)) if binary else mean_interval(values)
    return mean, interval.low, interval.high


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _filled(texts: Sequence[float | None], filling: float) -> list[float]:
    return [filling if score is None else score for score in texts]


class Place(NamedTuple):
    """Where a cell stands."""

    run: str
    student: str
    grader: str
    setting: str
    k: int


@dataclass(frozen=True)
class Cell:
    """The combinations of one place: for each its generations, None where a text or its grading is missing."""

    place: Place
    combinations: tuple[Combination, ...]
    points: tuple[tuple[Points | None, ...], ...]
    statuses: tuple[tuple[AnswerStatus | None, ...], ...]

    def values(self, metric: Metric) -> list[list[float | None]]:
        """A metric of every text, by combination."""
        return [[None if p is None else text_score(p, metric) for p in texts] for texts in self.points]

    def best(self, metric: Metric) -> dict[str, float]:
        """The best of the generations of every combination whose texts are all graded."""
        values = zip(self.combinations, self.values(metric), strict=True)
        complete = [(c.id, [v for v in texts if v is not None]) for c, texts in values if texts and None not in texts]
        return {combination: max(texts) for combination, texts in complete}

    def summary(self, metric: Metric) -> Summary:
        """Value, interval, bounds and counts."""
        if metric not in self._summaries:
            self._summaries[metric] = summarise(self.values(metric), metric)
        return self._summaries[metric]

    @cached_property
    def _summaries(self) -> dict[Metric, Summary]:
        return {}

    def count(self, *statuses: AnswerStatus) -> int:
        """Texts whose answer has one of these statuses."""
        return sum(status in statuses for texts in self.statuses for status in texts)

    @property
    def format_failures(self) -> int:
        """Texts without the marker, or empty."""
        return self.count("no marker", "empty")

    @property
    def written(self) -> int:
        """Texts that are there and have a format; a refusal has none."""
        return self.count("fine", "no marker", "empty")

    @property
    def format_valid(self) -> float | None:
        """The share of them with the marker and something behind it."""
        return valid_share(self.format_failures, self.written)

    def only(self, wanted: Callable[[Combination], bool]) -> "Cell":
        """The same cell with some of its combinations."""
        kept = [place for place, combination in enumerate(self.combinations) if wanted(combination)]
        return replace(
            self,
            combinations=tuple(self.combinations[i] for i in kept),
            points=tuple(self.points[i] for i in kept),
            statuses=tuple(self.statuses[i] for i in kept),
        )


def largest_cells(cells: Iterable[Cell]) -> dict[Place, Cell]:
    """One cell for each place: two steps may draw for the same one, and the larger draw holds the smaller."""
    found: dict[Place, Cell] = {}
    for cell in cells:
        if cell.place not in found or len(found[cell.place].combinations) < len(cell.combinations):
            found[cell.place] = cell
    return found
