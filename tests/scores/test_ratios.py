"""Shares of correlated texts, and their intervals."""

import numpy as np
import pytest

from skillmix.scores.statistics.intervals import Cluster, Paired, cluster_interval, cluster_share, share_difference

TRIALS = 120


def draw(generator: np.random.Generator, n: int, rate: float) -> list[Cluster]:
    """Combinations of different difficulty, with zero to three valid texts each."""
    difficulty = generator.beta(2 * rate, 2 * (1 - rate), size=n)
    texts = generator.binomial(3, 0.6, size=n)
    return [Cluster(float(generator.binomial(t, d)), int(t)) for t, d in zip(texts, difficulty, strict=True)]


def with_texts(clusters: list[Cluster]) -> list[Cluster]:
    return [cluster for cluster in clusters if cluster.texts]


def test_a_share_is_over_texts_and_not_over_combinations() -> None:
    clusters = [Cluster(1.0, 1), Cluster(0.0, 3)]

    assert cluster_share(clusters) == 0.25
    assert cluster_share([]) is cluster_share([Cluster(0.0, 0)]) is None


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_intervals_of_correlated_texts_hold_the_truth(rate: float) -> None:
    generator = np.random.default_rng(3)
    intervals = [cluster_interval(with_texts(draw(generator, 60, rate))) for _ in range(TRIALS)]

    assert 0.9 <= np.mean([low <= rate <= high for low, high in intervals]) <= 0.99


def test_combinations_that_are_all_right_or_all_wrong_count_once_however_many_texts_they_have() -> None:
    once = cluster_interval([Cluster(1.0, 1)] * 10 + [Cluster(0.0, 1)] * 10)
    often = cluster_interval([Cluster(9.0, 9)] * 10 + [Cluster(0.0, 9)] * 10)

    assert often == pytest.approx(once)


def test_the_interval_of_a_difference_holds_the_truth() -> None:
    generator = np.random.default_rng(4)
    hits = 0
    for _ in range(TRIALS):
        pairs = [Paired(*both) for both in zip(draw(generator, 60, 0.3), draw(generator, 60, 0.5), strict=True)]
        difference = share_difference(pairs)
        assert difference is not None
        hits += difference.low <= 0.2 <= difference.high

    assert 0.9 <= hits / TRIALS <= 0.99


def test_a_difference_that_never_varies_has_an_interval_with_a_width() -> None:
    difference = share_difference([Paired(Cluster(0.0, 2), Cluster(0.0, 2))] * 30)

    assert difference is not None
    assert difference.low < 0 == difference.value < difference.high
    assert share_difference([Paired(Cluster(0.0, 0), Cluster(1.0, 1))]) is None
