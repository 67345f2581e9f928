"""The parts of a step's wall time."""

import random

import pytest

from skillmix.runs.seconds.step_clock import PARTS, Part, StepClock


class FakeTime:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fake() -> FakeTime:
    return FakeTime()


def test_a_step_reads_unless_something_else_goes_on(fake: FakeTime) -> None:
    clock = StepClock(fake)
    fake.now += 2
    with clock.measuring("saving"):
        fake.now += 3
    fake.now += 1

    assert clock.seconds() == {"saving": 3.0, "reading": 3.0}


def test_writing_counts_before_grading_and_grading_before_waiting(fake: FakeTime) -> None:
    clock = StepClock(fake)
    clock.begin("waiting")
    clock.begin("grading")
    fake.now += 1
    clock.begin("writing")
    clock.begin("writing")
    fake.now += 10
    clock.end("writing")
    fake.now += 100
    clock.end("grading")
    clock.end("writing")
    fake.now += 1000

    assert clock.seconds() == {"writing": 110.0, "grading": 1.0, "waiting": 1000.0}


def test_the_parts_add_up_to_the_wall_time_whatever_goes_on(fake: FakeTime) -> None:
    numbers = random.Random(0)
    clock, started = StepClock(fake), fake.now
    going_on: list[Part] = []
    for _ in range(2000):
        fake.now += numbers.random()
        if going_on and numbers.random() < 0.5:
            clock.end(going_on.pop(numbers.randrange(len(going_on))))
        else:
            going_on.append(numbers.choice(PARTS))
            clock.begin(going_on[-1])
        if numbers.random() < 0.1:
            clock.move(numbers.random(), numbers.choice(PARTS), numbers.choice(PARTS))

        assert sum(clock.seconds().values()) == pytest.approx(fake.now - started)
    assert min(clock.seconds().values()) >= 0


def test_moved_seconds_are_never_more_than_the_part_has(fake: FakeTime) -> None:
    clock = StepClock(fake)
    with clock.measuring("writing"):
        fake.now += 5
        clock.move(2, "writing", "loading")
        clock.move(9, "writing", "compiling")
        fake.now += 1

    assert clock.seconds() == {"writing": 1.0, "compiling": 3.0, "loading": 2.0}


def test_a_time_before_the_last_change_takes_nothing_away(fake: FakeTime) -> None:
    clock = StepClock(fake)
    clock.begin("writing", 103.0)
    clock.end("writing", 101.0)
    fake.now = 104.0

    assert clock.seconds() == {"reading": 4.0}
