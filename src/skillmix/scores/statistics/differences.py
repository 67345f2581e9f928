"""Differences between two students on the same combinations.

`paired_difference` tests one run. `gain` tests one run or several seeds and partitions, and is what verdicts use.
`more_data.py` says how much more data would decide an open difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, sqrt
from typing import Final, Literal

import numpy as np

from skillmix.scores.statistics.intervals import (
    FEWEST_COMBINATIONS,
    RESAMPLES,
    ROUNDING,
    SEED,
    Floats,
    Interval,
    bootstrap_means,
    constant_interval,
    percentile_interval,
)
from skillmix.scores.statistics.pooling import Components, Nested, pooled
from skillmix.scores.statistics.student_t import t_quantile

POWER: Final = 0.8
_MAX_PAIRS_OF_EXACT_TEST: Final = 1000
_FEWEST_PAIRS: Final = 6
"""With five pairs or fewer no permutation of signs reaches p = .05."""


Unit = Literal["combinations", "seeds", "partitions"]


@dataclass(frozen=True, slots=True)
class Gain:
    """Second minus first on the same combinations."""

    mean: float
    low: float | None
    """None, as is `high`, if there are too few combinations, or only two seeds or partitions that differ."""
    high: float | None
    p: float
    combinations: int
    """Combinations that count; those that several seeds share count once."""
    seeds: int
    partitions: int
    unit: Unit
    """The highest level that has several members."""
    values: tuple[float, ...]
    """The mean difference of each unit."""
    components: Components | None = None
    """The parts of the variance, if there are several seeds or partitions and something varies."""

    def needed(self, level: float = 0.05) -> int | None:
        """How many combinations one training needs to find this mean with 80 % power; None if that is unknown."""
        return combinations_needed(np.asarray(self.values, dtype=np.float64), level=level)

    @property
    def is_above_zero(self) -> bool:
        """Whether the interval lies above 0; without an interval it does not."""
        return self.low is not None and self.low > 0

    @property
    def is_below_zero(self) -> bool:
        """Whether the interval lies below 0; without an interval it does not."""
        return self.high is not None and self.high < 0


def paired_difference(first: Mapping[str, float], second: Mapping[str, float]) -> Gain | None:
    """Compare scores by combination id; None if the students share no combination."""
    shared = sorted(first.keys() & second.keys())
    return difference_of(np.array([second[c] - first[c] for c in shared], dtype=np.float64)) if shared else None


def difference_of(differences: Floats) -> Gain:
    """Interval and test of the mean of at least one paired difference, for one training."""
    generator = np.random.default_rng(SEED)
    n = len(differences)
    low, high = _difference_interval(differences, generator) if n >= FEWEST_COMBINATIONS else (None, None)
    p = permutation_p(differences, generator)
    return Gain(float(differences.mean()), low, high, p, n, 1, 1, "combinations", tuple(map(float, differences)))


def _difference_interval(differences: Floats, generator: np.random.Generator) -> Interval:
    if float(np.ptp(differences)) < ROUNDING:
        # Nothing varies, so a bootstrap interval would have no width; bound the share of other differences instead.
        return constant_interval(float(differences[0]), len(differences))
    return percentile_interval(bootstrap_means(differences, RESAMPLES, generator), len(differences))


def permutation_p(differences: Floats, generator: np.random.Generator) -> float:
    """Two-sided p-value of sign flips: exact if all nonzero differences have one size, else from 10,000 draws."""
    differences = np.where(np.abs(differences) < ROUNDING, 0.0, differences)
    sizes = np.abs(differences[differences != 0])
    if len(sizes) == 0:
        return 1.0
    positive = int((differences > 0).sum())
    if np.allclose(sizes, sizes[0]) and len(sizes) <= _MAX_PAIRS_OF_EXACT_TEST:
        return _sign_test_p(positive, len(sizes))
    observed = abs(float(differences.sum()))
    levels, counts = np.unique(sizes, return_counts=True)
    # The sum of n random signs of one size is size * (2 * Binomial(n, 1/2) - n).
    flipped = (2 * generator.binomial(counts, 0.5, size=(RESAMPLES, len(counts))) - counts) @ levels
    extreme = int((np.abs(flipped) >= observed - 1e-9).sum())
    return (extreme + 1) / (RESAMPLES + 1)


def _sign_test_p(positive: int, n: int) -> float:
    """The exact binomial test with probability one half, which is McNemar's exact test."""
    extreme = max(positive, n - positive)
    tail: int = sum(comb(n, i) for i in range(extreme, n + 1))
    return min(1.0, float(Fraction(2 * tail, 2**n)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of a family of p-values.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def combinations_needed(differences: Floats, *, power: float = POWER, level: float = 0.05) -> int | None:
    """How many combinations a paired test needs to find the observed mean difference with the given power."""
    mean = float(differences.mean())
    if len(differences) < 2 or abs(mean) < ROUNDING:
        return None
    return units_needed(float(differences.std(ddof=1)), mean, fewest=_FEWEST_PAIRS, power=power, level=level)


def units_needed(spread: float, distance: float, *, fewest: int, power: float = POWER, level: float = 0.05) -> int:
    """How many units with this standard deviation separate their mean from a value at this distance."""

    def is_enough(n: int) -> bool:
        t = t_quantile(1 - level / 2, n - 1) + t_quantile(power, n - 1)
        return bool(t * spread <= abs(distance) * sqrt(n))

    too_few, enough = fewest - 1, fewest
    while not is_enough(enough):
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough


def gain(nested: Nested) -> Gain:
    """The mean difference, tested over the combinations of one run or over the seeds and partitions of several."""
    runs = [by_id for seeds in nested.values() for by_id in seeds.values()]
    if len(runs) == 1:
        return difference_of(np.array([runs[0][combination] for combination in sorted(runs[0])], dtype=np.float64))
    overall = pooled(nested)
    return Gain(
        mean=overall.mean,
        low=overall.low,
        high=overall.high,
        p=overall.p,
        combinations=overall.combinations,
        seeds=len(runs),
        partitions=len(nested),
        unit="partitions" if len(nested) > 1 else "seeds",
        values=overall.values,
        components=overall.components,
    )
