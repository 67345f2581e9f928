"""The precisions that a model can be trained in, one record each.

A new precision is a row of `PRECISIONS`. It needs an update function in `training/step/precision.py` only if it stores
updated weights in a new way.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

FloatType = Literal["float32", "bfloat16"]
"""Number formats, by their names in torch."""
_BYTES: Final[dict[FloatType, int]] = {"float32": 4, "bfloat16": 2}

WeightStorage = Literal["exact", "halves", "stochastic"]
"""How an updated weight, a float32 while it is computed, is stored.

exact: as it is. halves: the upper 16 bits in the model, the lower 16 bits beside it. stochastic: rounded at random, up
or down, so that the average is right.
"""


@dataclass(frozen=True, slots=True)
class Precision:
    """How trained weights and the optimiser's state are stored."""

    name: str
    weights: FloatType
    """Format of the weights that the model computes with; frozen weights have it as well."""
    state: FloatType
    """Format of both moments and of the sum of gradients."""
    storage: WeightStorage
    auto_device: Literal["cpu", "cuda"]
    """The device on which `precision: auto` may choose this precision; rows that come first are preferred."""

    @property
    def weight_bytes(self) -> int:
        """Memory for a frozen weight."""
        return _BYTES[self.weights]

    @property
    def checkpoint_bytes(self) -> int:
        """Disk space for a trained weight in a checkpoint: the weight, its lower half, both moments."""
        return self.weight_bytes + 2 * (self.storage == "halves") + 2 * _BYTES[self.state]

    @property
    def training_bytes(self) -> int:
        """Memory for a trained weight: what a checkpoint holds, and the sum of gradients."""
        return self.checkpoint_bytes + _BYTES[self.state]


def _by_name(precisions: Iterable[Precision]) -> dict[str, Precision]:
    return {precision.name: precision for precision in precisions}


PRECISIONS: Final = _by_name(
    (
        Precision("fp32", weights="float32", state="float32", storage="exact", auto_device="cpu"),
        Precision("bf16-master", weights="bfloat16", state="float32", storage="halves", auto_device="cuda"),
        Precision("bf16-stochastic", weights="bfloat16", state="bfloat16", storage="stochastic", auto_device="cuda"),
    )
)
AUTO: Final = "auto"
"""Leaves the choice of the precision to the device and its memory."""


def weights_format(name: str) -> FloatType | None:
    """The format of a model's weights in the precision of a train step; None for `auto`.

    >>> weights_format("bf16-master"), weights_format("auto")
    ('bfloat16', None)
    """
    return None if name == AUTO else PRECISIONS[name].weights
