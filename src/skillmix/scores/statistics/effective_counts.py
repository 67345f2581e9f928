"""Shares of correlated and weighted units, with the number of independent units that would tell as much.

An interval for independent units applies to correlated ones with an effective size instead of their number:

- weights: a sample that holds some units more often than the whole set tells less (Kish's size);
- clusters: the criteria of a text, and the texts of a combination, are not independent. The size is divided by the
  design effect, the variance over sums of whole clusters by the variance over units, if that is above 1. Student's t
  then reduces it further, but never below the number of clusters, since at worst the units of a cluster are copies.

Units of students who differ much vary less than this assumes, because the number of texts of each student is fixed.
The intervals are then too wide rather than too narrow.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmix.scores.statistics.intervals import CONFIDENCE, ROUNDING, Floats, Interval, wilson_interval
from skillmix.scores.statistics.student_t import t_quantile

_NORMAL = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


class Counts(NamedTuple):
    """A share, and the effective number of independent units behind it; 0 if there is no unit."""

    share: float
    size: float

    @property
    def wilson(self) -> Interval:
        """The Wilson interval of the share; everything if there is no unit."""
        return wilson_interval(self.share, self.size) if self.size else Interval(0.0, 1.0)


NOTHING = Counts(0.0, 0.0)


def effective_counts(
    values: Sequence[bool], clusters: Sequence[Hashable], weights: Sequence[float] | None = None
) -> Counts:
    """The weighted share of true values, and the effective number of units.

    Units that are clusters of their own count as they are:

    >>> effective_counts([True, False, False, False], "abcd")
    Counts(share=0.25, size=4.0)

    Two equal values in each cluster tell no more than one:

    >>> effective_counts([True, True, False, False] * 50, [n // 2 for n in range(200)])
    Counts(share=0.5, size=100.0)
    """
    if not len(values):
        return NOTHING
    outcome = np.asarray(values, dtype=np.float64)
    weight = np.ones(len(outcome)) if weights is None else np.asarray(weights, dtype=np.float64)
    share = float(weight @ outcome / weight.sum())
    index = _numbered(clusters)
    most, least = _kish(weight), _kish(_sums(index, weight))
    number = int(index.max()) + 1
    if number == len(outcome):
        return Counts(share, most)
    if number == 1 or share in (0.0, 1.0):
        return Counts(share, least)  # nothing shows how alike the units of a cluster are
    effect = _design_effect(weight * (outcome - share), index)
    if effect <= 1 + ROUNDING:
        return Counts(share, most)
    wider = float(t_quantile((1 + CONFIDENCE) / 2, number - 1)) / _NORMAL
    return Counts(share, max(least, most / effect / wider**2))


def _design_effect(residuals: Floats, index: NDArray[np.int64]) -> float:
    """The variance of a share over sums of clusters, by that of independent units."""
    sums = _sums(index, residuals)
    return float(sums @ sums) / float(residuals @ residuals)


def _sums(index: NDArray[np.int64], values: Floats) -> Floats:
    """The sum of the values of each cluster."""
    return np.bincount(index, weights=values).astype(np.float64)


def _kish(weights: Floats) -> float:
    """The number of equal weights with the same variance of a mean."""
    return float(weights.sum()) ** 2 / float(weights @ weights)


def _numbered(clusters: Sequence[Hashable]) -> NDArray[np.int64]:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters], dtype=np.int64)
