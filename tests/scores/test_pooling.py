"""Pooling over seeds and partitions: the textbook sums written out, the edges, and the advice on more data."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from skillmix.scores.statistics.differences import (
    Differences,
    Gain,
    MoreData,
    gain,
    largest,
    more_to_exclude,
    more_to_find,
    shared_combinations,
    smallest,
)
from skillmix.scores.statistics.intervals import t_quantile, two_sided_p
from tests.ends import ends

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
        of_seed**2 / ((seeds - 1) * (1 + 0.75 * rest / of_seed))
        + of_combination**2 / (combinations - 1)
        + rest**2 / ((seeds - 1) * (combinations - 1))
    )
    error = np.sqrt(sum_ / table.size)

    result = gain({"p": seeds_of(table.tolist())})

    assert result.mean == pytest.approx(grand)
    assert (result.low, result.high) == pytest.approx(stats.t.interval(0.95, degrees, grand, error))
    assert result.p == pytest.approx(2 * stats.t.sf(grand / error, degrees))
    assert result.combinations == 30
    assert result.values == pytest.approx(tuple(table.mean(axis=1)))


def test_seeds_that_agree_by_chance_do_not_shrink_the_interval() -> None:
    row = RNG.choice([0.0, 1.0], size=40)
    table = [row, np.roll(row, 1), np.roll(row, 2)]  # the means of the seeds are equal

    result = gain({"p": seeds_of([list(r) for r in table])})

    assert result.components is not None
    assert result.components.unit == 0
    low, high = ends(result)
    assert high - low > 2 * 1.96 * np.std(row) / np.sqrt(3 * 40) * 0.7


def test_equal_differences_have_a_symmetric_interval() -> None:
    result = gain({"p": seeds_of([[0.0] * 100, [0.0] * 100, [0.0] * 100])})

    assert (result.mean, result.p, result.combinations) == (0.0, 1.0, 100)
    low, high = ends(result)
    assert low == -high
    assert 0.03 < high < 0.04


def test_seeds_with_few_shared_combinations_are_nested() -> None:
    groups = [RNG.choice([0.0, 1.0], size=50) + shift for shift in (0.0, 0.6)]
    apart = {seed: by_id(group.tolist(), start=100 * seed) for seed, group in enumerate(groups)}

    result = gain({"p": apart})

    means = [group.mean() for group in groups]
    assert result.combinations == 100
    # Two seeds have no interval. Their p-value is that of Student's t, with a part for the error within seeds.
    ratio = stats.t.ppf(0.975, 49) / stats.t.ppf(0.975, 1)
    within = np.mean([group.var(ddof=1) for group in groups]) / 50
    error = np.sqrt((np.var(means, ddof=1) + ratio**2 * within) / 2)
    assert (result.low, result.high) == (None, None)
    assert result.p == pytest.approx(2 * stats.t.sf(np.mean(means) / error, 1))
    assert shared_combinations([by_id([0] * 10), by_id([0] * 10, start=4)]) == [f"c{n:05}" for n in range(4, 10)]
    assert shared_combinations([by_id([0] * 10), by_id([0] * 10, start=6)]) == []


def test_combinations_that_not_all_seeds_have_are_left_out() -> None:
    first, second = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    longer = by_id([*first, 1.0, 1.0])

    result = gain({"p": {0: longer, 1: by_id(second)}})

    assert result == gain({"p": {0: by_id(first), 1: by_id(second)}})
    assert result.combinations == 6


def test_partitions_are_the_unit() -> None:
    nested = {
        "p": {0: by_id([1.0, 1.0, 0.0, 0.0]), 1: by_id([0.0] * 4)},
        "q": {0: by_id([1.0, 0.0], start=10)},
        "r": {0: by_id([1.0, 1.0, 1.0, 0.0], start=20)},
    }

    result = gain(nested)

    assert (result.mean, result.values, result.combinations) == (0.5, (0.25, 0.5, 0.75), 10)
    assert result.components is not None
    assert (result.components.units, result.components.combinations) == (3, 2)


def test_partitions_with_the_same_combinations_are_crossed_with_them_as_seeds_are() -> None:
    rows = RNG.choice([0.0, 1.0], size=(3, 40)) + np.linspace(-1, 1, 40)
    others = rows[0] + RNG.choice([0.0, 0.2], size=40)
    of_seeds = gain({"p": seeds_of([(rows[0] + others) / 2, rows[1], rows[2]])})

    of_partitions = gain(
        {"p": {0: by_id(rows[0]), 1: by_id(others)}, "q": {0: by_id(rows[1])}, "r": {5: by_id(rows[2])}}
    )

    assert of_partitions == replace(of_seeds, seeds=4, partitions=3, unit="partitions")
    assert of_partitions.combinations == 40


def test_partitions_that_differ_have_the_interval_of_their_means() -> None:
    means = [0.1, 0.3, 0.8]
    # The halves of 4,000 combinations differ by .02, so nearly all of the variance is between partitions.
    nested = {
        str(mean): {0: by_id([mean - 0.01, mean + 0.01] * 2000, start=5000 * number)}
        for number, mean in enumerate(means)
    }

    result = gain(nested)

    low, high = stats.t.interval(0.95, 2, 0.4, np.std(means, ddof=1) / np.sqrt(3))
    assert ends(result) == pytest.approx((max(low, -1.0), min(high, 1.0)), abs=1e-3)


def test_partitions_with_equal_means_are_not_certain() -> None:
    rows = {"p": [1.0, 0.0] * 10, "q": [0.0, 1.0] * 10, "r": [1.0, 0.0] * 10}
    two = gain({name: {0: by_id(rows[name], start=20 * n)} for n, name in enumerate("pq")})
    three = gain({name: {0: by_id(row, start=20 * n)} for n, (name, row) in enumerate(rows.items())})

    assert (two.mean, two.low, two.high) == (0.5, None, None)
    low, high = ends(three)
    assert low < 0.4 and high > 0.6


def test_pooling_needs_combinations_everywhere() -> None:
    with pytest.raises(ValueError, match="at least one combination"):
        gain({"a": {0: by_id([1.0])}, "b": {}})


def test_one_seed_is_tested_over_its_combinations() -> None:
    result = gain({"p": {0: by_id([1.0] * 9 + [-1.0] * 2 + [0.0] * 20)}})

    assert result.p == pytest.approx(stats.binomtest(9, 11).pvalue)
    assert (result.unit, result.seeds, result.combinations) == ("combinations", 1, 31)


def world(
    generator: np.random.Generator, shape: tuple[int, int], mean: float, parts: dict[str, float]
) -> dict[int, Differences]:
    seeds, combinations = shape
    table = (
        mean
        + generator.normal(0, parts["of_seed"], (seeds, 1))
        + generator.normal(0, parts["of_combination"], (1, combinations))
        + generator.normal(0, 0.3, (seeds, combinations))
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
    generator = np.random.default_rng(11)
    parts = {"of_seed": 0.06, "of_combination": 0.05} if kind == "seeds" else {"of_seed": 0.0, "of_combination": 0.5}
    pilot = gain({"p": world(generator, (40, 4000), 0.08, parts)})
    assert pilot.components is not None
    small = replace(pilot, components=replace(pilot.components, units=4, combinations=60))
    more = more_to_find(small, level=0.05)
    number = getattr(more, kind)
    assert number is not None
    shape = (4 + number, 60) if kind == "seeds" else (4, 60 + number)

    found = np.mean([gain({"p": world(generator, shape, 0.08, parts)}).p < 0.05 for _ in range(400)])

    assert 0.72 <= found <= 0.9


def test_more_partitions_are_asked_for_by_their_spread() -> None:
    values = {"p": 0.1, "q": 0.5}
    observed = gain({p: {0: by_id([v, v, 0.0, 0.0], start=10 * n)} for n, (p, v) in enumerate(values.items())})

    more = more_to_find(observed, level=0.05)

    assert more.partitions is not None and more.partitions > 1
    assert (more.seeds, more.combinations) == (None, None)
    assert more_to_exclude(observed, 0.05) == MoreData()  # the mean itself is above the margin


def test_needs_of_several_k_are_joined() -> None:
    needs = [MoreData(combinations=10, seeds=3), MoreData(combinations=40)]

    assert smallest(needs) == MoreData(combinations=10, seeds=3)
    assert largest(needs) == MoreData(combinations=40)
    assert not largest([])


def test_shared_combinations_without_any_difference_are_constant() -> None:
    result = gain({"p": {0: by_id([0.0] * 12) | {"only here": 1.0}, 1: by_id([0.0] * 12)}})

    low, high = ends(result)
    assert (result.mean, result.p, low) == (0.0, 1.0, -high)


def test_more_combinations_cannot_decide_between_two_seeds() -> None:
    observed = gain({"p": seeds_of([[0.2] * 20 + [0.0] * 20, [0.0] * 30 + [0.4] * 10])})

    more = more_to_find(observed, level=0.05)

    assert observed.low is None and more.combinations is None and more.seeds
