"""The arithmetic of the time left: measurements only, and no more certainty than they give."""

from dataclasses import replace

from skillmix.runs.progress.time_left import TimeLeft, Work, share_done, time_left

CALLS = Work("eval", "calls", total=100, done=20, timed=10, seconds=5.0)
TRAINING = Work("tune", "training", total=50, weight=8.0)
REPORT = Work("report", "report", total=1)


def test_nothing_is_claimed_before_a_measurement() -> None:
    assert time_left([replace(CALLS, timed=0, seconds=0.0), TRAINING, REPORT]) is None
    assert time_left([replace(CALLS, timed=1, seconds=0.5)]) is None


def test_found_units_are_done_but_say_nothing_about_the_pace() -> None:
    found = replace(CALLS, done=90, timed=10, seconds=5.0)

    assert time_left([found]) == TimeLeft(5.0)


def test_a_step_without_a_measurement_is_named() -> None:
    assert time_left([CALLS, TRAINING]) == TimeLeft(40.0, ("tune",))


def test_a_step_that_has_not_begun_is_judged_by_a_finished_one_of_its_kind() -> None:
    first = replace(CALLS, is_over=True)
    later = Work("again", "calls", total=10)
    elsewhere = Work("paid", "calls of another model", total=10)

    assert time_left([first, later]) == TimeLeft(5.0)
    assert time_left([first, later, elsewhere]) == TimeLeft(5.0, ("paid",))


def test_its_own_pace_replaces_that_of_its_kind() -> None:
    slow = Work("again", "calls", total=10, done=4, timed=4, seconds=8.0)

    assert time_left([replace(CALLS, is_over=True), slow]) == TimeLeft(12.0)


def test_an_unknown_total_is_not_zero() -> None:
    open_ended = replace(CALLS, name="data", total=None)

    assert time_left([open_ended]) is None
    assert time_left([CALLS, open_ended]) == TimeLeft(40.0, ("data",))


def test_a_time_is_said_only_once_a_tenth_of_a_step_or_ten_seconds_were_seen() -> None:
    begun = replace(CALLS, total=96, done=3, timed=3, seconds=9.0)

    assert time_left([begun]) is None
    assert time_left([replace(begun, seconds=12.0)]) == TimeLeft(93 * 4.0)
    assert time_left([replace(begun, done=10, timed=10)]) == TimeLeft(86 * 0.9)


def test_a_finished_run_has_no_time_left() -> None:
    assert time_left([replace(CALLS, is_over=True)]) is None
    assert time_left([replace(CALLS, done=100)]) is None


def test_the_share_goes_from_nothing_to_all_and_weighs_by_time_once_that_is_known() -> None:
    start = [replace(CALLS, done=0, timed=0, seconds=0.0), TRAINING]
    half = [replace(CALLS, is_over=True), TRAINING]
    measured = [replace(CALLS, is_over=True), replace(TRAINING, done=25, timed=25, seconds=50.0)]
    over = [replace(work, is_over=True) for work in measured]

    assert share_done([]) == 0.0
    assert share_done(start) == 0.0
    assert share_done(half) == 100 / (100 + 8 * 50)
    assert share_done(measured) == (100 * 0.5 + 25 * 2.0) / (100 * 0.5 + 50 * 2.0)
    assert share_done(over) == 1.0


def test_more_done_than_planned_is_never_more_than_all() -> None:
    assert share_done([replace(CALLS, done=130)]) == 1.0
