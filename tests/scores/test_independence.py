"""Skills as if they were independent of one another, with intervals and a test."""

import numpy as np
import pytest

from skillmix.catalog.combinations import Combination
from skillmix.grading.answers import AnswerStatus
from skillmix.grading.points import Points
from skillmix.scores import skills
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.skills import TextOutcome, cell_independence, independence, independence_test


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


SKILLS = [f"s{number}" for number in range(8)]


def cell(generator: np.random.Generator, *, coupling: float, n: int = 60, k: int = 2, texts: int = 3) -> Cell:
    """Texts that show each skill with probability one half; `coupling` of them show all skills or none."""
    combinations, points = [], []
    for number in range(n):
        skills = tuple(sorted(generator.choice(SKILLS, size=k, replace=False).tolist()))
        combinations.append(Combination(f"c{number:03}", skills, "t"))
        rows: list[Points] = []
        for _ in range(texts):
            shown = generator.random(k) < 0.5
            if generator.random() < coupling:
                shown[:] = shown[0]
            rows.append((*(bool(s) for s in shown), True, bool(generator.random() < 0.9), True))
        points.append(tuple(rows))
    key = CellKey("r", "s", "g", "all", k)
    fine: AnswerStatus = "fine"
    return Cell(key, tuple(combinations), tuple(points), ((fine,) * texts,) * n)


def test_coupled_skills_are_found_and_independent_ones_are_not() -> None:
    generator = np.random.default_rng(1)
    coupled = independence_test(cell(generator, coupling=0.8), None)
    p_values = [independence_test(cell(generator, coupling=0.0, n=30), None).p for _ in range(60)]

    assert coupled.p is not None and coupled.p < 0.01
    assert np.mean([p is not None and p < 0.05 for p in p_values]) <= 0.12


def test_the_range_under_independence_lies_around_the_product_of_the_rates() -> None:
    generator = np.random.default_rng(2)
    texts, alone = cell(generator, coupling=0.8), cell(generator, coupling=0.0, k=1)
    numbers, test = cell_independence(texts, alone), independence_test(texts, alone)

    assert numbers.expected_same_k is not None and test.if_independent is not None
    low, high = test.if_independent
    assert (low + high) / 2 == pytest.approx(numbers.expected_same_k, abs=0.02)
    assert numbers.observed is not None and numbers.observed > high
    assert test.observed is not None and test.observed.low < numbers.observed < test.observed.high
    assert test.k1 is not None and numbers.expected_k1 is not None
    assert test.k1.low < numbers.expected_k1 < test.k1.high


def test_too_few_combinations_have_a_test_but_no_intervals() -> None:
    generator = np.random.default_rng(3)
    test = independence_test(cell(generator, coupling=0.5, n=9), cell(generator, coupling=0.0, n=9, k=1))

    assert test.observed is test.k1 is None
    assert test.p is not None and test.if_independent is not None


def test_one_skill_alone_has_no_test_and_no_texts_have_nothing() -> None:
    generator = np.random.default_rng(4)
    nothing = cell(generator, coupling=0.0).only(lambda _: False)

    assert independence_test(cell(generator, coupling=0.0, k=1), None).p is None
    assert independence_test(nothing, None).if_independent is None


def test_cells_with_thousands_of_combinations_are_drawn_in_groups() -> None:
    """Memory does not grow with the combinations; the shares stay those of independent skills."""
    generator = np.random.default_rng(3)
    texts, alone = cell(generator, coupling=0.0, n=7_000), cell(generator, coupling=0.0, k=1, n=7_000)
    numbers, test = cell_independence(texts, alone), independence_test(texts, alone)

    assert skills.draws_at_once(7_000) == [714, 286]
    assert test.p is not None and test.p > 0.01
    for expected, interval in ((numbers.expected_same_k, test.if_independent), (numbers.expected_k1, test.k1)):
        assert expected is not None and interval is not None
        assert interval.low < expected < interval.high
        assert interval.high - interval.low < 0.03
