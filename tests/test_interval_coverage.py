"""Over many simulated runs, 95% intervals hold the truth in about 95% of them."""

import os
from math import prod

import numpy as np
import pytest

from skillmix.scores.statistics import differences, intervals
from skillmix.scores.statistics.differences import paired_difference
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS, mean_interval, wilson_interval
from tests.ends import ends

LONG = bool(os.environ.get("SKILLMIX_LONG"))
TRIALS = 4000 if LONG else 800


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw 2,000 resamples instead of 10,000: the ends of one interval move a little, and the coverage does not."""
    if not LONG:
        for module in (intervals, differences):
            monkeypatch.setattr(module, "RESAMPLES", 2_000)


def coverage(n: int, rate: float, *, best_of: int) -> float:
    """How often the interval holds the truth when combinations differ in difficulty."""
    generator = np.random.default_rng(n)
    hits = 0
    for _ in range(TRIALS):
        difficulty = generator.beta(4 * rate, 4 * (1 - rate), size=n)
        tries = generator.random((n, 3)) < difficulty[:, None]
        if best_of == 3:
            truth = 1 - prod((4 * (1 - rate) + i) / (4 + i) for i in range(3))
            low, high = wilson_interval(float(tries.max(axis=1).mean()), n)
        else:
            truth = rate
            low, high = mean_interval(tries.mean(axis=1).tolist())
        hits += int(low <= truth <= high)
    return hits / TRIALS


@pytest.mark.parametrize("best_of", [1, 3])
def test_95_percent_intervals_hold_the_truth_in_93_to_97_percent(best_of: int) -> None:
    shares = [coverage(100, rate, best_of=best_of) for rate in (0.1, 0.2, 0.35, 0.5, 0.7)]

    assert 0.93 <= np.mean(shares) <= 0.97, shares


@pytest.mark.parametrize("best_of", [1, 3])
def test_below_ten_combinations_only_wilson_intervals_hold_the_truth_often_enough(best_of: int) -> None:
    few = [coverage(3, rate, best_of=best_of) for rate in (0.35, 0.5)]
    enough = [coverage(FEWEST_COMBINATIONS, rate, best_of=best_of) for rate in (0.35, 0.5)]

    assert np.mean(few) < 0.85 if best_of == 1 else np.mean(few) > 0.88
    assert 0.92 <= np.mean(enough) <= 0.98


def test_paired_intervals_hold_the_truth() -> None:
    generator = np.random.default_rng(5)
    hits = 0
    for _ in range(TRIALS):
        difficulty = generator.uniform(0.1, 0.6, size=100)
        first = (generator.random((100, 3)) < difficulty[:, None]).mean(axis=1)
        second = (generator.random((100, 3)) < difficulty[:, None] + 0.2).mean(axis=1)
        result = paired_difference(by_id(first), by_id(second))
        assert result is not None
        low, high = ends(result)
        hits += low <= 0.2 <= high

    assert 0.93 <= hits / TRIALS <= 0.97


def by_id(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> dict[str, float]:
    return {str(i): float(value) for i, value in enumerate(values)}
