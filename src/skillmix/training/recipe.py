"""How to train: the numbers of a run, and the learning rate they give each step."""

import math
from dataclasses import dataclass
from typing import Literal

from skillmix.experiment.precisions import AUTO


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """The settings of a training run; the defaults are the paper's (arXiv 2409.19808)."""

    steps: int = 4000
    batch: int = 64
    """Conversations of one optimiser step, whatever the packing."""
    learning_rate: float = 2e-5
    warmup_steps: int = 64
    schedule: Literal["constant", "cosine"] = "constant"
    clip: float | None = None
    """Largest norm of the whole gradient."""
    optimizer: Literal["adam", "sgd"] = "adam"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    gamma: float = 1.0
    """Weight of the mean over replay tokens; that over answer tokens weighs 1."""
    token_budget: int | None = None
    """Most tokens of one micro-batch; without it, what the memory allows."""
    precision: str = AUTO
    recompute: Literal["auto", "on", "off"] = "auto"
    """Whether activations are computed again in the backward pass instead of kept."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether layers are compiled; `auto` does so on a GPU."""
    checkpoint_every: int = 500
    patience: int | None = None
    """Evaluations without a better validation loss before training stops."""
    validate_every: int | None = None
    """Steps between evaluations; without it, one epoch."""
    reshard: bool = True
    """With several GPUs: whether weights are gathered again for the backward pass instead of kept."""
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0: a linear rise whose first step already moves, then the schedule.

        >>> recipe = TrainingRecipe(learning_rate=1.0, warmup_steps=4, steps=12, schedule="cosine")
        >>> [round(recipe.rate_at(step), 3) for step in (0, 1, 3, 4, 8, 11)]
        [0.25, 0.5, 1.0, 1.0, 0.5, 0.038]
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        part = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, part)))
