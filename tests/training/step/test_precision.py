"""Which precision `auto` chooses, and that every precision can be trained in."""

import pytest
import torch

from skillmix.experiment.precisions import PRECISIONS
from skillmix.training.recipe import TrainingRecipe
from skillmix.training.step.engine import choose_precision
from skillmix.training.step.precision import DTYPES, UPDATES
from tests.training.tiny import tiny_model


def test_every_precision_has_an_update_function_and_known_formats() -> None:
    assert {precision.storage for precision in PRECISIONS.values()} == UPDATES.keys()
    assert {precision.state for precision in PRECISIONS.values()} <= DTYPES.keys()


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
