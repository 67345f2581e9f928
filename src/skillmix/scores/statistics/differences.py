"""Differences between two students on the same combinations, over one run or several seeds and partitions.

`paired_difference` tests one run. `gain` tests one run or several seeds and partitions; verdicts use it. `more_to_find`
and `more_to_exclude` estimate how much more data of each kind would settle an inconclusive comparison.

A unit is a partition if there are several partitions, otherwise a training seed. Seeds share their combinations, and so
do partitions in the setting `all`. Units that share combinations are crossed with the combinations: each unit's student
answers the same combinations and is compared with the same texts of the base. Both units and combinations are random
factors, so the variance of the mean is units / U + combinations / C + rest / (U * C). Units with different combinations
form a one-way table. `uncertainty` turns either table into an interval. More seeds reduce the variance between seeds,
more combinations reduce the variance between combinations, and both reduce the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, comb, sqrt
from statistics import fmean, stdev, variance
from typing import Final, Literal, NamedTuple

import numpy as np

from skillmix.scores.statistics.intervals import (
    CONFIDENCE,
    FEWEST_COMBINATIONS,
    RESAMPLES,
    ROUNDING,
    SEED,
    Floats,
    bootstrap_means,
    constant_interval,
    percentile_interval,
    t_quantile,
    two_sided_p,
    wilson_interval,
)

Differences = Mapping[str, float]
"""Differences by combination id."""
Nested = Mapping[str, Mapping[int, Differences]]
"""Differences by partition and seed."""

_SHARED_SHARE: Final = 0.5
"""Units count as crossed with combinations if all units share at least this fraction of each unit's combinations."""


_AGREEING: Final = 0.7
"""Units agree if their means vary by less than this share of the variance predicted by the error within units."""
_ERROR_OF_AGREEING: Final = 0.85
"""The factor for the error within units if units agree, which offsets the wider intervals of units that disagree."""
_KNOWN_WITHIN: Final = 0.75
"""The degrees of freedom added to the variance of units because the error within units is well known."""
FEWEST_UNITS: Final = 3
"""The minimum number of units for an interval; two units are too few to show how much units differ."""


@dataclass(frozen=True, slots=True)
class Components:
    """The parts of the variance of one difference, and the numbers of units and combinations that they come from.

    A unit is a partition if there are several partitions, otherwise a training seed.
    """

    unit: float
    combination: float
    rest: float
    units: int
    combinations: int


class Uncertainty(NamedTuple):
    """The variance of a mean and its degrees of freedom."""

    variance: Floats
    degrees: Floats


def uncertainty(between: Floats, within: Floats, crossed: Floats, units: int, combinations: int) -> Uncertainty:
    """Estimate the uncertainty of the mean over a few units, such as training seeds.

    `between` is the observed variance of the units' means. `within` is the variance of these means that the error
    within units predicts. `crossed` is the variance from combinations that all units share.

    For two units, Student's t has one degree of freedom, and the variance is at least as large as the error within
    units requires. For three or more units, t with Satterthwaite's degrees of freedom would have little power.
    Therefore, units that agree are treated as equal, and other units gain degrees of freedom from the known part of
    their variance. The constants were chosen in simulations, in which intervals of 3 to 10 units contain the true value
    in 93 to 97% of cases for between-unit standard deviations of 0, .03 and .06.
    """
    if units == 2:
        ratio = t_quantile((1 + CONFIDENCE) / 2, max(1, combinations - 1)) / t_quantile((1 + CONFIDENCE) / 2, 1)
        of_combinations = ratio**2 * (within + np.maximum(0.0, crossed))
        return Uncertainty((between + of_combinations) / 2, np.ones_like(between))
    agree = between <= _AGREEING * within
    of_units = np.where(agree, _ERROR_OF_AGREEING * within, between)
    known = np.minimum(1.0, within / np.maximum(of_units, ROUNDING))
    degrees_of_units = (units - 1) * np.where(agree, combinations, 1 + _KNOWN_WITHIN * known)
    degrees_within = max(1, combinations - 1)
    spread = (
        of_units**2 / degrees_of_units
        + (crossed + within) ** 2 / degrees_within
        + within**2 / ((units - 1) * degrees_within)
    )
    # A negative component of combinations is due to chance and must not shrink the interval to nothing.
    total = of_units + np.maximum(crossed, -within / 2)
    return Uncertainty(total / units, np.maximum(1.0, total**2 / np.maximum(spread, ROUNDING**2)))


class TableMoments(NamedTuple):
    """The mean of a table of units and combinations, and the variances that `uncertainty` needs."""

    mean: Floats
    between: Floats
    within: Floats
    crossed: Floats


def crossed_moments(tables: Floats) -> TableMoments:
    """Compute the moments of a table of seeds (rows) and combinations (columns), or of many tables at once."""
    seeds, combinations = tables.shape[-2:]
    mean = tables.mean(axis=(-2, -1))
    seed_means, combination_means = tables.mean(axis=-1), tables.mean(axis=-2)
    unexplained = tables - seed_means[..., :, None] - combination_means[..., None, :] + mean[..., None, None]
    rest = (unexplained**2).sum(axis=(-2, -1)) / ((seeds - 1) * (combinations - 1))
    by_combination = seeds * combination_means.var(axis=-1, ddof=1)
    # With few combinations, all means can be equal by chance although the overall mean is uncertain.
    by_combination = np.where(by_combination < ROUNDING, rest, by_combination)
    between = seed_means.var(axis=-1, ddof=1)
    return TableMoments(mean, between, rest / combinations, (by_combination - rest) / combinations)


def shared_combinations(units: Sequence[Differences]) -> list[str]:
    """Return the combinations that all units share; none if they are less than half of any unit's combinations."""
    shared = set.intersection(*map(set, units))
    is_enough = len(shared) >= _SHARED_SHARE * max(map(len, units))
    return sorted(shared) if is_enough else []


def _table(units: Sequence[Differences], combinations: Sequence[str]) -> Floats:
    return np.array([[by_id[c] for c in combinations] for by_id in units], dtype=np.float64)


def _mean(by_id: Differences) -> float:
    return float(np.mean(list(by_id.values())))


POWER: Final = 0.8
_MAX_PAIRS_OF_EXACT_TEST: Final = 1000
_FEWEST_PAIRS: Final = 6
"""The minimum number of pairs for a test; with fewer, no permutation of signs can reach p = .05."""


Unit = Literal["combinations", "seeds", "partitions"]


@dataclass(frozen=True, slots=True)
class Gain:
    """The mean difference between two students on the same combinations, with its interval and its p-value."""

    mean: float
    low: float | None
    """None, like `high`, if there are too few combinations, or only two seeds or partitions and they differ."""
    high: float | None
    p: float
    combinations: int
    """The number of combinations; combinations that several seeds share count once."""
    seeds: int
    partitions: int
    unit: Unit
    """The highest level at which there are several units."""
    values: tuple[float, ...]
    """The mean difference of each unit."""
    components: Components | None = None
    """The parts of the variance, if there are several seeds or partitions and the differences vary."""

    def needed(self, level: float = 0.05) -> int | None:
        """Return how many combinations one training run needs to find this mean with 80% power; None if unknown."""
        return combinations_needed(np.asarray(self.values, dtype=np.float64), level=level)


def paired_difference(first: Mapping[str, float], second: Mapping[str, float]) -> Gain | None:
    """Compare scores by combination id; None if the students share no combination."""
    shared = sorted(first.keys() & second.keys())
    return difference_of(np.array([second[c] - first[c] for c in shared], dtype=np.float64)) if shared else None


def difference_of(differences: Floats) -> Gain:
    """Compute the mean of one or more paired differences from one training run, with its interval and its p-value."""
    return _difference_of(differences.tobytes())


@lru_cache(maxsize=1024)  # several tables and claims of a report compare the same students
def _difference_of(packed: bytes) -> Gain:
    differences = np.frombuffer(packed)
    generator = np.random.default_rng(SEED)
    n = len(differences)
    interval: tuple[float | None, float | None] = (None, None)
    if n >= FEWEST_COMBINATIONS and float(np.ptp(differences)) < ROUNDING:
        # All differences are equal, so a bootstrap interval would have no width. Bound the share of combinations with
        # other differences instead.
        interval = constant_interval(float(differences[0]), n)
    elif n >= FEWEST_COMBINATIONS:
        interval = percentile_interval(bootstrap_means(differences, RESAMPLES, generator), n)
    p = permutation_p(differences, generator)
    return Gain(float(differences.mean()), *interval, p, n, 1, 1, "combinations", tuple(map(float, differences)))


def permutation_p(differences: Floats, generator: np.random.Generator) -> float:
    """Compute a sign-flip test's two-sided p-value: exact if nonzero differences have one size, otherwise sampled."""
    differences = np.where(np.abs(differences) < ROUNDING, 0.0, differences)
    sizes = np.abs(differences[differences != 0])
    if len(sizes) == 0:
        return 1.0
    positive = int((differences > 0).sum())
    if np.allclose(sizes, sizes[0]) and len(sizes) <= _MAX_PAIRS_OF_EXACT_TEST:
        # This is the exact binomial test with probability one half, which is McNemar's exact test.
        tail: int = sum(comb(len(sizes), i) for i in range(max(positive, len(sizes) - positive), len(sizes) + 1))
        return min(1.0, float(Fraction(2 * tail, 2 ** len(sizes))))
    observed = abs(float(differences.sum()))
    levels, counts = np.unique(sizes, return_counts=True)
    # The sum of n terms of equal size with random signs is size * (2 * Binomial(n, 1/2) - n).
    flipped = (2 * generator.binomial(counts, 0.5, size=(RESAMPLES, len(counts))) - counts) @ levels
    extreme = int((np.abs(flipped) >= observed - 1e-9).sum())
    return (extreme + 1) / (RESAMPLES + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Apply Holm's correction to a family of p-values.

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


def combinations_needed(differences: Floats, *, level: float = 0.05) -> int | None:
    """Estimate how many combinations a paired test needs to find the observed mean difference with 80% power."""
    mean = float(differences.mean())
    if len(differences) < 2 or abs(mean) < ROUNDING:
        return None
    return units_needed(float(differences.std(ddof=1)), mean, fewest=_FEWEST_PAIRS, level=level)


def units_needed(spread: float, distance: float, *, fewest: int, level: float) -> int:
    """Estimate how many units with this standard deviation are needed to tell their mean from a value this far away."""

    def is_enough(n: int) -> bool:
        t = t_quantile(1 - level / 2, n - 1) + t_quantile(POWER, n - 1)
        return bool(t * spread <= abs(distance) * sqrt(n))

    too_few, enough = fewest - 1, fewest
    while not is_enough(enough):
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough


def gain(nested: Nested) -> Gain:
    """Test the mean difference over combinations of one training run, or over seeds and partitions of several."""
    if not nested or not all(seeds and all(seeds.values()) for seeds in nested.values()):
        raise ValueError("every partition and seed needs at least one combination")
    trainings = [by_id for seeds in nested.values() for by_id in seeds.values()]
    if len(trainings) == 1:
        return difference_of(_table(trainings, sorted(trainings[0]))[0])
    of_partitions = [list(seeds.values()) for seeds in nested.values()]
    units = trainings
    if len(nested) > 1:
        # average the seeds of each partition, on the combinations that all of its seeds have
        units = [
            {c: float(np.mean([by_id[c] for by_id in seeds])) for c in set.intersection(*map(set, seeds))}
            for seeds in of_partitions
        ]
    every = [value for by_id in trainings for value in by_id.values()]
    distinct = len({combination for by_id in trainings for combination in by_id})
    shared = shared_combinations(units)
    table = _table(units, shared)
    if max(every) - min(every) < ROUNDING:
        return _constant(nested, every[0], distinct)
    if len(shared) >= 2:
        if float(np.ptp(table)) < ROUNDING:
            return _constant(nested, float(table[0, 0]), len(shared))
        means = tuple(map(float, table.mean(axis=1)))
        return _pooled(nested, crossed_moments(table), means, len(shared), len(shared))
    if len(nested) > 1:
        # Each partition contributes the mean of its seeds, and `within` is the uncertainty of this mean.
        means = tuple(float(np.mean([_mean(by_id) for by_id in seeds])) for seeds in of_partitions)
        within = float(np.mean([_variance_within(seeds) for seeds in of_partitions]))
        per_unit = min(len(set().union(*seeds)) for seeds in of_partitions)
    else:
        means = tuple(_mean(by_id) for by_id in units)
        variances = [np.var(list(by_id.values()), ddof=1) for by_id in units if len(by_id) > 1]
        variance = float(np.mean(variances)) if variances else 0.0
        within = float(np.mean([variance / len(by_id) for by_id in units]))
        per_unit = min(map(len, units))
    values = np.array(means)
    moments = TableMoments(values.mean(), values.var(ddof=1), np.asarray(within), np.asarray(0.0))
    return _pooled(nested, moments, means, per_unit, distinct)


def _variance_within(seeds: Sequence[Differences]) -> float:
    """Estimate the variance of a partition's mean over its seeds or, if there is only one, over its combinations."""
    shared = shared_combinations(seeds) if len(seeds) > 1 else []
    if len(shared) >= 2:
        moments = crossed_moments(_table(seeds, shared))
        return float(np.maximum(moments.between, moments.within) + np.maximum(0.0, moments.crossed)) / len(seeds)
    every = [value for by_id in seeds for value in by_id.values()]
    return float(np.var(every, ddof=1)) / len(every) if len(every) > 1 else 0.0


def _constant(nested: Nested, value: float, combinations: int) -> Gain:
    """Bound a constant difference with Wilson's interval for the share of combinations with other differences."""
    low, high = constant_interval(value, combinations) if combinations >= FEWEST_COMBINATIONS else (None, None)
    p = 1.0 if abs(value) < ROUNDING else min(1.0, 2 * 0.5**combinations)
    seeds = sum(map(len, nested.values()))
    values = (value,) * (len(nested) if len(nested) > 1 else seeds)
    return Gain(value, low, high, p, combinations, seeds, len(nested), _unit(nested), values)


def _pooled(nested: Nested, moments: TableMoments, means: tuple[float, ...], per_unit: int, combinations: int) -> Gain:
    between, within, crossed = float(moments.between), float(moments.within), float(moments.crossed)
    components = Components(
        unit=max(0.0, between - within),
        combination=max(0.0, crossed * per_unit / len(means)),
        rest=within * per_unit,
        units=len(means),
        combinations=per_unit,
    )
    variance, degrees = uncertainty(moments.between, moments.within, moments.crossed, len(means), per_unit)
    mean, error = float(moments.mean), sqrt(float(variance))
    p = two_sided_p(mean / error, float(degrees)) if error > ROUNDING else 1.0
    low = high = None
    if len(means) >= FEWEST_UNITS and combinations >= FEWEST_COMBINATIONS:
        half = float(t_quantile((1 + CONFIDENCE) / 2, float(degrees))) * error
        low, high = max(-1.0, mean - half), min(1.0, mean + half)
    seeds = sum(map(len, nested.values()))
    return Gain(mean, low, high, p, combinations, seeds, len(nested), _unit(nested), means, components)


def _unit(nested: Nested) -> Unit:
    return "partitions" if len(nested) > 1 else "seeds"


def gain_of_means(values: Sequence[float]) -> Gain:
    """Apply Student's t-test to the differences of partitions; two partitions have no interval."""
    n, mean = len(values), fmean(values)
    error = stdev(values) / sqrt(n)
    half = float(t_quantile((1 + CONFIDENCE) / 2, n - 1)) * error
    interval = (max(-1.0, mean - half), min(1.0, mean + half)) if error > 0 else constant_interval(mean, n)
    p = two_sided_p(mean / error, n - 1) if error > 0 else 1.0
    low, high = interval if n > 2 else (None, None)
    return Gain(mean, low, high, p, n, n, n, "partitions", tuple(values))


def gain_of_two_samples(first: Sequence[float], second: Sequence[float]) -> Gain:
    """Apply Welch's test to the combinations of two settings in one partition."""
    parts = [(variance(side) / len(side), len(side)) if len(side) > 1 else (0.0, 1) for side in (first, second)]
    mean, squared = fmean(first) - fmean(second), sum(part for part, _ in parts)
    n = min(len(first), len(second))
    if squared == 0 or n < 2:
        return Gain(mean, None, None, 1.0, n, 1, 1, "combinations", (mean,))
    degrees = squared**2 / sum(part**2 / (size - 1) for part, size in parts)
    half = float(t_quantile((1 + CONFIDENCE) / 2, degrees)) * sqrt(squared)
    p = two_sided_p(mean / sqrt(squared), degrees)
    return Gain(mean, max(-1.0, mean - half), min(1.0, mean + half), p, n, 1, 1, "combinations", (mean,))


_MOST_UNITS: Final = 200
_MOST_COMBINATIONS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class MoreData:
    """The additional data of each kind that would suffice by itself; None if no amount of this kind would suffice."""

    combinations: int | None = None
    """Additional combinations for each k and, if there are several seeds or partitions, for each seed or partition."""
    seeds: int | None = None
    partitions: int | None = None

    def __bool__(self) -> bool:
        """Whether more data of at least one kind would suffice."""
        return (self.combinations, self.seeds, self.partitions) != (None, None, None)


def more_to_find(observed: Gain, *, level: float) -> MoreData:
    """Estimate the additional data that a test at this level needs to find the observed mean with 80% power."""
    if observed.components is not None:
        return _more_of_either(observed, observed.components, abs(observed.mean), level)
    needed = observed.needed(level)
    return MoreData() if needed is None else MoreData(combinations=max(1, needed - len(observed.values)))


def more_to_exclude(observed: Gain, margin: float) -> MoreData:
    """Estimate the additional data that would bring the upper end of the interval below a margin with 80% power."""
    room, n = margin - observed.mean, len(observed.values)
    if room <= 0:
        return MoreData()
    if observed.components is not None:
        return _more_of_either(observed, observed.components, room, 1 - CONFIDENCE)
    if max(observed.values) - min(observed.values) < ROUNDING:
        # Add combinations until Wilson's bound on the share with a different gain is small enough.
        enough = observed.combinations
        while wilson_interval(0.0, enough).high * (1 - observed.mean) >= room:
            enough = ceil(enough * 1.02) + 1
        return MoreData(combinations=max(1, enough - observed.combinations))
    spread = float(np.std(observed.values, ddof=1)) if n > 1 else 0.0
    if spread < ROUNDING or room < ROUNDING:
        return MoreData()
    return MoreData(combinations=max(1, units_needed(spread, room, fewest=_FEWEST_PAIRS, level=1 - CONFIDENCE) - n))


def smallest(needs: Iterable[MoreData]) -> MoreData:
    """Return the smallest number of each kind, for a claim that any one of several differences can settle."""
    return MoreData(*(min((n for n in numbers if n is not None), default=None) for numbers in _by_kind(needs)))


def largest(needs: Iterable[MoreData]) -> MoreData:
    """Return the largest number of each kind, for a claim that is settled only if all of several differences are."""
    return MoreData(*(None if None in own else max(n for n in own if n is not None) for own in _by_kind(needs)))


def _by_kind(needs: Iterable[MoreData]) -> list[tuple[int | None, ...]]:
    return list(zip(*((need.combinations, need.seeds, need.partitions) for need in needs), strict=True))


def _more_of_either(observed: Gain, parts: Components, distance: float, level: float) -> MoreData:
    """Estimate how many more seeds or partitions are needed, or how many more combinations for each of them."""
    if distance < ROUNDING:
        return MoreData()

    def is_enough(units: int, combinations: int) -> bool:
        within, crossed = parts.rest / combinations, units * parts.combination / combinations
        expected = np.asarray(parts.unit + within), np.asarray(within), np.asarray(crossed)
        variance, degrees = uncertainty(*expected, units, combinations)
        t = t_quantile(1 - level / 2, float(degrees)) + t_quantile(POWER, float(degrees))
        return bool(t * sqrt(float(variance)) <= distance)

    units, combinations = parts.units, parts.combinations
    enough_units = next((n for n in range(units + 1, _MOST_UNITS) if is_enough(n, combinations)), None)
    more_units = None if enough_units is None else enough_units - units
    enough = combinations + 1 if units >= FEWEST_UNITS else _MOST_COMBINATIONS
    while enough < _MOST_COMBINATIONS and not is_enough(units, enough):
        enough = ceil(enough * 1.02)
    more_combinations = enough - combinations if enough < _MOST_COMBINATIONS else None
    if observed.unit == "partitions":
        return MoreData(combinations=more_combinations, partitions=more_units)
    return MoreData(combinations=more_combinations, seeds=more_units)
