"""Cells of the score table, with the points of their texts and the scores computed from these points."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from statistics import fmean
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

from skillmix.catalog.combinations import Combination
from skillmix.experiment.step_base import label_parts
from skillmix.grading.answers import CUT_IN_THOUGHT, AnswerStatus
from skillmix.grading.points import FULL_MARKS, METRICS, Points, text_score, woven_full_marks
from skillmix.scores.statistics.intervals import (
    FEWEST_COMBINATIONS,
    Cluster,
    cluster_interval,
    cluster_share,
    mean_interval,
    wilson_interval,
)


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a cell in one metric, with its intervals, bounds and counts."""

    value: float | None
    """The mean of the best of G texts over complete combinations; None if no combination is complete."""
    low: float | None
    """None if there is no value, or if the metric is not binary and too few combinations are complete."""
    high: float | None
    bound_low: float | None
    """The value over all combinations if every ungraded text scored 0; `bound_high` assumes that each scored 1."""
    bound_high: float | None
    combinations: int
    complete: int
    """The number of combinations whose texts are all graded."""
    ungraded: int
    """The number of texts without a score for this metric."""
    format_failures: int
    """The number of replies that lack the marker or a text, or were truncated while the model was still thinking."""
    one_try: float | None
    """The mean over all single texts of complete combinations."""
    one_try_low: float | None
    """None if fewer than `FEWEST_COMBINATIONS` combinations are complete."""
    one_try_high: float | None
    valid_texts: int = field(default=0, kw_only=True)
    """The number of texts with a valid format and a score for this metric."""
    among_valid: float | None = field(default=None, kw_only=True)
    """The mean over the texts with a valid format; None if there is no such text."""
    among_valid_low: float | None = field(default=None, kw_only=True)
    """None if fewer than `FEWEST_COMBINATIONS` combinations have a text with a valid format."""
    among_valid_high: float | None = field(default=None, kw_only=True)
    cut: int | None = field(default=None, kw_only=True)
    """The number of replies truncated at the token limit; None if no provider reported why replies ended."""
    woven: float | None = field(default=None, kw_only=True)
    """For full marks, the share of combinations with a text that has full marks and applies every skill to the topic.

    None for other metrics, or if code checks no text of the cell.
    """
    woven_low: float | None = field(default=None, kw_only=True)
    woven_high: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class OfCell:
    """The cell and the run to which a number belongs."""

    run: str
    student: str
    grader: str
    catalog: str | None
    partition: str | None
    prompts: str | None
    seed: int | None
    setting: str
    k: int

    about: ClassVar[tuple[str, ...]]
    """The fields, besides those of the cell, that identify the number, such as its metric."""

    def json_row(self) -> dict[str, object]:
        """Return the fields in the order of `scores --json`: those of the cell, those in `about`, and the numbers."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        row["setting"] = label_parts(self.setting).setting
        first = {name: row.pop(name) for name in (*(field.name for field in fields(OfCell)), *self.about)}
        return first | row


@dataclass(frozen=True)
class CellScore(Score, OfCell):
    """A score, with the cell, the run and the metric that it belongs to."""

    about = ("metric",)
    metric: str
    sets: str = "all"
    """The skill sets included: all, the reserved ones, or the ones that data sets may contain ("seen")."""
    trained_on: int | None = None
    """The number of combinations that the student was trained on; None if its lineage is unknown."""
    written: int = 0
    """The number of texts whose format is checked: all texts except missing ones and refusals."""
    seen_pairs: int | None = None
    """The number of combinations with two skills that the student saw together when trained under another partition.

    None if the student was not trained under another partition, or if its training data are unknown.
    """

    @property
    def format_valid(self) -> float | None:
        """Return the share of written texts with the marker and an answer after it."""
        return valid_share(self.format_failures, self.written)

    @property
    def cut_share(self) -> float | None:
        """Return the share of replies truncated at the token limit; None if unknown."""
        return None if self.cut is None or not self.written else self.cut / self.written


def valid_share(failures: int, written: int) -> float | None:
    """Return the share of written texts with a valid format; None if no text was written.

    >>> valid_share(1, 4), valid_share(0, 0)
    (0.75, None)
    """
    return (written - failures) / written if written else None


Values = Sequence[Sequence[float | None]]
"""For each combination, the values of one metric for its G texts; None for an ungraded text."""


def summarise(texts_by_combination: Values, metric: str, *, format_failures: int = 0) -> Score:
    """Compute the score of a cell from the values of its texts."""
    complete = [[s for s in texts if s is not None] for texts in texts_by_combination if texts and None not in texts]
    best = [max(texts) for texts in complete]
    tries = [fmean(texts) for texts in complete]
    value, low, high = _mean_and_interval(best, binary=METRICS[metric].is_binary)
    one_try, one_try_low, one_try_high = _mean_and_interval(tries, binary=False)
    return Score(
        value=value,
        low=low,
        high=high,
        bound_low=_mean([max([v or 0.0 for v in texts], default=0.0) for texts in texts_by_combination]),
        bound_high=_mean([max([1.0 if v is None else v for v in own], default=1.0) for own in texts_by_combination]),
        combinations=len(texts_by_combination),
        complete=len(complete),
        ungraded=sum(texts.count(None) for texts in map(list, texts_by_combination)),
        format_failures=format_failures,
        one_try=one_try,
        one_try_low=one_try_low,
        one_try_high=one_try_high,
    )


def _mean_and_interval(values: list[float], *, binary: bool) -> tuple[float | None, float | None, float | None]:
    mean = _mean(values)
    if mean is None or (not binary and len(values) < FEWEST_COMBINATIONS):
        return mean, None, None
    return mean, *(wilson_interval(mean, len(values)) if binary else mean_interval(values))


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


WRITTEN: Final[tuple[AnswerStatus, ...]] = ("fine", "no marker", "empty", CUT_IN_THOUGHT)


class CellKey(NamedTuple):
    """The identity of a cell."""

    run: str
    student: str
    grader: str
    setting: str
    k: int


@dataclass(frozen=True)
class Cell:
    """The combinations of one cell, each with its samples; a sample is None if its text or its grade is missing."""

    key: CellKey
    combinations: tuple[Combination, ...]
    points: tuple[tuple[Points | None, ...], ...]
    statuses: tuple[tuple[AnswerStatus | None, ...], ...]
    cuts: tuple[tuple[bool | None, ...], ...] = ()
    """Whether each reply was truncated at the token limit. If unknown, the value is None or all rows are missing."""
    woven: tuple[tuple[bool | None, ...], ...] = ()
    """Whether each text applies every skill to the topic. If unknown, the value is None or all rows are missing."""

    def values(self, metric: str) -> list[list[float | None]]:
        """Compute the metric of every text, grouped by combination."""
        different = {p for texts in self.points for p in texts}  # few distinct values, even for many texts
        known = {p: None if p is None else text_score(p, metric) for p in different}
        return [[known[p] for p in texts] for texts in self.points]

    def best(self, metric: str) -> dict[str, float]:
        """Compute the metric of the best text of every complete combination, by combination id."""
        values = zip(self.combinations, self.values(metric), strict=True)
        complete = [(c.id, [v for v in texts if v is not None]) for c, texts in values if texts and None not in texts]
        return {combination: max(texts) for combination, texts in complete}

    @cached_property
    def scores(self) -> Mapping[str, Score]:
        """Compute the score of every metric."""
        return MappingProxyType({metric: self._score(metric) for metric in METRICS})

    def _score(self, metric: str) -> Score:
        score = summarise(self.values(metric), metric, format_failures=self.format_failures)
        clusters = [cluster for cluster in self.valid_clusters(metric).values() if cluster.texts]
        has_interval = len(clusters) >= FEWEST_COMBINATIONS
        low, high = cluster_interval(clusters) if has_interval else (None, None)
        woven, woven_low, woven_high = self._woven() if metric == FULL_MARKS else (None, None, None)
        return replace(
            score,
            valid_texts=sum(cluster.texts for cluster in clusters),
            among_valid=cluster_share(clusters),
            among_valid_low=low,
            among_valid_high=high,
            cut=self.cut,
            woven=woven,
            woven_low=woven_low,
            woven_high=woven_high,
        )

    def _woven(self) -> tuple[float | None, float | None, float | None]:
        """Compute woven full marks with their interval; all None if code cannot judge some text with full marks."""
        if not any(woven is not None for texts in self.woven for woven in texts):
            return None, None, None
        values = [
            [None if p is None else woven_full_marks(p, woven) for p, woven in zip(points, texts, strict=True)]
            for points, texts in zip(self.points, self.woven, strict=True)
        ]
        # Texts without full marks always have a known score, so omitting only unknown texts would keep all failures.
        pairs = zip(self.points, values, strict=True)
        if any(p is not None and v is None for points, texts in pairs for p, v in zip(points, texts, strict=True)):
            return None, None, None
        score = summarise(values, FULL_MARKS)
        return score.value, score.low, score.high

    def valid_clusters(self, metric: str) -> dict[str, Cluster]:
        """Return, by combination id, the texts that have a valid format and a score for the metric."""
        clusters = {}
        for combination, values, statuses in zip(self.combinations, self.values(metric), self.statuses, strict=True):
            valid = [v for v, s in zip(values, statuses, strict=True) if s == "fine" and v is not None]
            clusters[combination.id] = Cluster(sum(valid), len(valid))
        return clusters

    def format_clusters(self) -> dict[str, Cluster]:
        """Return, by combination id, the number of texts whose format is checked and how many formats are valid."""
        return {
            combination.id: Cluster(statuses.count("fine"), sum(status in WRITTEN for status in statuses))
            for combination, statuses in zip(self.combinations, self.statuses, strict=True)
        }

    @property
    def cut(self) -> int | None:
        """Count replies truncated at the token limit; None if no provider reported why replies ended."""
        known = [cut for cuts in self.cuts for cut in cuts if cut is not None]
        return sum(known) if known else None

    def count(self, *statuses: AnswerStatus) -> int:
        """Count the texts whose answer has one of these statuses."""
        return sum(status in statuses for texts in self.statuses for status in texts)

    @property
    def format_failures(self) -> int:
        """Count replies that lack the marker or a text, or were truncated while the model was still thinking."""
        return self.count("no marker", "empty", CUT_IN_THOUGHT)

    @property
    def written(self) -> int:
        """Count the texts whose format is checked: all texts except missing ones and refusals."""
        return self.count(*WRITTEN)

    @property
    def format_valid(self) -> float | None:
        """Return the share of written texts with the marker and an answer after it."""
        return valid_share(self.format_failures, self.written)

    def only(self, wanted: Callable[[Combination], bool]) -> "Cell":
        """Return a copy of the cell with only the wanted combinations."""
        kept = [i for i, combination in enumerate(self.combinations) if wanted(combination)]
        return replace(
            self,
            combinations=tuple(self.combinations[i] for i in kept),
            points=tuple(self.points[i] for i in kept),
            statuses=tuple(self.statuses[i] for i in kept),
            cuts=tuple(self.cuts[i] for i in kept) if self.cuts else (),
            woven=tuple(self.woven[i] for i in kept) if self.woven else (),
        )


Cells = Mapping[CellKey, Cell]


def largest_cells(cells: Iterable[Cell]) -> dict[CellKey, Cell]:
    """Keep the largest cell of each key; if two steps draw for the same key, the larger draw contains the smaller."""
    largest: dict[CellKey, Cell] = {}
    for cell in cells:
        if cell.key not in largest or len(largest[cell.key].combinations) < len(cell.combinations):
            largest[cell.key] = cell
    return largest
