"""Skills alone, together, and as if they were independent of one another."""

import pytest

from skillmix.scores.skills import TextOutcome, independence


def outcome(others: bool, **skills: bool) -> TextOutcome:
    return TextOutcome(skills, others)


def test_independence_by_hand() -> None:
    texts = [
        outcome(True, a=True, b=True),
        outcome(True, a=False, b=True),
        outcome(False, a=True, b=False),
        outcome(True, a=True, b=True),
    ]
    alone = [outcome(True, a=True), outcome(True, a=True), outcome(True, b=True), outcome(True, b=False)]

    result = independence(texts, alone)

    assert result.observed == 0.5
    assert result.expected_same_k == pytest.approx(0.75 * 0.75 * 0.75)
    assert result.expected_k1 == pytest.approx(0.75 * 1.0 * 0.5)
    assert result.without_k1_rate == 0


def test_independence_leaves_out_texts_whose_skills_were_never_tried_alone() -> None:
    result = independence([outcome(True, a=True), outcome(True, c=True)], [outcome(True, a=True)])

    assert result.expected_k1 == 1.0
    assert result.without_k1_rate == 1


def test_independence_of_nothing_is_unknown() -> None:
    assert independence([], []).observed is None
