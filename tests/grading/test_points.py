"""Votes over every value, metrics over every point vector."""

from collections.abc import Callable
from itertools import product

import pytest

from skillmix.grading.answers import RULES, Answer
from skillmix.grading.points import METRICS, decide_points, text_score, vote
from skillmix.grading.reader import Reading
from skillmix.prompts.rubric import rubric_of
from skillmix.scores.cells import summarise

DEFAULT, PAPER = RULES["default"], RULES["paper"]


@pytest.mark.parametrize("votes", list(product([0.0, 0.5, 1.0, None], repeat=3)))
def test_the_vote_over_all_values_of_three_rounds(votes: tuple[float | None, ...]) -> None:
    decision = vote(votes, 3)

    worst = sum(0.0 if v is None else v for v in votes) > 1.5
    best = sum(1.0 if v is None else v for v in votes) > 1.5
    assert decision == (worst if worst == best else None)


def test_a_tie_of_an_even_number_of_votes_decides_nothing() -> None:
    assert vote([1.0, 0.0], 2) is None
    assert vote([1.0, 1.0], 2) is True
    assert vote([0.0, 0.5], 2) is False


def test_votes_in_any_order_decide_alike() -> None:
    assert vote([0.8, 0.4, 0.3], 3) == vote([0.3, 0.4, 0.8], 3)


def test_a_round_that_never_came_counts_as_missing() -> None:
    assert vote([1.0], 3) is None
    assert vote([1.0, 1.0], 3) is True
    assert vote([], 1) is None


EXPECTED: dict[str, Callable[[tuple[bool, ...], tuple[bool, ...]], float]] = {
    "full_marks": lambda skills, others: float(all(skills) and all(others)),
    "all_skills": lambda skills, others: float(all(skills) and sum(others) >= 2),
    "skill_fraction": lambda skills, others: sum(skills) / len(skills) if all(others) else 0.0,
}
"""Every metric over the points of the skills and of the other three criteria, worked out a second time."""


def test_every_metric_is_worked_out_a_second_time() -> None:
    assert EXPECTED.keys() == METRICS.keys()


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_over_all_point_vectors(k: int, metric: str) -> None:
    for points in product([False, True], repeat=k + 3):
        score = text_score(points, metric)

        assert score == EXPECTED[metric](points[:k], points[k:])
        assert score in (0.0, 1.0) or not METRICS[metric].is_binary
        assert score == 1.0 or not all(points)


@pytest.mark.parametrize("k", range(1, 4))
@pytest.mark.parametrize("metric", METRICS)
def test_an_undecided_point_matters_only_if_it_could_change_the_metric(k: int, metric: str) -> None:
    for points in product([False, True, None], repeat=k + 3):
        completions = product(*([p] if p is not None else [False, True] for p in points))
        possible = {text_score(completion, metric) for completion in completions}

        assert text_score(points, metric) == (possible.pop() if len(possible) == 1 else None)


def reading(*points: float | None) -> Reading:
    return Reading(points, None)


def decided(
    text: str, *readings: Reading | None, rules: str = "default", status: str = "fine"
) -> tuple[bool | None, ...]:
    rubric = rubric_of(["metaphor", "red herring"], "Sewing")
    answer = Answer(text, status)  # type: ignore[arg-type]
    return decide_points(rubric, answer, readings, rounds=len(readings), rules=RULES[rules])


def test_an_empty_answer_earns_nothing_not_even_the_length_point() -> None:
    assert decided("", reading(1, 1, 1, 1, 1), status="empty") == (False,) * 5


def test_a_refusal_of_the_student_earns_nothing() -> None:
    assert decided("", None, status="refused") == (False,) * 5


def test_the_length_point_comes_from_code_whatever_the_grader_says() -> None:
    assert decided("One. Two. Three.", reading(1, 1, 1, 1, 1))[-1] is False
    assert decided("One only.", reading(1, 1, 1, 1, 0))[-1] is True


def test_the_counter_follows_the_rules() -> None:
    text = "One thing\nAnother thing"

    assert decided(text, reading(1, 1, 1, 1, None))[-1] is False
    assert decided(text, reading(1, 1, 1, 1, None), rules="paper")[-1] is True


def test_a_named_skill_gets_no_point() -> None:
    assert decided("A metaphorical stitch.", reading(1, 1, 1, 1, 1)) == (False, True, True, True, True)


def test_a_named_skill_is_decided_even_without_a_readable_vote() -> None:
    assert decided("A metaphor.", Reading(None, "why")) == (False, None, None, None, True)


def test_three_rounds_are_three_votes() -> None:
    points = decided("A stitch.", reading(1, 0, 1, 1, 1), reading(1, 0, 1, 1, 1), reading(0, 1, 1, 0, 1))

    assert points == (True, False, True, True, True)


def test_a_missing_marker_scores_zero_only_if_asked() -> None:
    from dataclasses import replace

    rubric = rubric_of(["metaphor"], "Sewing")
    answer = Answer("A stitch.", "no marker")
    votes = [reading(1, 1, 1, 1)]

    assert all(decide_points(rubric, answer, votes, rounds=1, rules=DEFAULT))
    strict = replace(DEFAULT, missing_marker="zero")
    assert not any(decide_points(rubric, answer, votes, rounds=1, rules=strict))


def test_value_is_over_complete_combinations_and_bounds_over_all() -> None:
    summary = summarise([[1.0, 0.0], [0.0, 0.0], [1.0, None], [0.0, None]], "full_marks")

    assert (summary.value, summary.complete, summary.combinations, summary.ungraded) == (0.5, 2, 4, 2)
    assert (summary.bound_low, summary.bound_high) == (0.5, 0.75)
    assert summary.one_try == 0.25


def test_nothing_complete_is_unknown_not_zero() -> None:
    summary = summarise([[None], [None, 1.0]], "full_marks")

    assert summary.value is summary.low is summary.one_try is None
    assert (summary.bound_low, summary.bound_high) == (0.5, 1.0)


def test_an_empty_cell_is_unknown() -> None:
    summary = summarise([], "full_marks")

    assert summary.value is summary.bound_low is None
    assert summary.combinations == 0


def test_the_best_of_g_is_taken_for_each_metric_apart() -> None:
    first, second = (True, False, True, True, True), (True, True, True, True, False)
    fractions = summarise([[text_score(p, "skill_fraction") for p in (first, second)]], "skill_fraction")
    every = summarise([[text_score(p, "all_skills") for p in (first, second)]], "all_skills")

    assert (fractions.value, every.value) == (0.5, 1.0)


def test_binary_values_get_wilson_intervals_and_fractions_the_bootstrap() -> None:
    from scipy.stats import binomtest

    scores = [[1.0]] * 5 + [[0.0]] * 95

    binary = summarise(scores, "full_marks")
    bootstrapped = summarise(scores, "skill_fraction")

    expected = binomtest(5, 100).proportion_ci(method="wilson")
    assert (binary.low, binary.high) == pytest.approx((expected.low, expected.high))
    assert bootstrapped.low != binary.low
    assert (bootstrapped.one_try_low, bootstrapped.one_try_high) == (bootstrapped.low, bootstrapped.high)
