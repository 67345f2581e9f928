"""Differences between two students on the same combinations, and how much more data would settle them.

`paired_difference` tests one run. `gain` tests one run or several seeds and partitions, and is what findings use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb
from statistics import NormalDist
from typing import Final, Literal

import numpy as np

from skillmix.scores.statistics.intervals import (
    RESAMPLES,
    ROUNDING,
    SEED,
    Floats,
    Interval,
    bootstrap_means,
    constant_interval,
    percentile_interval,
    t_quantile,
    wilson_interval,
)
from skillmix.scores.statistics.pooling import Nested, pooled

POWER: Final = 0.8
_MAX_PAIRS_OF_EXACT_TEST: Final = 1000
_FEWEST_PAIRS: Final = 6
"""With five pairs or fewer no permutation of signs reaches p = .05."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Second minus first, over the combinations that both have complete."""

    difference: float
    low: float
    high: float
    p: float
    """p-value of the permutation test that swaps the two students within combinations; not corrected."""
    combinations: int
    needed: int | None
    """Combinations needed for 80 % power at this difference; None if the mean difference is 0."""


def paired_difference(first: Mapping[str, float], second: Mapping[str, float]) -> Difference | None:
    """Compare scores by combination id; None if the students share no combination."""
    shared = sorted(first.keys() & second.keys())
    if not shared:
        return None
    return difference_of(np.array([second[c] - first[c] for c in shared], dtype=np.float64))


def difference_of(differences: Floats) -> Difference:
    """Interval and test of the mean of at least one paired difference."""
    generator = np.random.default_rng(SEED)
    low, high = _difference_interval(differences, generator)
    return Difference(
        difference=float(differences.mean()),
        low=low,
        high=high,
        p=permutation_p(differences, generator),
        combinations=len(differences),
        needed=combinations_needed(differences),
    )


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
    spread = float(differences.std(ddof=1))
    z = NormalDist().inv_cdf(1 - level / 2) + NormalDist().inv_cdf(power)
    needed = max(_FEWEST_PAIRS, ceil((z * spread / mean) ** 2))
    for _ in range(3):  # t quantiles instead of normal ones; they depend on the sample size that is sought
        t = t_quantile(1 - level / 2, needed - 1) + t_quantile(power, needed - 1)
        needed = max(_FEWEST_PAIRS, ceil((t * spread / mean) ** 2))
    return needed


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
    """What more data would consist of: the highest level that has several members."""
    values: tuple[float, ...]
    """The mean difference of each unit."""


def gain(nested: Nested) -> Gain:
    """The mean difference, tested over the combinations of one run or over the seeds and partitions of several."""
    every = [value for seeds in nested.values() for values in seeds.values() for value in values]
    runs = [values for seeds in nested.values() for values in seeds.values()]
    counts = {"combinations": len(every), "seeds": len(runs), "partitions": len(nested)}
    if len(runs) == 1:
        one = difference_of(np.asarray(every, dtype=np.float64))
        return Gain(one.difference, one.low, one.high, one.p, **counts, unit="combinations", values=tuple(every))
    overall = pooled(nested)
    if len(nested) > 1:
        means = tuple(float(np.mean([np.mean(v) for v in seeds.values()])) for seeds in nested.values())
        return Gain(overall.mean, overall.low, overall.high, overall.p, **counts, unit="partitions", values=means)
    means = tuple(float(np.mean(v)) for v in runs)
    return Gain(overall.mean, overall.low, overall.high, overall.p, **counts, unit="seeds", values=means)


def more_to_find(observed: Gain, *, level: float) -> int | None:
    """How many more units a test at the given level needs to find the observed mean with 80 % power."""
    needed = combinations_needed(np.asarray(observed.values, dtype=np.float64), level=level)
    return None if needed is None else max(1, needed - len(observed.values))


def more_to_exclude(observed: Gain, margin: float) -> int | None:
    """How many more units would bring the upper end of the interval below a margin, if the mean stays the same."""
    room = margin - observed.mean
    if room <= 0:
        return None
    n = len(observed.values)
    if max(observed.values) - min(observed.values) < ROUNDING:
        needed = n
        while wilson_interval(0.0, needed).high * (1 - observed.mean) >= room:
            needed = ceil(needed * 1.02) + 1
    else:
        needed = ceil(n * ((observed.high - observed.mean) / room) ** 2) + 1
    return max(1, needed - n)
