"""The parts of a step that are compiled on a GPU are compiled once, whatever the sizes of later steps."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from skillmix.training.loop import train
from skillmix.training.step import optimizer as optimizer_module
from skillmix.training.step import packed_model as loss_module
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe
from skillmix.training.step.packed_model import compile_layers, linear_cross_entropy
from tests.training.tiny import VOCABULARY, Steps, random_step, tiny_model

RECIPE = TrainingRecipe(learning_rate=1e-2, warmup_steps=0, precision="fp32", token_budget=500, steps=2)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> CompileCounter:
    """Counts compilations, and compiles nothing."""
    counter, compiler = CompileCounter(), torch.compile
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiler(function, backend=counter, **options))
    return counter


def test_a_loss_in_several_chunks_is_compiled_once(counter: CompileCounter, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = loss_module._chunk_function.__wrapped__(True)
    monkeypatch.setattr(loss_module, "_chunk_function", lambda is_compiled: compiled)
    monkeypatch.setattr(loss_module, "_LOGITS_ON_CPU", 8 * VOCABULARY)
    rows = torch.randn(50, 16)
    weight, targets = torch.randn(VOCABULARY, 16), torch.arange(50)

    for count in (5, 7, 8, 20, 43):
        linear_cross_entropy(rows[:count], weight, targets[:count], torch.ones(count))

    assert counter.frame_count == 1


def test_the_updates_of_matrices_and_vectors_are_compiled_once(
    counter: CompileCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions: Callable[..., Any] = optimizer_module._functions.__wrapped__
    monkeypatch.setattr(optimizer_module, "_functions", lambda is_compiled, *rest: functions(True, *rest))
    engine = Engine(tiny_model(), RECIPE)

    for number in range(2):
        engine.step(number, random_step(number))

    assert {trained.parameter.ndim for trained in engine.optimizer.parameters} == {1, 2}
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_trained_model_leaves_memory_as_soon_as_it_is_dropped(counter: CompileCounter, tmp_path: Path) -> None:
    model = tiny_model()
    weight = weakref.ref(model.model.layers[0].mlp.up_proj.weight)
    recipe = RECIPE.model_copy(update={"compile": "on"})
    given = Steps([random_step(0)])
    gc.disable()
    try:
        train(model, given, recipe, tmp_path)
        del model
        assert counter.frame_count > 0
        assert weight() is None
    finally:
        gc.enable()


def test_released_layers_run_as_they_did_before_they_were_compiled(counter: CompileCounter) -> None:
    engine = Engine(tiny_model(), RECIPE)
    compile_layers(engine.packed.layers, is_lean=False)

    engine.close()

    assert not any("forward" in vars(layer) for layer in engine.packed.layers)
