"""The arithmetic of the time left: measurements only, and no more certainty than they give."""

from dataclasses import replace

import pytest

from skillmix.runs.progress import RunProgress, Work

CALLS = Work("eval", "calls", total=100, done=20, pace=0.5)
TRAINING = Work("tune", "training", total=50)
REPORT = Work("report", "report", total=1)


def left(*works: Work) -> str:
    return RunProgress(works).estimate()[1]


def share(*works: Work) -> float:
    return RunProgress(works).estimate()[0]


def test_nothing_is_claimed_before_a_measurement() -> None:
    assert left(replace(CALLS, pace=None), TRAINING, REPORT) == ""


def test_found_units_are_done_but_say_nothing_about_the_pace() -> None:
    assert left(replace(CALLS, done=90)) == "about 5 s left"


def test_steps_without_a_measurement_are_counted_not_named() -> None:
    many = [replace(TRAINING, name=f"tune-{number}") for number in range(60)]

    assert left(CALLS, TRAINING) == "about 40 s left, 1 step not measured yet"
    assert left(CALLS, *many) == "about 40 s left, 60 steps not measured yet"


def test_a_step_that_has_not_begun_is_judged_by_a_finished_one_of_its_kind() -> None:
    first = replace(CALLS, is_over=True)
    later = Work("again", "calls", total=10)
    elsewhere = Work("paid", "calls of another model", total=10)

    assert left(first, later) == "about 5 s left"
    assert left(first, later, elsewhere) == "about 5 s left, 1 step not measured yet"


def test_its_own_pace_replaces_that_of_its_kind() -> None:
    slow = Work("again", "calls", total=10, done=4, pace=2.0)

    assert left(replace(CALLS, is_over=True), slow) == "about 12 s left"


def test_an_unknown_total_is_not_zero() -> None:
    open_ended = replace(CALLS, name="data", total=None)

    assert left(open_ended) == ""
    assert left(CALLS, open_ended) == "about 40 s left, 1 step not measured yet"


def test_a_pace_is_known_once_a_tenth_of_a_step_or_ten_seconds_were_seen() -> None:
    paces = []
    for units, seconds in ((3, 9.0), (3, 12.0), (10, 8.0), (1, 30.0)):
        work = Work("eval", "calls", total=96)
        work.measure(100.0, 1)
        work.measure(100.0 + seconds, 1 + units)
        paces.append(work.pace)

    assert paces == [None, 4.0, 0.8, None]


def test_a_finished_run_has_no_time_left() -> None:
    assert left(replace(CALLS, is_over=True)) == ""
    assert left(replace(CALLS, done=100)) == ""


def test_the_share_goes_from_nothing_to_all_and_weighs_by_time_once_that_is_known() -> None:
    start = replace(CALLS, done=0, pace=None), TRAINING
    half = replace(CALLS, is_over=True), TRAINING
    measured = replace(CALLS, is_over=True), replace(TRAINING, done=25, pace=2.0)

    assert share() == 0.0
    assert share(*start) == 0.0
    assert share(*half) == pytest.approx(100 / 150)
    assert share(*measured) == pytest.approx((100 * 0.5 + 25 * 2.0) / (100 * 0.5 + 50 * 2.0))
    assert share(*(replace(work, is_over=True) for work in measured)) == 1.0


def test_more_done_than_planned_is_never_more_than_all() -> None:
    assert share(replace(CALLS, done=130)) == 1.0
