"""Train steps of an experiment file."""

from typing import Any

import pytest

from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of
from skillmix.experiment.train_step import TrainStep


def step(**settings: object) -> TrainStep:
    document: dict[str, Any] = {
        "name": "run",
        "students": {"base": {"model": "local:somewhere"}},
        "steps": [{"name": "m", "stage": "train", "base": "base", "data": ["./mine.jsonl"], **settings}],
    }
    found = experiment_of(document, source="test").steps[0]
    assert isinstance(found, TrainStep)
    return found


def test_the_defaults_are_the_papers_recipe() -> None:
    found = step()

    assert (found.steps, found.batch, found.max_tokens, found.warmup_steps) == (None, 64, 1024, 64)
    assert (found.learning_rate, found.schedule, found.optimizer, found.weight_decay) == (2e-5, "constant", "adam", 0)
    assert found.lora is None and found.replay is None and found.clip is None


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"steps": 10, "epochs": 2}, "steps and epochs both set"),
        ({"format": "vicuna"}, "format"),
        ({"replay": {"ratio": 1}}, "sources"),
        ({"lora": {"rank": 0}}, "rank"),
        ({"data": []}, "data"),
        ({"data": ["d1"]}, "there is no earlier dataset step 'd1'"),
        ({"base": "step:m0"}, "there is no earlier train step 'm0'"),
        ({"learningrate": 1e-4}, "learningrate"),
    ],
)
def test_faults_are_found_before_anything_runs(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        step(**settings)


def test_the_recipe_leaves_out_what_is_trained_and_on_which_data() -> None:
    recipe = step(seed=3, batch=8).recipe()

    assert not recipe.keys() & {"name", "stage", "base", "data", "seed"}
    assert (recipe["batch"], recipe["steps"], recipe["epochs"]) == (8, None, None)


def test_settings_of_speed_and_memory_do_not_change_the_model() -> None:
    slow = step(token_budget=64, recompute="on", compile="off", checkpoint_every=1, reshard=False, precision="fp32")

    assert slow.decisive() == step().decisive()
    assert slow.recipe() != step().recipe()
