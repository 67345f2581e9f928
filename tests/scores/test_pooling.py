"""Pooling over seeds and partitions: the textbook sums written out, the edges, and the advice on more data."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from skillmix.scores.statistics.differences import Gain, gain
from skillmix.scores.statistics.more_data import MoreData, largest, more_to_exclude, more_to_find, smallest
from skillmix.scores.statistics.pooling import Differences, pooled, shared_combinations
from skillmix.scores.statistics.student_t import t_quantile, two_sided_p

RNG = np.random.default_rng(7)


def by_id(values: Sequence[float], start: int = 0) -> dict[str, float]:
    return {f"c{start + number:05}": float(value) for number, value in enumerate(values)}


def seeds_of(table: Sequence[Sequence[float]]) -> dict[int, Differences]:
    return {seed: by_id(row) for seed, row in enumerate(table)}


@pytest.mark.parametrize("degrees", [1, 1.7, 2, 3, 4.5, 29, 999])
def test_quantiles_and_p_values_are_those_of_students_t(degrees: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(stats.t.ppf(0.975, degrees))
    assert two_sided_p(-1.3, degrees) == pytest.approx(2 * stats.t.sf(1.3, degrees))


def test_seeds_crossed_with_combinations_follow_the_two_way_mean_squares() -> None:
    table = RNG.choice([-1.0, 0.0, 1.0], p=[0.1, 0.5, 0.4], size=(4, 30)) / 2
    table += np.array([[0.2], [0.0], [0.1], [-0.1]])
    seeds, combinations = table.shape
    grand = table.mean()
    of_seed = sum(combinations * (row.mean() - grand) ** 2 for row in table) / (seeds - 1)
    of_combination = sum(seeds * (column.mean() - grand) ** 2 for column in table.T) / (combinations - 1)
    total = ((table - grand) ** 2).sum()
    rest = (total - (seeds - 1) * of_seed - (combinations - 1) * of_combination) / ((seeds - 1) * (combinations - 1))
    assert of_seed > rest
    sum_ = of_seed + of_combination - rest
    degrees = sum_**2 / (
        of_seed**2 / ((seeds - 1) * (1 + rest / of_seed))
        + of_combination**2 / (combinations - 1)
        + rest**2 / ((seeds - 1) * (combinations - 1))
    )
    error = np.sqrt(sum_ / table.size)

    result = pooled({"p": seeds_of(table.tolist())})

    assert result.mean == pytest.approx(grand)
    assert (result.low, result.high) == pytest.approx(stats.t.interval(0.95, degrees, grand, error))
    assert result.p == pytest.approx(2 * stats.t.sf(grand / error, degrees))
    assert result.combinations == 30
    assert result.values == pytest.approx(tuple(table.mean(axis=1)))


def test_seeds_that_agree_by_chance_do_not_shrink_the_interval() -> None:
    row = RNG.choice([0.0, 1.0], size=40)
    table = [row, np.roll(row, 1), np.roll(row, 2)]  # the means of the seeds are equal

    result = pooled({"p": seeds_of([list(r) for r in table])})

    assert result.components is not None
    assert result.components.seed == 0
    assert result.high - result.low > 2 * 1.96 * np.std(row) / np.sqrt(3 * 40) * 0.7
    equal = pooled({"p": seeds_of([[1.0, 0.0], [0.0, 1.0]])})
    assert equal.low < 0 < equal.high


def test_equal_differences_have_a_symmetric_interval() -> None:
    result = pooled({"p": seeds_of([[0.0] * 100, [0.0] * 100, [0.0] * 100])})

    assert (result.mean, result.p, result.combinations) == (0.0, 1.0, 100)
    assert result.low == -result.high
    assert 0.03 < result.high < 0.04


def test_seeds_with_few_shared_combinations_are_nested() -> None:
    groups = [RNG.choice([0.0, 1.0], size=50) + shift for shift in (0.0, 0.6)]
    apart = {seed: by_id(group.tolist(), start=100 * seed) for seed, group in enumerate(groups)}

    result = pooled({"p": apart})

    means = [group.mean() for group in groups]
    assert result.combinations == 100
    assert (result.low, result.high) == pytest.approx(
        np.clip(stats.t.interval(0.95, 1, np.mean(means), np.std(means, ddof=1) / np.sqrt(2)), -1, 1)
    )
    assert shared_combinations([by_id([0] * 10), by_id([0] * 10, start=4)]) == [f"c{n:05}" for n in range(4, 10)]
    assert shared_combinations([by_id([0] * 10), by_id([0] * 10, start=6)]) == []


def test_combinations_that_not_all_seeds_have_are_left_out() -> None:
    first, second = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    longer = by_id([*first, 1.0, 1.0])

    result = pooled({"p": {0: longer, 1: by_id(second)}})

    assert result == pooled({"p": {0: by_id(first), 1: by_id(second)}})
    assert result.combinations == 6


def test_partitions_are_the_unit() -> None:
    nested = {
        "p": {0: by_id([1.0, 1.0, 0.0, 0.0]), 1: by_id([0.0] * 4)},
        "q": {0: by_id([1.0, 0.0])},
        "r": {0: by_id([1.0, 1.0, 1.0, 0.0])},
    }

    result = pooled(nested)

    means = [0.25, 0.5, 0.75]
    low, high = stats.t.interval(0.95, 2, 0.5, np.std(means, ddof=1) / np.sqrt(3))
    assert (result.mean, result.low, result.high) == pytest.approx((0.5, low, min(high, 1.0)))
    assert (result.values, result.combinations, result.components) == (tuple(means), 10, None)


def test_partitions_with_equal_means_are_not_certain() -> None:
    result = pooled({"p": {0: by_id([1.0, 0.0] * 10)}, "q": {0: by_id([0.0, 1.0] * 10)}})

    assert result.mean == 0.5
    assert result.low < 0.4 and result.high > 0.6


def test_pooling_needs_combinations_everywhere() -> None:
    with pytest.raises(ValueError, match="at least one combination"):
        pooled({"a": {0: by_id([1.0])}, "b": {}})


def test_one_seed_is_tested_over_its_combinations() -> None:
    result = gain({"p": {0: by_id([1.0] * 9 + [-1.0] * 2 + [0.0] * 20)}})

    assert result.p == pytest.approx(stats.binomtest(9, 11).pvalue)
    assert (result.unit, result.seeds, result.combinations) == ("combinations", 1, 31)


def world(shape: tuple[int, int], mean: float, parts: dict[str, float]) -> dict[int, Differences]:
    seeds, combinations = shape
    table = (
        mean
        + RNG.normal(0, parts["of_seed"], (seeds, 1))
        + RNG.normal(0, parts["of_combination"], (1, combinations))
        + RNG.normal(0, 0.3, (seeds, combinations))
    )
    return seeds_of(table.tolist())


def exact_world(seeds: int, combinations: int, *, mean: float, of_seed: float, of_combination: float) -> Gain:
    """A table with the given parts, exactly: standardised effects of seeds and combinations, and a checkerboard."""
    rows, columns = np.linspace(-1, 1, seeds), np.linspace(-1, 1, combinations)
    rest = np.outer(np.where(np.arange(seeds) % 2, 1, -1), np.where(np.arange(combinations) % 2, 1, -1)) * 0.3
    table = mean + of_seed * (rows / rows.std(ddof=1))[:, None] + of_combination * columns / columns.std(ddof=1) + rest
    return gain({"p": seeds_of(table.tolist())})


def test_the_advice_says_which_kind_of_data_helps() -> None:
    seeds_differ = exact_world(4, 200, mean=0.1, of_seed=0.1, of_combination=0.05)
    combinations_differ = exact_world(4, 20, mean=0.1, of_seed=0.0, of_combination=0.5)

    by_seeds = more_to_find(seeds_differ, level=0.05)
    by_combinations = more_to_find(combinations_differ, level=0.05)

    assert by_seeds.seeds and by_seeds.combinations is None
    assert by_combinations.combinations and by_combinations.seeds is None


@pytest.mark.parametrize("kind", ["seeds", "combinations"])
def test_the_advised_data_find_the_gain_in_about_80_percent(kind: str) -> None:
    parts = {"of_seed": 0.06, "of_combination": 0.05} if kind == "seeds" else {"of_seed": 0.0, "of_combination": 0.5}
    pilot = gain({"p": world((40, 4000), 0.08, parts)})
    assert pilot.components is not None
    small = replace(pilot, components=replace(pilot.components, seeds=4, combinations=60))
    more = more_to_find(small, level=0.05)
    number = getattr(more, kind)
    assert number is not None
    shape = (4 + number, 60) if kind == "seeds" else (4, 60 + number)

    found = np.mean([gain({"p": world(shape, 0.08, parts)}).p < 0.05 for _ in range(400)])

    assert 0.72 <= found <= 0.9


def test_more_partitions_are_asked_for_by_their_spread() -> None:
    observed = gain({name: {0: by_id([value, value, 0.0, 0.0])} for name, value in (("p", 0.1), ("q", 0.5))})

    more = more_to_find(observed, level=0.05)

    assert more.partitions is not None and more.partitions > 1
    assert (more.seeds, more.combinations) == (None, None)
    assert more_to_exclude(observed, 0.05) == MoreData()  # the mean itself is above the margin


def test_needs_of_several_k_are_joined() -> None:
    needs = [MoreData(combinations=10, seeds=3), MoreData(combinations=40)]

    assert smallest(needs) == MoreData(combinations=10, seeds=3)
    assert largest(needs) == MoreData(combinations=40)
    assert not largest([])
