"""GPU hours before anything runs."""

import pytest

from skillmix.experiment.costs import generation_hours, parameters_of, training_hours, training_tokens
from skillmix.experiment.train_step import TrainStep

STEP = {"name": "m", "stage": "train", "base": "base", "data": ["d"]}


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("local:models/Llama-2-13b-chat-hf", 13e9),
        ("local:models/Mistral-7B-Instruct-v0.2", 7e9),
        ("bundled:smollm2-135m", 135e6),
        ("local:somewhere/mine", None),
    ],
)
def test_a_models_size_is_read_from_its_name_if_it_is_not_here(model: str, weights: float | None) -> None:
    assert parameters_of(model) == weights


def test_the_papers_recipe_takes_half_a_day_on_one_gpu() -> None:
    step = TrainStep.model_validate(STEP)

    tokens = training_tokens(step, conversations=None)

    assert tokens == 4000 * 64 * 1024
    assert training_hours(step, "local:x/Llama-2-13b", tokens) == pytest.approx(10.4, abs=0.1)


def test_epochs_need_to_know_how_many_conversations_there_are() -> None:
    step = TrainStep.model_validate(
        {**STEP, "epochs": 2, "replay": {"sources": ["x"], "ratio": 0.5, "max_tokens": 512}}
    )

    assert training_tokens(step, conversations=None) is None
    assert training_tokens(step, conversations=100) == 200 * (1024 + 256)
    assert training_hours(step, "local:x/mine-7b", None) is None


def test_models_elsewhere_take_no_gpu_of_ours() -> None:
    assert generation_hours("openai:gpt-4o", 10**9) == 0.0
    assert generation_hours("local:x/mine-7b", 10**6) == pytest.approx(0.0106, abs=1e-4)
