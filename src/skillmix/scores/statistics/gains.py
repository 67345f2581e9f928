"""A paired difference over one run or over several seeds and partitions, and how much more data would settle it."""

from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np

from skillmix.scores.statistics.differences import combinations_needed, paired_difference
from skillmix.scores.statistics.intervals import ROUNDING, wilson_interval
from skillmix.scores.statistics.pooling import Nested, pooled

Unit = Literal["combinations", "seeds", "partitions"]


@dataclass(frozen=True, slots=True)
class Gain:
    """Second minus first on the same combinations."""

    mean: float
    low: float
    high: float
    p: float
    combinations: int
    seeds: int
    partitions: int
    unit: Unit
    """What there would have to be more of: the highest level that has several."""
    values: tuple[float, ...]
    """One for each unit."""


def gain(nested: Nested) -> Gain:
    """The mean difference, with the test of one run or the interval over the levels of several."""
    every = [value for seeds in nested.values() for values in seeds.values() for value in values]
    runs = [values for seeds in nested.values() for values in seeds.values()]
    counts = {"combinations": len(every), "seeds": len(runs), "partitions": len(nested)}
    if len(runs) == 1:
        known = paired_difference(dict.fromkeys(map(str, range(len(every))), 0.0), _by_place(every))
        assert known is not None  # nested holds at least one value
        ends = (known.difference, known.low, known.high, known.p)
        return Gain(*ends, **counts, unit="combinations", values=tuple(every))
    over = pooled(nested)
    if len(nested) > 1:
        means = tuple(float(np.mean([np.mean(v) for v in seeds.values()])) for seeds in nested.values())
        return Gain(over.mean, over.low, over.high, over.p, **counts, unit="partitions", values=means)
    means = tuple(float(np.mean(v)) for v in runs)
    return Gain(over.mean, over.low, over.high, over.p, **counts, unit="seeds", values=means)


def _by_place(values: list[float]) -> dict[str, float]:
    return {str(place): value for place, value in enumerate(values)}


def more_to_find(found: Gain, *, level: float) -> int | None:
    """How many more units a test at that level needs to find the observed mean with 80 % power."""
    needed = combinations_needed(np.asarray(found.values, dtype=np.float64), level=level)
    return None if needed is None else max(1, needed - len(found.values))


def more_to_exclude(found: Gain, margin: float) -> int | None:
    """How many more units bring the upper end of the interval below a margin, if the mean stays what it is."""
    room = margin - found.mean
    if room <= 0:
        return None
    n = len(found.values)
    if max(found.values) - min(found.values) < ROUNDING:
        needed = n
        while wilson_interval(0.0, needed).high * (1 - found.mean) >= room:
            needed = ceil(needed * 1.02) + 1
    else:
        needed = ceil(n * ((found.high - found.mean) / room) ** 2) + 1
    return max(1, needed - n)
