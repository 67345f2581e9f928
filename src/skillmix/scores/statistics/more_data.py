"""How much more data would probably decide an open difference, and of which kind.

More seeds shrink the part of the variance that differs between seeds, more combinations the part that differs between
combinations, and both shrink the rest. If the part that one kind leaves is too large alone, that kind does not help.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Final

import numpy as np

from skillmix.scores.statistics.differences import POWER, Gain, units_needed
from skillmix.scores.statistics.intervals import CONFIDENCE, ROUNDING, wilson_interval
from skillmix.scores.statistics.pooling import FEWEST_UNITS, Components
from skillmix.scores.statistics.student_t import t_quantile

_MOST_UNITS: Final = 200
_MOST_COMBINATIONS: Final = 1_000_000
_FEWEST_COMBINATIONS: Final = 6
"""As for `combinations_needed`: five pairs cannot reach p = .05."""


@dataclass(frozen=True, slots=True)
class MoreData:
    """Numbers of additional units, each of which would do alone; None if that kind alone does not help."""

    combinations: int | None = None
    """For each k and, if there are several seeds or partitions, for each of them."""
    seeds: int | None = None
    partitions: int | None = None

    def __bool__(self) -> bool:
        """Whether any kind helps."""
        return (self.combinations, self.seeds, self.partitions) != (None, None, None)


def more_to_find(observed: Gain, *, level: float) -> MoreData:
    """What a test at the given level needs to find the observed mean with 80 % power."""
    if observed.components is not None:
        return _more_of_either(observed, observed.components, abs(observed.mean), level)
    needed = observed.needed(level)
    return MoreData() if needed is None else MoreData(combinations=max(1, needed - len(observed.values)))


def more_to_exclude(observed: Gain, margin: float) -> MoreData:
    """What brings the upper end of the interval below a margin with 80 % probability, if the mean is as observed."""
    room = margin - observed.mean
    if room <= 0:
        return MoreData()
    if max(observed.values) - min(observed.values) < ROUNDING and observed.components is None:
        return MoreData(combinations=_more_of_equal(observed, room))
    if observed.components is not None:
        return _more_of_either(observed, observed.components, room, 1 - CONFIDENCE)
    return _more_combinations(observed, room, 1 - CONFIDENCE)


def smallest(needs: Iterable[MoreData]) -> MoreData:
    """The least of each kind, for a claim that any of several differences would decide."""
    known = list(needs)
    return _combined(known, lambda numbers: min((n for n in numbers if n is not None), default=None))


def largest(needs: Iterable[MoreData]) -> MoreData:
    """The most of each kind, for a claim that all of several differences have to decide."""
    known = list(needs)
    return _combined(known, _largest_number)


def _largest_number(numbers: Sequence[int | None]) -> int | None:
    known = [n for n in numbers if n is not None]
    return max(known) if known and len(known) == len(numbers) else None


def _combined(needs: list[MoreData], choose: Callable[[Sequence[int | None]], int | None]) -> MoreData:
    return MoreData(
        combinations=choose([n.combinations for n in needs]),
        seeds=choose([n.seeds for n in needs]),
        partitions=choose([n.partitions for n in needs]),
    )


def _more_combinations(observed: Gain, distance: float, level: float) -> MoreData:
    """Combinations of one run."""
    n = len(observed.values)
    spread = float(np.std(observed.values, ddof=1)) if n > 1 else 0.0
    if spread < ROUNDING or distance < ROUNDING:
        return MoreData()
    needed = units_needed(spread, distance, fewest=_FEWEST_COMBINATIONS, level=level)
    return MoreData(combinations=max(1, needed - n))


def _more_of_either(observed: Gain, parts: Components, distance: float, level: float) -> MoreData:
    """More seeds or partitions with as many combinations, or more combinations for each of them."""
    if distance < ROUNDING:
        return MoreData()

    def is_enough(units: int, combinations: int) -> bool:
        variance, degrees = parts.expected(units, combinations)
        t = t_quantile(1 - level / 2, float(degrees)) + t_quantile(POWER, float(degrees))
        return bool(t * sqrt(float(variance)) <= distance)

    units, combinations = parts.units, parts.combinations
    enough_units = next((n for n in range(units + 1, _MOST_UNITS) if is_enough(n, combinations)), None)
    more_units = None if enough_units is None else enough_units - units
    enough = combinations + 1 if units >= FEWEST_UNITS else _MOST_COMBINATIONS
    while enough < _MOST_COMBINATIONS and not is_enough(units, enough):
        enough = ceil(enough * 1.02)
    more_combinations = enough - combinations if enough < _MOST_COMBINATIONS else None
    if observed.unit == "partitions":
        return MoreData(combinations=more_combinations, partitions=more_units)
    return MoreData(combinations=more_combinations, seeds=more_units)


def _more_of_equal(observed: Gain, room: float) -> int:
    """Combinations until Wilson's bound on the share of other differences is below the room."""
    needed = observed.combinations
    while wilson_interval(0.0, needed).high * (1 - observed.mean) >= room:
        needed = ceil(needed * 1.02) + 1
    return max(1, needed - observed.combinations)
