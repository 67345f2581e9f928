"""The novelty bound with a measured share for each skill, against all combinations one by one."""

from itertools import combinations
from math import comb, prod
from statistics import mean

import pytest

from skillmix.catalog.novelty import NoveltyInputs, mean_product, measured_novelty, novelty, share_of_sentences
from skillmix.errors import UserError

SHARES = [0.2, 0.01, 0.0, 0.07, 0.5, 0.03, 0.11]


@pytest.mark.parametrize("k", range(1, 8))
def test_the_mean_over_combinations_equals_that_of_all_combinations_one_by_one(k: int) -> None:
    assert mean_product(SHARES, k) == pytest.approx(mean(map(prod, combinations(SHARES, k))))


def test_the_mean_of_many_combinations_neither_overflows_nor_vanishes() -> None:
    assert comb(3000, 1500) > 1e300  # more combinations than a float can count
    assert mean_product([0.5] * 3000, 20) == pytest.approx(0.5**20)


def test_equal_shares_of_sentences_give_the_bound_of_the_paper() -> None:
    bound = measured_novelty(5, 2e12, [0.0144] * 20, sentences_per_passage=1)

    assert bound.mean_occurrences == pytest.approx(novelty(5, 2e12).expected_occurrences)
    assert bound.most_occurrences == pytest.approx(bound.mean_occurrences)


def test_the_bound_of_passages_is_the_larger_one() -> None:
    """A sentence that shows all skills is in a passage that does."""
    by_sentence, by_passage = (
        measured_novelty(3, 1e9, SHARES, sentences_per_passage=5, unit=unit) for unit in ("sentence", "passage")
    )

    assert by_passage.mean_occurrences > by_sentence.mean_occurrences
    assert by_passage.units == pytest.approx(by_sentence.units / 5)


def test_the_combination_of_the_most_common_skills_has_the_most_occurrences() -> None:
    inputs = NoveltyInputs(topic_frequency=1.0, sentences_per_token=1.0)

    bound = measured_novelty(2, 100, SHARES, sentences_per_passage=1, inputs=inputs)

    assert bound.most_occurrences == pytest.approx(100 * 0.5 * 0.2)
    assert bound.mean_occurrences <= bound.most_occurrences


def test_a_share_of_all_passages_is_one_of_all_sentences() -> None:
    assert share_of_sentences(1.0, 7) == 1.0
    assert share_of_sentences(0.0, 7) == 0.0


def test_more_skills_than_were_counted_cannot_be_combined() -> None:
    with pytest.raises(UserError, match="k = 8 is not possible with 7 skills"):
        measured_novelty(8, 1e9, SHARES, sentences_per_passage=5)
