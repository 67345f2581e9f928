"""The texts behind one cell of a table, with everything that is counted from them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from skillmix.core.combinations import Combination
from skillmix.core.scoring import Metric, Points, Summary, summarise, text_score, valid_share
from skillmix.core.text_rules import AnswerStatus


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
