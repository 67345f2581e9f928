"""Differences between two students on the same combinations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb
from statistics import NormalDist
from typing import Final

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
)

POWER: Final = 0.8
_MOST_DISCORDANT_EXACT: Final = 1000
_FEWEST_SIGNIFICANT: Final = 6
"""With five pairs or fewer no permutation of signs reaches p = .05."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Second minus first, over the combinations that both have complete."""

    difference: float
    low: float
    high: float
    p: float
    """Of the permutation that swaps the two students within combinations; not yet corrected."""
    combinations: int
    needed: int | None
    """Combinations for 80 % power at this difference; None when nothing differs."""


def paired_difference(first: Mapping[str, float], second: Mapping[str, float]) -> Difference | None:
    """Compare per-combination scores by combination id; None without shared combinations."""
    shared = sorted(first.keys() & second.keys())
    if not shared:
        return None
    differences = np.array([second[c] - first[c] for c in shared], dtype=np.float64)
    generator = np.random.default_rng(SEED)
    low, high = _difference_interval(differences, generator)
    return Difference(
        difference=float(differences.mean()),
        low=low,
        high=high,
        p=permutation_p(differences, generator),
        combinations=len(shared),
        needed=combinations_needed(differences),
    )


def _difference_interval(differences: Floats, generator: np.random.Generator) -> Interval:
    if float(np.ptp(differences)) < ROUNDING:
        # Nothing varies, so the bootstrap knows nothing; how rare other differences must be is known.
        return constant_interval(float(differences[0]), len(differences))
    return percentile_interval(bootstrap_means(differences, RESAMPLES, generator), len(differences))


def permutation_p(differences: Floats, generator: np.random.Generator) -> float:
    """Two-sided p of sign flips: exact when all nonzero differences are of one size, else 10,000 draws."""
    differences = np.where(np.abs(differences) < ROUNDING, 0.0, differences)
    sizes = np.abs(differences[differences != 0])
    if len(sizes) == 0:
        return 1.0
    positive = int((differences > 0).sum())
    if np.allclose(sizes, sizes[0]) and len(sizes) <= _MOST_DISCORDANT_EXACT:
        return _sign_test_p(positive, len(sizes))
    observed = abs(float(differences.sum()))
    levels, counts = np.unique(sizes, return_counts=True)
    # The sum of n random signs of one size is size * (2 * Binomial(n, 1/2) - n).
    flipped = (2 * generator.binomial(counts, 0.5, size=(RESAMPLES, len(counts))) - counts) @ levels
    extreme = int((np.abs(flipped) >= observed - 1e-9).sum())
    return (extreme + 1) / (RESAMPLES + 1)


def _sign_test_p(positive: int, n: int) -> float:
    """The exact binomial test with probability one half, which McNemar's exact test is."""
    extreme = max(positive, n - positive)
    tail: int = sum(comb(n, i) for i in range(extreme, n + 1))
    return min(1.0, float(Fraction(2 * tail, 2**n)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of the p values of one table.

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
    """How many combinations a paired test needs to find the observed mean difference with that power."""
    mean = float(differences.mean())
    if len(differences) < 2 or abs(mean) < ROUNDING:
        return None
    spread = float(differences.std(ddof=1))
    z = NormalDist().inv_cdf(1 - level / 2) + NormalDist().inv_cdf(power)
    needed = max(_FEWEST_SIGNIFICANT, ceil((z * spread / mean) ** 2))
    for _ in range(3):  # t instead of normal quantiles, which depend on the size sought
        t = t_quantile(1 - level / 2, needed - 1) + t_quantile(power, needed - 1)
        needed = max(_FEWEST_SIGNIFICANT, ceil((t * spread / mean) ** 2))
    return needed
