"""Shares of texts with intervals that respect that the texts of one combination are correlated.

A share is a ratio of two sums over combinations. The bootstrap draws whole combinations, so that neither the number of
texts of a combination nor their correlation has to be known.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from skillmix.scores.statistics.intervals import (
    RESAMPLES,
    ROUNDING,
    SEED,
    Floats,
    Interval,
    constant_interval,
    percentile_interval,
    wilson_interval,
)


class Cluster(NamedTuple):
    """The texts of one combination: the sum of their values in 0..1, and their number."""

    total: float
    texts: int


def cluster_share(clusters: Sequence[Cluster]) -> float | None:
    """The mean value of all texts; None if there is no text.

    >>> cluster_share([Cluster(1.0, 1), Cluster(1.0, 3)])
    0.5
    """
    texts = sum(cluster.texts for cluster in clusters)
    return sum(cluster.total for cluster in clusters) / texts if texts else None


def cluster_interval(clusters: Sequence[Cluster]) -> Interval:
    """95 % interval of `cluster_share` over combinations that each have a text: bootstrap, or Wilson if all are equal.

    >>> [round(end, 2) for end in cluster_interval([Cluster(0.0, 3)] * 100)]
    [0.0, 0.04]
    """
    shares = [cluster.total / cluster.texts for cluster in clusters]
    if max(shares) - min(shares) < ROUNDING:
        return wilson_interval(min(1.0, max(0.0, shares[0])), len(clusters))
    totals, texts = _resampled(np.asarray(clusters, dtype=np.float64))
    return percentile_interval(totals / texts, len(clusters))


class Paired(NamedTuple):
    """The texts of two students on one combination; a student may have none."""

    first: Cluster
    second: Cluster


class ShareDifference(NamedTuple):
    """The second share minus the first, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_within_noise(self) -> bool:
        """Whether the interval includes 0."""
        return self.low <= 0 <= self.high


def share_difference(pairs: Sequence[Paired]) -> ShareDifference | None:
    """The difference of two shares over the same combinations; None if one of the students has no text."""
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
    """Column sums of resamples of the rows, one row of the result for each column.

    How often each distinct row is drawn is multinomial, as in `bootstrap_means`.
    """
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    drawn = np.random.default_rng(SEED).multinomial(len(rows), counts / len(rows), size=RESAMPLES)
    sums: Floats = (drawn @ distinct).T
    return sums
