"""Updates of 2e-5 add up in every precision but that of plain bfloat16."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from skillmix.training.data.examples import Example
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe
from tests.training.tiny import example, tiny_model, weights_of

STEPS, LAYERS = (2000, 2) if os.environ.get("SKILLMIX_LONG") else (400, 1)
RATE, BETAS = 2e-5, (0.9, 0.999)
GIVEN = [[example(24, seed=4 * batch + place) for place in range(4)] for batch in range(8)]

pytestmark = pytest.mark.usefixtures("no_amx")


@dataclass(frozen=True)
class End:
    """Where a run got to."""

    distance: float
    moments: float
    loss: float

    def within(self, share: float, expected: "End") -> list[bool]:
        """Whether each of the three is so near to what is expected."""
        pairs = ((getattr(self, name), getattr(expected, name)) for name in ("distance", "moments", "loss"))
        return [abs(found - wanted) <= share * abs(wanted) for found, wanted in pairs]


def start() -> Any:
    """All start from the same numbers, which bfloat16 can hold."""
    return tiny_model(size=16, layers=LAYERS).bfloat16().float()


@cache
def ours(precision: str) -> End:
    recipe = TrainingRecipe(learning_rate=RATE, betas=BETAS, warmup_steps=0, precision=precision)
    engine = Engine(start(), recipe)
    for number in range(STEPS):
        engine.step(number, GIVEN[number % len(GIVEN)])
    second = torch.cat(
        [trained.second.float() for trained in engine.optimizer.parameters if trained.second is not None]
    )
    return _end(engine.packed.model, second)


@cache
def plain_bf16() -> End:
    model = start().bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=BETAS)
    batches = [_padded(examples) for examples in GIVEN]
    for number in range(STEPS):
        tokens, labels = batches[number % len(batches)]
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    second = [optimizer.state[p]["exp_avg_sq"].reshape(-1).float() for p in model.parameters()]
    return _end(model, torch.cat(second))


def _padded(examples: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.stack([torch.from_numpy(e.tokens).long() for e in examples])
    is_trained = torch.stack([torch.from_numpy(e.is_trained) for e in examples])
    return tokens, tokens.masked_fill(~is_trained, -100)


def _end(model: Any, second: torch.Tensor) -> End:
    moved = float((weights_of(model) - weights_of(start())).norm())
    exact = Engine(model.float(), TrainingRecipe(precision="fp32"))
    return End(moved, float(second.sum()), exact.validate([e for examples in GIVEN for e in examples]))


@pytest.mark.parametrize("precision", ["bf16-master", "bf16-stochastic"] if STEPS > 400 else ["bf16-stochastic"])
def test_small_updates_add_up(precision: str) -> None:
    assert ours(precision).within(0.05, ours("fp32")) == [True, True, True]


def test_plain_bfloat16_loses_them() -> None:
    assert not all(plain_bf16().within(0.05, ours("fp32")))
