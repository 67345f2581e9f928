"""Compiled layers: one compilation serves all lengths, all layers, all trainings of a process, and no validation."""

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from skillmix.training.recipe import TrainingRecipe
from skillmix.training.step.engine import Engine
from tests.training.tiny import random_step, tiny_model


@pytest.mark.filterwarnings("default")  # of the compiler
def test_layers_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    recipe = TrainingRecipe(precision="fp32", compile="on", token_budget=1000, learning_rate=1e-30)
    before = counters["stats"]["unique_graphs"]
    for training in range(2):
        engine = Engine(tiny_model(), recipe)
        plain = Engine(tiny_model(), recipe.model_copy(update={"compile": "off"}))
        for number in range(2):
            examples = random_step(number, conversations=3 + number, longest=50 + 40 * number + training)
            assert engine.step(number, examples).answers == pytest.approx(plain.step(number, examples).answers)
        engine.validate(random_step(5))

    assert counters["stats"]["unique_graphs"] - before == 1
