"""Which skills succeed, alone, in pairs and together."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations as subsets

from skillmix.grading.points import FULL_MARKS, Points
from skillmix.scores.cells import Cell
from skillmix.scores.statistics.intervals import wilson_interval


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something was shown of the times it was asked for."""

    shown: int
    asked: int

    @property
    def value(self) -> float:
        """The share."""
        return self.shown / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson interval over texts; texts of one combination are correlated, so the true uncertainty is larger."""
        return wilson_interval(self.value, self.asked)


def skill_rates(cells: Iterable[Cell]) -> dict[str, Rate]:
    """For each skill, how many of the texts that were asked for it show it; undecided points do not count."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for skills, points in _texts(cells):
        for skill, point in zip(skills, points, strict=False):
            if point is not None:
                counts[skill][0] += point
                counts[skill][1] += 1
    return {skill: Rate(*counts[skill]) for skill in sorted(counts)}


def pair_rates(cells: Iterable[Cell]) -> dict[tuple[str, str], Rate]:
    """For each pair of skills, how many of the texts that were asked for both show both."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for skills, points in _texts(cells):
        known = [(s, p) for s, p in zip(skills, points, strict=False) if p is not None]
        for (a, shown_a), (b, shown_b) in subsets(sorted(known), 2):
            counts[a, b][0] += shown_a and shown_b
            counts[a, b][1] += 1
    return {pair: Rate(*counts[pair]) for pair in sorted(counts)}


def _texts(cells: Iterable[Cell]) -> Iterator[tuple[tuple[str, ...], Points]]:
    """Every graded text once: settings can share a text."""
    seen: set[tuple[str, str, str, str, int]] = set()
    for cell in cells:
        run, student, grader = cell.key.run, cell.key.student, cell.key.grader
        for combination, texts in zip(cell.combinations, cell.points, strict=True):
            for generation, points in enumerate(texts):
                key = (run, student, grader, combination.id, generation)
                if points is not None and key not in seen:
                    seen.add(key)
                    yield combination.skills, points


@dataclass(frozen=True, slots=True)
class Saturation:
    """The largest k with full marks of at least a level, by the value and by both ends of its interval."""

    k: int
    k_low: int
    k_high: int
    largest_tried: int


def saturation(cells: Iterable[Cell], *, level: float) -> Saturation | None:
    """Go up from the smallest k of one student, grader and setting, and stop at the first k below the level."""
    scores = [(c.key.k, c.scores[FULL_MARKS]) for c in sorted(cells, key=lambda c: c.key.k)]
    known = [(k, s) for k, s in scores if s.value is not None]
    if not known:
        return None

    def last(ends: list[float]) -> int:
        reached = 0
        for (k, _), end in zip(known, ends, strict=True):
            if end < level:
                break
            reached = k
        return reached

    by_value, by_low, by_high = (last([float(getattr(s, end)) for _, s in known]) for end in ("value", "low", "high"))
    return Saturation(k=by_value, k_low=by_low, k_high=by_high, largest_tried=known[-1][0])
