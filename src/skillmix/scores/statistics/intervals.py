"""95 % intervals of a mean over combinations."""

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmix.scores.statistics.student_t import t_quantile

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 10_000
SEED: Final = 20240919
"""The seed of every bootstrap and permutation, so that each report prints the same numbers."""

FEWEST_COMBINATIONS: Final = 10
"""With fewer combinations a bootstrap interval is too short, and nothing is decided."""
ROUNDING: Final = 1e-12
"""Scores are fractions with small denominators, so a difference below this is rounding."""

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


def wilson_interval(share: float, n: float, confidence: float = CONFIDENCE) -> Interval:
    """Wilson score interval of a share of n; n need not be whole, as an effective number of independent units is not.

    >>> [round(end, 2) for end in wilson_interval(0.05, 100)]
    [0.02, 0.11]
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    denominator = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / denominator
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / denominator
    # At 0 and 1 rounding could put the bound 1e-17 beyond the share itself.
    return Interval(0.0 if share == 0 else max(0.0, centre - half), 1.0 if share == 1 else min(1.0, centre + half))


def mean_interval(values: Sequence[float]) -> Interval:
    """Bootstrap interval of the mean of values in 0..1; the Wilson interval if all values are equal."""
    if max(values) - min(values) < ROUNDING:
        return wilson_interval(min(1.0, max(0.0, values[0])), len(values))
    return bootstrap_interval(values)


def constant_interval(value: float, n: int) -> Interval:
    """Interval of the mean of a quantity in -1..1 that had one value n times; Wilson bounds the share of other values.

    >>> [round(end, 3) for end in constant_interval(0.0, 100)]
    [-0.037, 0.037]
    """
    others = wilson_interval(0.0, n).high
    return Interval(value - others * (1 + value), value + others * (1 - value))


def bootstrap_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval:
    """Percentile bootstrap of the mean over the values."""
    means = bootstrap_means(np.asarray(values, dtype=np.float64), RESAMPLES, np.random.default_rng(SEED))
    return percentile_interval(means, len(values), confidence)


def bootstrap_means(values: Floats, resamples: int, generator: np.random.Generator) -> Floats:
    """Means of resamples with replacement.

    How often each distinct value is drawn is multinomial, and scores have few distinct values: the same
    distribution as drawing indices, in a fraction of the time and memory (`bench/bootstrap.py`).
    """
    levels, counts = np.unique(values, return_counts=True)
    drawn = generator.multinomial(len(values), counts / len(values), size=resamples)
    means: Floats = drawn @ levels / len(values)
    return means


def percentile_interval(means: Floats, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Percentiles of bootstrap means, widened for small n.

    Plain percentiles are too narrow by sqrt((n - 1) / n) and by normal instead of t quantiles (Hesterberg 2015,
    "What Teachers Should Know About the Bootstrap", section 5.3); the expanded percentile corrects both.
    """
    tail = expanded_tail(n, confidence)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


@lru_cache(maxsize=1024)
def expanded_tail(n: int, confidence: float = CONFIDENCE) -> float:
    """The share of bootstrap means to cut off at either end."""
    if n < 2:
        return 0.0
    return NormalDist().cdf(-sqrt(n / (n - 1)) * t_quantile((1 + confidence) / 2, n - 1))
