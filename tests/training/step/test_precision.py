"""Which precision `auto` chooses, and that every precision trains."""

import pytest
import torch

from skillmix.errors import UserError
from skillmix.experiment.train_step import PRECISIONS
from skillmix.training.step.engine import Engine, choose_precision
from skillmix.training.step.optimizer import DTYPES, UPDATES, TrainingRecipe
from tests.training.tiny import random_step, tiny_model


def test_every_precision_has_an_update_function_and_known_formats() -> None:
    assert {precision.storage for precision in PRECISIONS.values()} == UPDATES.keys()
    assert {precision.state for precision in PRECISIONS.values()} <= DTYPES.keys()


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_few_steps_lower_the_loss_in_every_precision(no_amx: None, name: str) -> None:
    model = tiny_model()
    engine = Engine(model, TrainingRecipe(precision=name, learning_rate=1e-2, warmup_steps=0, steps=6))
    data = random_step(4)

    losses = [engine.step(step, data).answers for step in range(6)]

    assert losses[-1] < losses[0]
    assert {p.dtype for p in model.parameters()} == {DTYPES[PRECISIONS[name].weights]}


def test_float32_on_a_gpu_is_refused_before_training_starts() -> None:
    with pytest.raises(UserError, match="precision: fp32 cannot be used on a GPU"):
        choose_precision(tiny_model(), TrainingRecipe(precision="fp32"), torch.device("cuda"))


@pytest.mark.parametrize(
    ("ranks", "memory", "chosen"), [(1, 21, "bf16-master"), (1, 19, "bf16-stochastic"), (2, 11, "bf16-master")]
)
def test_on_a_gpu_auto_takes_masters_if_a_fifth_of_the_memory_stays_free(
    monkeypatch: pytest.MonkeyPatch, ranks: int, memory: int, chosen: str
) -> None:
    """`memory` is in bytes for each weight: masters take 16, which is 0.8 of 20."""
    model = tiny_model()
    weights = sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (0, memory * weights))

    precision = choose_precision(model, TrainingRecipe(), torch.device("cuda"), ranks=ranks)

    assert precision.name == chosen


def test_on_a_cpu_auto_is_float32() -> None:
    assert choose_precision(tiny_model(), TrainingRecipe(), torch.device("cpu")).name == "fp32"
