"""Compute 95% intervals for a mean over combinations, and for shares of correlated and weighted texts.

- A share of texts is a ratio of two sums over combinations. The bootstrap draws whole combinations, so it does not need
  to know the number of texts in a combination or their correlation.
- Other intervals assume independent units, but use an effective sample size instead of the number of units. Weights
  reduce this size (Kish's size), because a sample in which some units are more frequent than in the whole set contains
  less information. Clusters divide the effective size by the design effect, if that is above 1. The design effect is
  the variance over sums of whole clusters divided by the variance over units. Student's t then reduces the size
  further, but never below the number of clusters, because at worst the units of a cluster are copies. Units of very
  different students vary less than this method assumes, so the intervals are too wide rather than too narrow.

scipy is imported inside functions, because loading it takes longer than most commands take to run.
"""

from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray


def t_quantile(probability: float, degrees: Any) -> Any:
    """Compute a quantile of Student's t; `degrees` is a number or an array, and need not be an integer.

    >>> round(t_quantile(0.975, 29), 3)
    2.045
    """
    from scipy.special import stdtrit

    quantile = stdtrit(degrees, probability)
    return quantile if getattr(quantile, "ndim", 0) else float(quantile)


def two_sided_p(ratio: float, degrees: float) -> float:
    """Compute the two-sided p-value of an estimate divided by its standard error.

    >>> round(two_sided_p(2.045, 29), 3)
    0.05
    """
    from scipy.special import stdtr

    return min(1.0, 2 * float(stdtr(degrees, -abs(ratio))))


CONFIDENCE: Final = 0.95
RESAMPLES: Final = 10_000
SEED: Final = 20240919
"""The seed of every bootstrap and permutation, which makes the numbers of a report reproducible."""

FEWEST_COMBINATIONS: Final = 10
"""The minimum number of combinations for a verdict; with fewer, a bootstrap interval would be too narrow."""
ROUNDING: Final = 1e-12
"""Smaller differences are rounding errors, because scores are fractions with small denominators."""

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


def wilson_interval(share: float, n: float) -> Interval:
    """Compute the Wilson score interval of a share among n units.

    `n` may be a fraction, because it may be an effective number of independent units.

    >>> [round(end, 2) for end in wilson_interval(0.05, 100)]
    [0.02, 0.11]
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    denominator = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / denominator
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / denominator
    # At 0 and 1, rounding could put the bound 1e-17 beyond the share itself.
    return Interval(0.0 if share == 0 else max(0.0, centre - half), 1.0 if share == 1 else min(1.0, centre + half))


def mean_interval(values: Sequence[float]) -> Interval:
    """Bootstrap the interval of the mean of values in 0..1; use the Wilson interval if all values are equal."""
    if max(values) - min(values) < ROUNDING:
        return wilson_interval(min(1.0, max(0.0, values[0])), len(values))
    return percentile_interval(_resampled(np.asarray(values, dtype=np.float64)) / len(values), len(values))


def constant_interval(value: float, n: int) -> Interval:
    """Bound the mean of a quantity in -1..1 that had the same value n times; Wilson bounds the share of other values.

    >>> [round(end, 3) for end in constant_interval(0.0, 100)]
    [-0.037, 0.037]
    """
    others = wilson_interval(0.0, n).high
    return Interval(value - others * (1 + value), value + others * (1 - value))


def bootstrap_means(values: Floats, resamples: int, generator: np.random.Generator) -> Floats:
    """Compute the means of resamples drawn with replacement.

    Scores have few distinct values, and the number of times each value is drawn is multinomial. Drawing these numbers
    gives the same distribution as drawing indices in a fraction of the time and memory (`bench/bootstrap.py`).
    """
    levels, counts = np.unique(values, return_counts=True)
    drawn = generator.multinomial(len(values), counts / len(values), size=resamples)
    means: Floats = drawn @ levels / len(values)
    return means


def percentile_interval(means: Floats, n: int) -> Interval:
    """Compute percentiles of bootstrap means, widened for small n.

    Plain percentiles are too narrow by sqrt((n - 1) / n), and also because they use normal instead of t quantiles
    (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 5.3). The expanded percentile
    corrects both.
    """
    tail = expanded_tail(n)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


@lru_cache(maxsize=1024)
def expanded_tail(n: int) -> float:
    """Compute the share of bootstrap means outside each end of the expanded percentile interval for n values."""
    if n < 2:
        return 0.0
    return NormalDist().cdf(-sqrt(n / (n - 1)) * t_quantile((1 + CONFIDENCE) / 2, n - 1))


_CACHED: Final = 4096
"""The number of cached intervals; a report needs the same intervals in several tables and under several rules."""


class Cluster(NamedTuple):
    """The texts of one combination: the sum of their values in 0..1, and their number."""

    total: float
    texts: int


def cluster_share(clusters: Sequence[Cluster]) -> float | None:
    """Compute the mean value over all texts; None if there is no text.

    >>> cluster_share([Cluster(1.0, 1), Cluster(1.0, 3)])
    0.5
    """
    texts = sum(cluster.texts for cluster in clusters)
    return sum(cluster.total for cluster in clusters) / texts if texts else None


def cluster_interval(clusters: Sequence[Cluster]) -> Interval:
    """Compute the 95% interval of `cluster_share` by bootstrap or, if all clusters have the same share, by Wilson.

    >>> [round(end, 2) for end in cluster_interval([Cluster(0.0, 3)] * 100)]
    [0.0, 0.04]
    """
    shares = [cluster.total / cluster.texts for cluster in clusters]
    if max(shares) - min(shares) < ROUNDING:
        return wilson_interval(min(1.0, max(0.0, shares[0])), len(clusters))
    return _bootstrap_interval(tuple(sorted(clusters)))


@lru_cache(maxsize=_CACHED)
def _bootstrap_interval(clusters: tuple[Cluster, ...]) -> Interval:
    totals, texts = _resampled(np.asarray(clusters, dtype=np.float64))
    return percentile_interval(totals / texts, len(clusters))


class Paired(NamedTuple):
    """The texts of two students for one combination; one of the students may have no text."""

    first: Cluster
    second: Cluster


class ShareDifference(NamedTuple):
    """The second share minus the first, with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def is_within_noise(self) -> bool:
        """Whether the interval includes 0."""
        return self.low <= 0 <= self.high


def share_difference(pairs: Sequence[Paired]) -> ShareDifference | None:
    """Compute the difference of two shares over the same combinations; None if one student has no text."""
    return _share_difference(tuple(sorted(pairs)))


@lru_cache(maxsize=_CACHED)
def _share_difference(pairs: tuple[Paired, ...]) -> ShareDifference | None:
    first, second = cluster_share([p.first for p in pairs]), cluster_share([p.second for p in pairs])
    if first is None or second is None:
        return None
    value = second - first
    sums = _resampled(np.asarray([(*p.first, *p.second) for p in pairs], dtype=np.float64))
    has_both = (sums[1] > 0) & (sums[3] > 0)
    totals_first, texts_first, totals_second, texts_second = sums[:, has_both]
    differences = totals_second / texts_second - totals_first / texts_first
    n = min(sum(p.first.texts > 0 for p in pairs), sum(p.second.texts > 0 for p in pairs))
    if float(np.ptp(differences)) < ROUNDING:
        return ShareDifference(value, *constant_interval(value, n))
    return ShareDifference(value, *percentile_interval(differences, n))


def _resampled(rows: Floats) -> Floats:
    """Compute the sums of resampled values or, for several columns, one row of sums for each column."""
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    sums: Floats = (_times_drawn(tuple(counts.tolist())) @ distinct).T
    return sums


@lru_cache(maxsize=128)
def _times_drawn(counts: tuple[int, ...]) -> NDArray[np.int32]:
    """Draw how often each distinct value occurs in every resample, given how often it occurs in the data.

    The metrics of a cell often share these counts, and drawing takes most of the time of an interval.
    """
    n = sum(counts)
    drawn = np.random.default_rng(SEED).multinomial(n, np.array(counts) / n, size=RESAMPLES)
    return drawn.astype(np.int32)


_NORMAL = 1.959963984540054
"""The 97.5% quantile of the normal distribution."""


class Counts(NamedTuple):
    """A share, and the effective number of independent units, which is 0 if there is no unit."""

    share: float
    size: float


NOTHING = Counts(0.0, 0.0)


def effective_counts(
    values: Sequence[bool], clusters: Sequence[Hashable], weights: Sequence[float] | None = None
) -> Counts:
    """Compute the weighted share of true values, and the effective number of units.

    Units that each form their own cluster count fully:

    >>> effective_counts([True, False, False, False], "abcd")
    Counts(share=0.25, size=4.0)

    Two equal values in the same cluster count as one:

    >>> effective_counts([True, True, False, False] * 50, [n // 2 for n in range(200)])
    Counts(share=0.5, size=100.0)
    """
    if not len(values):
        return NOTHING
    outcome = np.asarray(values, dtype=np.float64)
    weight = np.ones(len(outcome)) if weights is None else np.asarray(weights, dtype=np.float64)
    share = float(weight @ outcome / weight.sum())
    numbers: dict[Hashable, int] = {}
    index = np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters], dtype=np.int64)
    most, least = _kish(weight), _kish(_sums(index, weight))
    number = int(index.max()) + 1
    if number == len(outcome):
        return Counts(share, most)
    if number == 1 or share in (0.0, 1.0):
        return Counts(share, least)  # there is no information about the similarity of units within a cluster
    # The design effect is the variance of the share with clusters, divided by its variance with independent units.
    residuals = weight * (outcome - share)
    sums = _sums(index, residuals)
    effect = float(sums @ sums) / float(residuals @ residuals)
    if effect <= 1 + ROUNDING:
        return Counts(share, most)
    wider = float(t_quantile((1 + CONFIDENCE) / 2, number - 1)) / _NORMAL
    return Counts(share, max(least, most / effect / wider**2))


def _sums(index: NDArray[np.int64], values: Floats) -> Floats:
    """Sum the values of each cluster."""
    return np.bincount(index, weights=values).astype(np.float64)


def _kish(weights: Floats) -> float:
    """Compute how many equal weights would give the same variance of a mean."""
    return float(weights.sum()) ** 2 / float(weights @ weights)
