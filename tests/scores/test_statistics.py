"""Checked against published implementations, and by how often intervals hold the truth."""

import numpy as np
import pytest
from scipy import stats

from skillmix.scores.statistics.against_truth import cohen_kappa, flip_rate, krippendorff_alpha
from skillmix.scores.statistics.differences import combinations_needed, holm, paired_difference, permutation_p
from skillmix.scores.statistics.intervals import (
    bootstrap_means,
    expanded_tail,
    mean_interval,
    wilson_interval,
)
from tests.ends import ends

RNG = np.random.default_rng(11)


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (1, 10), (5, 100), (37, 100), (100, 100), (1, 1)])
def test_wilson_equals_scipy(successes: int, n: int) -> None:
    expected = stats.binomtest(successes, n).proportion_ci(method="wilson")

    assert wilson_interval(successes / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_bootstrap_equals_scipys_at_the_same_tails() -> None:
    values = RNG.choice([0.0, 1 / 3, 2 / 3, 1.0], size=80)
    confidence = 1 - 2 * expanded_tail(80)

    ours = mean_interval(values.tolist())
    theirs = stats.bootstrap(
        (values,), np.mean, confidence_level=confidence, n_resamples=20_000, method="percentile", rng=RNG
    ).confidence_interval

    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_multinomial_resampling_has_the_moments_of_drawing_indices() -> None:
    values = np.array([0.0, 0.0, 0.5, 1.0, 1.0, 0.25])

    means = bootstrap_means(values, 200_000, RNG)

    assert means.mean() == pytest.approx(values.mean(), abs=0.002)
    assert means.var() == pytest.approx(values.var() / len(values), rel=0.02)


def test_equal_values_get_wilsons_bound() -> None:
    assert mean_interval([0.0] * 30) == wilson_interval(0.0, 30)
    assert mean_interval([1.0] * 30) == wilson_interval(1.0, 30)
    assert mean_interval([0.5]) == wilson_interval(0.5, 1)


def test_the_same_values_give_the_same_interval_in_any_order() -> None:
    values = [0.0, 1.0, 0.5, 1.0, 0.0, 1.0]

    assert mean_interval(values) == mean_interval(values[::-1])


def test_the_sign_test_is_exact_for_binary_scores() -> None:
    differences = np.array([1.0] * 9 + [-1.0] * 2 + [0.0] * 20)

    assert permutation_p(differences, RNG) == pytest.approx(stats.binomtest(9, 11).pvalue)


def test_the_permutation_equals_scipys() -> None:
    differences = RNG.choice([-1 / 3, 0, 1 / 3, 2 / 3], size=40)

    ours = permutation_p(differences, RNG)
    theirs = stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=20_000, alternative="two-sided", rng=RNG
    ).pvalue

    assert ours == pytest.approx(theirs, abs=0.01)


def test_no_difference_has_p_one() -> None:
    result = paired_difference({"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 0.0, "c": 1.0})

    assert result is not None
    assert (result.mean, result.p, result.combinations, result.needed()) == (0.0, 1.0, 2, None)


def test_equal_differences_are_not_certain() -> None:
    few, result = (paired_difference({str(i): 0.0 for i in range(n)}, {str(i): 1.0 for i in range(n)}) for n in (5, 10))

    assert few is not None and result is not None
    assert (few.mean, few.low, few.high, few.p, few.needed()) == (1.0, None, None, 0.0625, 6)
    low, high = ends(result)
    assert (result.mean, high, result.needed()) == (1.0, 1.0, 6)
    assert result.p == pytest.approx(2 * 0.5**10)
    assert -1 < low < 0.5


def test_rounding_noise_is_no_difference() -> None:
    result = paired_difference({"a": 0.0, "b": 0.0, "c": 0.6}, {"a": 0.2, "b": 0.4, "c": 0.0})

    assert result is not None
    assert result.needed() is None
    assert mean_interval([0.1 + 0.2, 0.3]) == pytest.approx(tuple(wilson_interval(0.3, 2)))


def test_only_shared_combinations_are_compared() -> None:
    assert paired_difference({"a": 1.0}, {"b": 1.0}) is None


def test_holm_equals_the_published_procedure() -> None:
    p_values = RNG.random(12)

    ranked = np.sort(p_values)
    expected = np.minimum(1, np.maximum.accumulate(ranked * np.arange(12, 0, -1)))
    assert np.sort(holm(p_values.tolist())) == pytest.approx(expected)


def test_the_combinations_needed_reach_80_percent_power() -> None:
    generator = np.random.default_rng(3)
    pilot = generator.choice([-1.0, 0.0, 1.0], p=[0.1, 0.65, 0.25], size=100_000)
    needed = combinations_needed(pilot)
    assert needed is not None

    found = 0
    for _ in range(1000):
        sample = generator.choice([-1.0, 0.0, 1.0], p=[0.1, 0.65, 0.25], size=needed)
        found += stats.ttest_1samp(sample, 0).pvalue < 0.05

    assert 0.77 <= found / 1000 <= 0.83


def test_alpha_equals_the_published_implementation() -> None:
    import krippendorff

    ratings = RNG.choice([0.0, 0.5, 1.0, np.nan], p=[0.3, 0.1, 0.5, 0.1], size=(60, 3))
    units = [[None if np.isnan(v) else float(v) for v in unit] for unit in ratings]

    expected = krippendorff.alpha(reliability_data=ratings.T, level_of_measurement="nominal")
    assert krippendorff_alpha(units) == pytest.approx(expected)


def test_kappa_equals_the_published_implementation() -> None:
    from sklearn.metrics import cohen_kappa_score

    first = RNG.integers(0, 2, size=80)
    second = np.where(RNG.random(80) < 0.8, first, 1 - first)

    ours = cohen_kappa(first.astype(float).tolist(), second.astype(float).tolist())

    assert ours == pytest.approx(cohen_kappa_score(first, second))


def test_agreement_without_anything_to_compare_is_unknown() -> None:
    assert krippendorff_alpha([]) is None
    assert krippendorff_alpha([[1.0, None], [None, 0.0]]) is None
    assert krippendorff_alpha([[1.0, 1.0], [1.0, 1.0]]) is None
    assert cohen_kappa([None], [1.0]) is None
    assert cohen_kappa([1.0, 1.0], [1.0, 1.0]) is None
    assert flip_rate([[1.0], [None, None]]) is None


def test_the_flip_rate_counts_differing_pairs() -> None:
    assert flip_rate([[1.0, 1.0, 0.0], [0.0, 0.0, None]]) == 0.5
