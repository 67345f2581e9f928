"""Compiled layers: one compilation serves all lengths, all layers, all trainings of a process, and no validation."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from skillmix.experiment.train_step import LoraSettings
from skillmix.training.job_run import with_adapter
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe
from tests.training.tiny import random_step, tiny_model


def adapted() -> Any:
    return with_adapter(tiny_model(), LoraSettings(rank=4, alpha=8), seed=0)


@pytest.mark.filterwarnings("default")  # of the compiler
@pytest.mark.parametrize("build", [tiny_model, adapted])
def test_layers_are_compiled_once(build: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    recipe = TrainingRecipe(precision="fp32", compile="on", token_budget=1000, learning_rate=1e-30)
    before = counters["stats"]["unique_graphs"]
    for training in range(2):
        engine = Engine(build(), recipe)
        plain = Engine(build(), recipe.model_copy(update={"compile": "off"}))
        for number in range(2):
            examples = random_step(number, conversations=3 + number, longest=50 + 40 * number + training)
            found, expected = engine.step(number, examples), plain.step(number, examples)
            assert (found.answers, found.norm) == pytest.approx((expected.answers, expected.norm), rel=1e-5)
        engine.validate(random_step(5))

    assert counters["stats"]["unique_graphs"] - before == 1
