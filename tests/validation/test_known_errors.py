"""A calibration recovers the known error rates of a scripted grader."""

import os
from pathlib import Path

import pytest

import skillmix
from skillmix.scores.statistics.against_truth import Measure
from skillmix.validation.calibration import Calibration
from tests.validation.made_sets import SKILLS, entries, entry, write_set

SEEDS, LEAST_HELD = (40, 220) if os.environ.get("SKILLMIX_LONG") else (5, 26)
"""With 95% intervals, fewer than this number contain the truth with a probability of at most 2%."""
MISS, INVENT = 0.2, 0.1
GRADER = f"scripted:grader?miss={MISS}&invent={INVENT}"


def holds(measure: Measure, truth: float) -> bool:
    assert measure.low is not None and measure.high is not None
    return measure.low <= truth <= measure.high


def rates(calibration: Calibration) -> dict[str, tuple[Measure, Measure]]:
    return {row.criterion: (row.sensitivity, row.specificity) for row in calibration.card.by_kind}


def test_the_intervals_of_one_round_hold_the_known_rates(in_folder: Path) -> None:
    file = write_set(in_folder / "mine.yaml", entries(400))

    held = []
    for seed in range(SEEDS):
        found = rates(skillmix.calibrate(GRADER, set=file, rounds=1, seed=seed, run=f"seed-{seed}"))
        for criterion in ("skill", "topic", "sense"):
            sensitivity, specificity = found[criterion]
            held += [holds(sensitivity, 1 - MISS), holds(specificity, 1 - INVENT)]

    assert len(held) == 6 * SEEDS
    assert sum(held) >= LEAST_HELD


def test_the_majority_of_three_rounds_errs_less_by_as_much_as_it_should(in_folder: Path) -> None:
    file = write_set(in_folder / "mine.yaml", entries(400))

    sensitivity, specificity = rates(skillmix.calibrate(GRADER, set=file, rounds=3))["skill"]

    assert holds(sensitivity, 1 - majority_error(MISS))
    assert holds(specificity, 1 - majority_error(INVENT))
    assert not holds(sensitivity, 1 - MISS)


def majority_error(rate: float) -> float:
    """Return the probability that two or three of three rounds err."""
    return 3 * rate**2 - 2 * rate**3


def test_a_grader_without_errors_agrees_with_every_label(in_folder: Path) -> None:
    made = skillmix.calibrate("scripted:grader", set=write_set(in_folder / "mine.yaml", entries(208)))

    assert {row.criterion: row.agreement.value for row in made.card.by_kind} == {
        **dict.fromkeys(("skill", "topic", "sense", "full marks"), 1.0)
    }
    assert {row.agreement.value for row in made.card.by_skill} == {1.0}
    assert len(made.card.by_skill) == SKILLS
    assert made.wrong == []
    assert made.is_complete


def test_a_wrong_point_is_listed_with_its_text_and_its_label(in_folder: Path) -> None:
    texts = [entry(0, why="the author's reason"), entry(1, shows=False)]

    made = skillmix.calibrate("scripted:grader?miss=1&invent=1", set=write_set(in_folder / "mine.yaml", texts))

    wrong = {(one.known.skill, one.criterion): one for one in made.wrong}
    first, second = (str(text["skill"]) for text in texts)
    assert wrong[first, "skill"].label is True
    assert wrong[second, "skill"].label is False
    assert wrong[first, "skill"].known.why == "the author's reason"
    assert len(made.wrong) == 6


def test_disputed_texts_count_in_one_card_and_not_in_the_other(in_folder: Path) -> None:
    texts = [*(entry(number) for number in range(10)), entry(10, shows=True, disputed=True) | {"label": "near"}]

    made = skillmix.calibrate("scripted:grader", set=write_set(in_folder / "mine.yaml", texts))

    assert made.without_disputed is not None
    assert [row.agreement.value for row in (made.card.by_kind[0], made.without_disputed.by_kind[0])] == [10 / 11, 1.0]
    assert made.disputed == 1


def test_unreadable_votes_leave_points_open_and_are_in_no_rate(in_folder: Path) -> None:
    file = write_set(in_folder / "mine.yaml", entries(40))

    made = skillmix.calibrate({"model": "scripted:grader?unreadable=0.5", "attempts": 1}, set=file, rounds=1)

    left_open = made.undecided["skill"]
    assert 5 < left_open < 35
    assert made.calls.unreadable == left_open
    assert made.card.by_kind[0].units == 40 - left_open
    assert made.card.by_kind[0].agreement.value == 1.0
    assert not made.is_complete


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_known_rates_decide_each_vote_alone(in_folder: Path, rounds: int) -> None:
    file = write_set(in_folder / "mine.yaml", entries(104))

    made = skillmix.calibrate("scripted:grader?noise=1", set=file, rounds=rounds)

    assert {row.agreement.value for row in made.card.by_kind if row.criterion != "full marks"} == {0.0}


def test_decisions_without_a_label_change_no_rate(in_folder: Path) -> None:
    labelled = entries(60)
    bare = [
        {key: value for key, value in entry(100 + n, off="topic").items() if key not in ("topic", "off")}
        for n in range(60)
    ]

    alone = skillmix.calibrate(GRADER, set=write_set(in_folder / "alone.yaml", labelled), rounds=1)
    mixed = skillmix.calibrate(GRADER, set=write_set(in_folder / "mixed.yaml", [*labelled, *bare]), rounds=1)

    topic = [{row.criterion: row for row in made.card.by_kind}["topic"] for made in (alone, mixed)]
    assert topic[0] == topic[1]
    assert [row.criterion for row in mixed.card.by_kind] == ["skill", "topic", "sense"]
    assert mixed.card.by_kind[0].units == 120
