"""One number over several partitions and seeds, with a hierarchical bootstrap over both and over combinations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from skillmix.scores.statistics.intervals import (
    RESAMPLES,
    ROUNDING,
    SEED,
    Floats,
    bootstrap_means,
    constant_interval,
    mean_interval,
    p_of_zero,
    percentile_interval,
)

Nested = Mapping[str, Mapping[int, Sequence[float]]]
"""Per-combination values by partition and seed."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """A mean over partitions of means over seeds of means over combinations."""

    values: Mapping[str, Mapping[int, float]]
    mean: float
    low: float
    high: float
    p: float
    """The two-sided p-value of a mean of 0: the level at which the interval just reaches 0."""
    units: int
    """How many partitions, seeds or combinations: the highest level with several members limits the precision."""


def pooled(nested: Nested) -> Pooled:
    """Bootstrap over partitions, then seeds within them, then combinations within those."""
    partitions = [[np.asarray(v, dtype=np.float64) for v in seeds.values()] for seeds in nested.values()]
    every = [value for seeds in partitions for values in seeds for value in values.tolist()]
    if not partitions or not all(seeds and all(len(values) for values in seeds) for seeds in partitions):
        raise ValueError("every partition and seed needs at least one combination")
    means = [float(np.mean([values.mean() for values in seeds])) for seeds in partitions]
    units = _top_level_size(partitions)
    if max(every) - min(every) < ROUNDING:
        low, high = mean_interval(every) if min(every) >= 0 else constant_interval(every[0], len(every))
        p = 1.0 if abs(every[0]) < ROUNDING else min(1.0, 2 * 0.5**units)
    else:
        resampled = _resampled(partitions)
        low, high = percentile_interval(resampled, units)
        p = p_of_zero(resampled, units)
    return Pooled(
        values={p: {s: float(np.mean(v)) for s, v in seeds.items()} for p, seeds in nested.items()},
        mean=float(np.mean(means)),
        low=low,
        high=high,
        p=p,
        units=units,
    )


def _resampled(partitions: list[list[Floats]]) -> Floats:
    generator = np.random.default_rng(SEED)
    draws = [_one_partition(partitions, generator) for _ in partitions]
    means: Floats = np.mean(draws, axis=0)
    return means


def _one_partition(partitions: list[list[Floats]], generator: np.random.Generator) -> Floats:
    """For every resample, draw a partition, as many seeds as it has, and as many combinations as each seed has."""
    chosen = generator.integers(len(partitions), size=RESAMPLES)
    out = np.empty(RESAMPLES)
    for number, seeds in enumerate(partitions):
        rows = np.flatnonzero(chosen == number)
        drawn = [_one_seed(seeds, len(rows), generator) for _ in seeds]
        out[rows] = np.mean(drawn, axis=0)
    return out


def _one_seed(seeds: list[Floats], resamples: int, generator: np.random.Generator) -> Floats:
    chosen = generator.integers(len(seeds), size=resamples)
    out = np.empty(resamples)
    for number, values in enumerate(seeds):
        rows = np.flatnonzero(chosen == number)
        if len(rows):
            out[rows] = bootstrap_means(values, len(rows), generator)
    return out


def _top_level_size(partitions: list[list[Floats]]) -> int:
    """The number of units at the highest level that has more than one."""
    if len(partitions) > 1:
        return len(partitions)
    seeds = partitions[0]
    return len(seeds) if len(seeds) > 1 else len(seeds[0])
