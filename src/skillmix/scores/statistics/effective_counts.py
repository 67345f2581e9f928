"""Shares of correlated and weighted units, with the number of independent units that would tell as much.

The criteria of a text, and the texts of a combination, are not independent, and a sample of texts may hold some kinds
of texts more often than others. The variance of a share over such units comes from the sums of whole clusters (the
linearised, or "sandwich", variance). The effective size is the number of independent units with the same variance; an
interval for independent units then applies. It is never larger than the size that the weights allow, and Student's t
with the number of clusters reduces it further.
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

    >>> effective_counts([True, True, False, False] * 50, [n // 2 for n in range(200)]).size < 100
    True
    """
    if not len(values):
        return NOTHING
    outcome = np.asarray(values, dtype=np.float64)
    weight = np.ones(len(outcome)) if weights is None else np.asarray(weights, dtype=np.float64)
    share = float(weight @ outcome / weight.sum())
    index = _numbered(clusters)
    sums = _sums(index, weight)
    if len(sums) == len(outcome) and float(np.ptp(weight)) <= ROUNDING * float(weight.max()):
        return Counts(share, float(len(outcome)))
    most = min(_kish(weight), _kish(sums)) if share in (0.0, 1.0) else _kish(weight)
    return Counts(share, _effective_size(share, _sums(index, weight * (outcome - share)), weight, most))


def _effective_size(share: float, residuals: Floats, weight: Floats, most: float) -> float:
    """The number of independent units with the same variance, reduced as t quantiles are wider than normal ones."""
    number = len(residuals)
    if number < 2:
        return min(1.0, most)
    variance = number / (number - 1) * float(residuals @ residuals) / float(weight.sum()) ** 2
    alike = share * (1 - share) / variance if variance > ROUNDING**2 else most
    return min(most, alike) * (_NORMAL / float(t_quantile((1 + CONFIDENCE) / 2, number - 1))) ** 2


def _sums(index: NDArray[np.int64], values: Floats) -> Floats:
    """The sum of the values of each cluster."""
    return np.bincount(index, weights=values).astype(np.float64)


def _kish(weights: Floats) -> float:
    """The number of equal weights with the same variance of a mean."""
    return float(weights.sum()) ** 2 / float(weights @ weights)


def _numbered(clusters: Sequence[Hashable]) -> NDArray[np.int64]:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters], dtype=np.int64)
