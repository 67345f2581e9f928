"""Data prepared ahead: the same steps in the same order, errors where they belong, and no thread left behind."""

import threading
from collections.abc import Sequence

import pytest

from skillmix.errors import UserError
from skillmix.training.data.examples import Example
from skillmix.training.loop import UpcomingSteps
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe
from tests.training.tiny import Steps, random_step, tiny_model

RECIPE = TrainingRecipe(learning_rate=1e-2, warmup_steps=0, precision="fp32", token_budget=100)
STEPS = [random_step(number) for number in range(5)]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("next-step")]


def losses(*, is_ahead: bool, first: int = 0) -> list[float]:
    engine = Engine(tiny_model(), RECIPE)
    found, is_prepared = [], []
    with UpcomingSteps(Steps(STEPS), engine, steps=5, is_ahead=is_ahead) as upcoming:
        for number in range(first, 5):
            examples, prepared = upcoming.take(number)
            assert examples == STEPS[number]
            assert is_ahead or prepared is None
            is_prepared.append(prepared is not None)
            found.append(engine.step(number, examples, prepared).answers)
    assert any(is_prepared[2:]) == is_ahead  # the second may be packed before the first has decided how
    return found


@pytest.mark.parametrize("first", [0, 2])
def test_steps_prepared_ahead_have_the_same_losses(first: int) -> None:
    assert losses(is_ahead=True, first=first) == losses(is_ahead=False, first=first)
    assert threads() == []


def test_a_step_prepared_for_another_budget_is_prepared_again() -> None:
    engine, smaller = Engine(tiny_model(), RECIPE), Engine(tiny_model(), RECIPE)
    prepared = engine.prepare(STEPS[0])
    engine.budget = smaller.budget = 60

    assert engine.step(0, STEPS[0], prepared) == smaller.step(0, STEPS[0])


def test_an_error_in_the_data_is_raised_by_its_own_step() -> None:
    class Broken(Steps):
        def step(self, number: int) -> Sequence[Example]:
            if number == 2:
                raise UserError("unreadable")
            return super().step(number)

    taken = []
    with (
        pytest.raises(UserError, match="unreadable"),
        UpcomingSteps(Broken(STEPS), Engine(tiny_model(), RECIPE), steps=5, is_ahead=True) as upcoming,
    ):
        for number in range(5):
            upcoming.take(number)
            taken.append(number)

    assert taken == [0, 1]
    assert threads() == []


def test_nothing_is_prepared_beyond_the_last_step() -> None:
    asked = []

    class Counted(Steps):
        def step(self, number: int) -> Sequence[Example]:
            asked.append(number)
            return super().step(number)

    with UpcomingSteps(Counted(STEPS), Engine(tiny_model(), RECIPE), steps=3, is_ahead=True) as upcoming:
        for number in range(3):
            upcoming.take(number)

    assert asked == [0, 1, 2]
