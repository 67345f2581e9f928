"""Estimates of GPU hours for local models, for `--dry-run`."""

import re
from pathlib import Path
from typing import Final, NamedTuple

from skillmix.experiment.train_step import DEFAULT_STEPS, TrainStep
from skillmix.models.checkpoints import base_and_adapters, parameters_in
from skillmix.models.shapes import shape_of
from skillmix.models.specs import ModelSpec, parse_spec, provider_of

PEAK: Final = 989e12
"""Dense bfloat16 operations per second of one H200."""


class Shares(NamedTuple):
    """Measured shares of the peak of one H200 (bench/README.md), below a billion weights and above."""

    small: float
    large: float

    def of(self, weights: float) -> float:
        """The share that a model of this size reaches."""
        return self.small if weights < _LARGE else self.large


_LARGE: Final = 1e9
TRAINING: Final = Shares(small=0.20, large=0.55)
GENERATION: Final = Shares(small=0.06, large=0.37)
NOTE: Final = (
    f"GPU hours are for one H200, from measured speeds: training reaches {TRAINING.large:.0%} of the peak "
    f"({TRAINING.small:.0%} below a billion weights), generation {GENERATION.large:.0%} ({GENERATION.small:.0%}). "
    "Training tokens are an upper bound: every conversation has the maximum length."
)
_SIZE: Final = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)(b|m)(?![a-z0-9])", re.IGNORECASE)


def training_tokens(step: TrainStep, *, conversations: int | None) -> int | None:
    """Maximum number of tokens that a train step reads; None if it depends on an unknown number of conversations."""
    if step.epochs is not None and conversations is None:
        return None
    seen = (step.steps or DEFAULT_STEPS) * step.batch if step.epochs is None else step.epochs * (conversations or 0)
    replayed = step.replay.ratio * (step.replay.max_tokens or step.max_tokens) if step.replay else 0.0
    return round(seen * (step.max_tokens + replayed))


def training_hours(step: TrainStep, model: str, tokens: int | None) -> float | None:
    """GPU hours of a train step; an adapter saves the gradients of the weights."""
    return _hours(model, tokens, operations=4 if step.lora else 6, shares=TRAINING)


def generation_hours(model: str, tokens: int) -> float | None:
    """GPU hours of generation by a local model; 0 for a model elsewhere."""
    if not provider_of(model).has_checkpoint:
        return 0.0
    return _hours(model, tokens, operations=2, shares=GENERATION)


def parameters_of(model: str) -> float | None:
    """Number of weights of a model, from its files or else from its name; None if not known."""
    spec = parse_spec(model)
    shape = shape_of(spec)
    if shape is not None:
        return shape.weights
    folder = _folder(spec)
    if folder is not None and (parameters := parameters_in(folder)):
        return parameters
    sizes = _SIZE.findall(base_and_adapters(spec)[0].rsplit("/", 1)[-1])
    return float(sizes[0][0]) * {"b": 1e9, "m": 1e6}[sizes[0][1].lower()] if sizes else None


def _hours(model: str, tokens: int | None, *, operations: int, shares: Shares) -> float | None:
    weights = parameters_of(model)
    if weights is None or tokens is None:
        return None
    return operations * weights * tokens / (shares.of(weights) * PEAK) / 3600


def _folder(spec: ModelSpec) -> Path | None:
    path = Path(base_and_adapters(spec)[0]).expanduser()
    return path if spec.provider == "local" and path.is_dir() else None
