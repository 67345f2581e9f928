"""What two processes do that torchrun's launcher starts: the program of test_ranks.py.

python tests/training/two_ranks.py FOLDER

The launcher forks this process after its imports; torchrun itself would import torch three times, for 15 seconds.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from skillmix.experiment.train_step import LoraSettings
from skillmix.training.data.batches import split
from skillmix.training.data.examples import Example
from skillmix.training.job_run import with_adapter
from skillmix.training.loop import train
from skillmix.training.ranks import Ranks, joined_ranks
from skillmix.training.step import packed_model as loss
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe
from tests.training.tiny import Steps, example, random_step, tiny_model

STEPS = 8
BUDGET = 70
CLIP = 0.5
GIVEN = [random_step(number) for number in range(STEPS)]
ADAM = TrainingRecipe(
    steps=STEPS, learning_rate=1e-2, warmup_steps=3, clip=CLIP, gamma=0.5, token_budget=BUDGET, eps=1e-6
)
RECIPES = {
    "adam": ADAM,
    "sgd": ADAM.model_copy(update={"optimizer": "sgd", "learning_rate": 0.3, "weight_decay": 0.1}),
    "adapter": ADAM.model_copy(update={"optimizer": "sgd", "learning_rate": 0.03, "reshard": False, "recompute": "on"}),
}
RESUMED = ADAM.model_copy(update={"steps": 8, "checkpoint_every": 3})
INTERRUPTED_AT = 5
VALIDATION = [example(30, seed=5), example(50, seed=6), example(11, seed=7)]


class InterruptionError(Exception):
    """Planted."""


@dataclass(frozen=True)
class Interrupted(Steps):
    def step(self, number: int) -> Sequence[Example]:
        if number == INTERRUPTED_AT:
            raise InterruptionError
        return super().step(number)


def trace(name: str, ranks: Ranks) -> dict[str, Any]:
    """Losses, norms and whole updates of every step."""
    setattr(loss, "LOGITS", 97 * 5)  # noqa: B010, five rows are a chunk
    model = with_adapter(tiny_model(), LoraSettings(rank=4, alpha=40), seed=0) if name == "adapter" else tiny_model()
    engine = Engine(model, RECIPES[name], ranks)
    rows, updates = [], []
    weights = whole_weights(engine)
    for number, examples in enumerate(GIVEN):
        step = engine.step(number, examples)
        rows.append([step.answers, step.replay, step.norm])
        before, weights = weights, whole_weights(engine)
        updates.append(weights - before)
    return {"rows": torch.tensor(rows), "updates": torch.stack(updates), "validation": engine.validate(VALIDATION)}


def whole_weights(engine: Engine) -> torch.Tensor:
    found = []
    for _, parameter in engine.packed.model.named_parameters():
        data = parameter.data
        found.append((data.full_tensor() if hasattr(data, "full_tensor") else data).reshape(-1).clone())
    return torch.cat(found)


def real_micro_batches() -> list[list[int]]:
    """How many micro-batches with something in them each of two ranks has, by step."""
    found = []
    for examples in GIVEN:
        parts = split([len(e.tokens) for e in examples], budget=BUDGET, ranks=2)
        found.append([sum(bool(group) for group in groups) for groups in parts])
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = joined_ranks()
    for name in RECIPES:
        found = trace(name, ranks)
        if ranks.is_first:
            torch.save(found, folder / f"{name}.pt")
    try:
        train(
            tiny_model(), Interrupted(GIVEN), RESUMED, folder / "cut",
            validation=VALIDATION,
        )  # fmt: skip
    except InterruptionError:
        ranks.wait()
    result = train(
        tiny_model(), Steps(GIVEN), RESUMED, folder / "whole",
        validation=VALIDATION,
    )  # fmt: skip
    if ranks.is_first:
        result.model.save_pretrained(folder / "model")
    ranks.wait()


if __name__ == "__main__" and "RANK" in os.environ:  # under the command torchrun
    main(Path(sys.argv[1]))
elif __name__ == "__main__":
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="two", start_method="fork",
        rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1", max_restarts=0, monitor_interval=0.05,
    )  # fmt: skip
    elastic_launch(config, main)(Path(sys.argv[1]))
