"""Over simulated raters and graders with known errors, 95% intervals of cards hold the truth in about 95%.

The worlds are a grid of shares from .05 to .95 and of sensitivity and specificity from .7 to .98. Coverage in a single
world differs by more, because counts are whole numbers: with five earned texts, one error more or less decides.
"""

import os
from math import sqrt

import numpy as np
import pytest

from skillmix.scores.graders import full_marks_units
from skillmix.scores.statistics.against_truth import truth_measures
from tests.scores.grader_card.simulated_graders import (
    ERRORS,
    SHARES,
    SIZES,
    Simulation,
    World,
    coverage,
    criteria_of_a_text_share_its_errors,
    decisions,
    every_text_has_a_label,
    item,
    labels_of_a_better_student,
    labels_of_another_student,
    people_rate_a_sample,
    people_rate_students_who_differ,
    point,
)

LONG = bool(os.environ.get("SKILLMIX_LONG"))
LEAST, MOST = 0.93, 0.97
TRIALS: dict[Simulation, int] = {
    every_text_has_a_label: 400 if LONG else 20,
    criteria_of_a_text_share_its_errors: 200 if LONG else 12,
    labels_of_another_student: 200 if LONG else 12,
    people_rate_a_sample: 100 if LONG else 6,
}


@pytest.mark.parametrize("n", SIZES if LONG else SIZES[:1])
@pytest.mark.parametrize("simulation", TRIALS, ids=lambda simulation: simulation.__name__)
def test_intervals_hold_the_truth_in_93_to_97_percent_of_the_simulations(simulation: Simulation, n: int) -> None:
    held = coverage(simulation, n, TRIALS[simulation])

    means = {name: float(np.mean(list(by_world.values()))) for name, by_world in held.items()}
    noise = 0.0 if LONG else 3 * sqrt(0.95 * 0.05 / (TRIALS[simulation] * len(SHARES) * len(ERRORS)))
    assert means
    assert {name: mean for name, mean in means.items() if not LEAST - noise <= mean <= MOST + noise} == {}


@pytest.mark.skipif(not LONG, reason="minutes; set SKILLMIX_LONG=1")
@pytest.mark.parametrize("n", SIZES)
def test_with_students_who_differ_much_intervals_are_too_wide_and_never_too_narrow(n: int) -> None:
    held = coverage(people_rate_students_who_differ, n, 100)

    for name, by_world in held.items():
        assert np.mean(list(by_world.values())) >= LEAST, name


def test_a_sample_with_more_texts_of_one_outcome_biases_plain_shares_and_not_the_card() -> None:
    world = World(0.3, 0.8, 0.95)
    earned, given = decisions(world, 4000, np.random.default_rng(1))
    chosen = {*np.flatnonzero(given)[:150].tolist(), *np.flatnonzero(~given)[:150].tolist()}
    items = [
        item(i, {"judge": point(bool(given[i])), **({"human:a": point(bool(earned[i]))} if i in chosen else {})})
        for i in range(4000)
    ]

    measures = truth_measures(full_marks_units(items, "judge", "human:a"))
    plain = truth_measures(full_marks_units([items[i] for i in sorted(chosen)], "judge", "human:a"))

    for name, value in (("sensitivity", 0.8), ("specificity", 0.95), ("earned", 0.3)):
        low, high = getattr(measures, name)[1:]
        assert low <= value <= high, name
        low, high = getattr(plain, name)[1:]
        assert not low <= value <= high, name


@pytest.mark.parametrize(("labelled", "scored"), [(0.9, 0.6), (0.5, 0.95)])
def test_labels_of_one_student_correct_another_of_other_skill(labelled: float, scored: float) -> None:
    trials = 400 if LONG else 60

    held, mean = labels_of_a_better_student(labelled, scored, 200, trials)

    # Rates of full marks of whole texts, by which these scores were corrected before, gave .145 for .191 and .83.
    assert mean == pytest.approx(scored**3 * 0.95 * 0.93, abs=0.03)
    assert held >= 0.95 - 3 * sqrt(0.95 * 0.05 / trials)
