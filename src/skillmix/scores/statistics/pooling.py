"""The mean of differences over several training seeds or partitions, with an interval that counts both.

The seeds of one partition are crossed with combinations: each seed's student answers the same combinations. Both are
random factors, so the variance of the mean is seeds / S + combinations / C + rest / (S * C), estimated from the mean
squares of a two-way table, with Satterthwaite's degrees of freedom. Seeds that do not share their combinations form a
one-way table. Several partitions are the unit themselves: their means form a t interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final, NamedTuple

import numpy as np

from skillmix.scores.statistics.intervals import CONFIDENCE, ROUNDING, Floats, constant_interval
from skillmix.scores.statistics.student_t import t_quantile, two_sided_p

Differences = Mapping[str, float]
"""Differences by the id of their combination."""
Nested = Mapping[str, Mapping[int, Differences]]
"""Differences by partition and seed."""

_SHARED_SHARE: Final = 0.5
"""Seeds are crossed with combinations if this share of each seed's combinations is shared by all seeds."""


@dataclass(frozen=True, slots=True)
class Components:
    """The parts of the variance of one difference, and the numbers of seeds and combinations they come from."""

    seed: float
    combination: float
    rest: float
    seeds: int
    combinations: int

    def variance(self, seeds: int, combinations: int) -> float:
        """The variance of the mean over that many seeds and combinations."""
        return self.seed / seeds + self.combination / combinations + self.rest / (seeds * combinations)

    def degrees(self, seeds: int, combinations: int) -> float:
        """The degrees of freedom to expect with that many seeds and combinations."""
        by_seed = np.asarray(self.rest + combinations * self.seed)
        by_combination = np.asarray(self.rest + seeds * self.combination)
        return float(_degrees(by_seed, by_combination, np.asarray(self.rest), seeds, combinations))


@dataclass(frozen=True, slots=True)
class PooledMean:
    """A mean with its interval and the p-value of a mean of 0."""

    mean: float
    low: float
    high: float
    p: float
    combinations: int
    """How many combinations count."""
    values: tuple[float, ...]
    """The mean of each seed or partition."""
    components: Components | None = None
    """The parts of the variance; None if partitions are the unit or nothing varies."""


class TableMoments(NamedTuple):
    """The mean of a table of seeds and combinations, the variance of the mean, and its degrees of freedom."""

    mean: Floats
    variance: Floats
    degrees: Floats
    by_seed: Floats
    """The mean squares: of seeds, of combinations, and of what both leave unexplained."""
    by_combination: Floats
    rest: Floats


def pooled(nested: Nested) -> PooledMean:
    """The mean over partitions or, within one partition, over several seeds."""
    if not nested or not all(seeds and all(seeds.values()) for seeds in nested.values()):
        raise ValueError("every partition and seed needs at least one combination")
    every = [value for seeds in nested.values() for by_id in seeds.values() for value in by_id.values()]
    if max(every) - min(every) < ROUNDING:
        return _constant(nested, every[0])
    if len(nested) > 1:
        means = [float(np.mean([_mean(by_id) for by_id in seeds.values()])) for seeds in nested.values()]
        return _mean_of_partitions(means, np.array(every), _distinct(nested))
    (seeds,) = nested.values()
    if len(seeds) < 2:
        raise ValueError("one seed alone is not pooled")
    return _over_seeds(seeds, _distinct(nested))


def crossed_moments(tables: Floats) -> TableMoments:
    """The moments of a table of seeds (rows) and combinations (columns), or of many tables at once.

    The seeds' mean square is not taken below the rest: a negative component would make seeds that agree by chance
    shrink the interval. It is then pooled with the rest and has the degrees of freedom of both.
    """
    seeds, combinations = tables.shape[-2:]
    mean = tables.mean(axis=(-2, -1))
    seed_means, combination_means = tables.mean(axis=-1), tables.mean(axis=-2)
    by_seed = combinations * seed_means.var(axis=-1, ddof=1)
    by_combination = seeds * combination_means.var(axis=-1, ddof=1)
    unexplained = tables - seed_means[..., :, None] - combination_means[..., None, :] + mean[..., None, None]
    rest = (unexplained**2).sum(axis=(-2, -1)) / ((seeds - 1) * (combinations - 1))
    # With few combinations the means of all can be equal by chance; the mean itself is not certain then.
    by_combination = np.where(by_combination < ROUNDING, rest, by_combination)
    degrees = _degrees(by_seed, by_combination, rest, seeds, combinations)
    variance = (np.maximum(by_seed, rest) + by_combination - rest) / (seeds * combinations)
    return TableMoments(mean, variance, degrees, by_seed, by_combination, rest)


def _degrees(by_seed: Floats, by_combination: Floats, rest: Floats, seeds: int, combinations: int) -> Floats:
    """Satterthwaite's degrees of freedom of `by_seed + by_combination - rest`, at least 1.

    The seeds' mean square contains the rest, which is known from many differences. The larger the share of the rest,
    the less of the mean square depends on the few seeds: its degrees of freedom go from S - 1 to twice that number.
    In simulated worlds three seeds then find the paper's gains more often, and coverage stays between 93 and 97 %.
    """
    is_above = by_seed > rest
    floored = np.where(is_above, by_seed, rest)
    share = rest / np.maximum(floored, ROUNDING)
    of_seed = (seeds - 1) * np.where(is_above, 1 + share, combinations)
    total = floored + by_combination - rest
    of_combination = max(1, combinations - 1)
    spread = floored**2 / of_seed + by_combination**2 / of_combination + rest**2 / ((seeds - 1) * of_combination)
    degrees: Floats = np.maximum(1.0, total**2 / np.maximum(spread, ROUNDING**2))
    return degrees


def nested_moments(groups: Sequence[Floats]) -> TableMoments:
    """The moments of seeds that each have combinations of their own; the smallest group sets their number."""
    seeds, combinations = len(groups), min(map(len, groups))
    means = np.array([group.mean() for group in groups])
    within = [group.var(ddof=1) for group in groups if len(group) > 1]
    by_seed = np.asarray(combinations * means.var(ddof=1))
    rest = np.asarray(np.mean(within) if within else 0.0)
    is_above = bool(by_seed > rest)
    degrees = np.asarray(float(seeds - 1 if is_above else sum(map(len, groups)) - 1))
    variance = (by_seed if is_above else rest) / (seeds * combinations)
    return TableMoments(np.asarray(means.mean()), variance, degrees, by_seed, rest, rest)


def _over_seeds(seeds: Mapping[int, Differences], distinct: int) -> PooledMean:
    shared = shared_combinations(list(seeds.values()))
    means = tuple(_mean(by_id) for by_id in seeds.values())
    if len(shared) >= 2:
        table = np.array([[by_id[c] for c in shared] for by_id in seeds.values()], dtype=np.float64)
        moments, per_seed, used = crossed_moments(table), len(shared), len(shared)
        means = tuple(float(value) for value in table.mean(axis=1))
    else:
        groups = [np.array(list(by_id.values()), dtype=np.float64) for by_id in seeds.values()]
        moments, per_seed, used = nested_moments(groups), min(map(len, groups)), distinct
    rest = float(moments.rest)
    components = Components(
        seed=max(0.0, (float(moments.by_seed) - rest) / per_seed),
        combination=max(0.0, (float(moments.by_combination) - rest) / len(seeds)),
        rest=rest,
        seeds=len(seeds),
        combinations=per_seed,
    )
    mean, error = float(moments.mean), sqrt(float(moments.variance))
    low, high, p = _t_interval(mean, error, float(moments.degrees))
    return PooledMean(mean, low, high, p, used, means, components)


def shared_combinations(seeds: Sequence[Differences]) -> list[str]:
    """The combinations that all seeds have; none if they are less than half of some seed's combinations."""
    shared = set.intersection(*(set(by_id) for by_id in seeds))
    is_enough = len(shared) >= _SHARED_SHARE * max(map(len, seeds))
    return sorted(shared) if is_enough else []


def _mean_of_partitions(means: Sequence[float], every: Floats, combinations: int) -> PooledMean:
    mean = float(np.mean(means))
    error, degrees = float(np.std(means, ddof=1)) / sqrt(len(means)), len(means) - 1
    if error < ROUNDING:
        # The means of two partitions can be equal by chance; the differences within partitions then give the error.
        error, degrees = float(every.std(ddof=1)) / sqrt(len(every)), len(every) - 1
    low, high, p = _t_interval(mean, error, degrees)
    return PooledMean(mean, low, high, p, combinations, tuple(means))


def _t_interval(mean: float, error: float, degrees: float) -> tuple[float, float, float]:
    """The ends of the interval, within -1..1, and the p-value."""
    half = float(t_quantile((1 + CONFIDENCE) / 2, degrees)) * error
    return max(-1.0, mean - half), min(1.0, mean + half), two_sided_p(mean / error, degrees)


def _constant(nested: Nested, value: float) -> PooledMean:
    """Nothing varies: Wilson's interval bounds the share of combinations with other differences."""
    combinations = _distinct(nested)
    low, high = constant_interval(value, combinations)
    p = 1.0 if abs(value) < ROUNDING else min(1.0, 2 * 0.5**combinations)
    units = len(nested) if len(nested) > 1 else len(next(iter(nested.values())))
    return PooledMean(value, low, high, p, combinations, (value,) * units)


def _distinct(nested: Nested) -> int:
    """Combinations of all partitions; one that several seeds of a partition have counts once."""
    return sum(len(set().union(*seeds.values())) for seeds in nested.values())


def _mean(by_id: Differences) -> float:
    return float(np.mean(list(by_id.values())))
