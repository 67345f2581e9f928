"""How an optimiser step writes back weights, moments and sums of gradients, without losing small updates.

`UPDATES` has one function for each way of storing weights; `experiment/train_step.py` lists the precisions that use
them. Stochastic rounding takes its noise from a hash of a key, a tick and the element's index, so the noise is the same
in every process and after every restart.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from skillmix.experiment.train_step import FloatType, WeightStorage

DTYPES: Final[dict[FloatType, torch.dtype]] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_HIGH: Final = -(1 << 16)
"""Mask of the bits that bfloat16 keeps."""
_SECOND, _WEIGHT, _SUM = 1, 2, 3
"""Streams of noise. Each is added to the key of a parameter, a multiple of 8."""

NewValues = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""Weight, first moment and second moment after a step."""
Rule = Callable[..., NewValues]
"""Adam or SGD: computes the new values from weight, first and second moment, gradient and the numbers of the step."""


def noise(key: torch.Tensor, tick: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """32 uniform random bits for every index; all arguments are int32."""
    return _mixed(index ^ _mixed(key ^ _mixed(tick)))


def rounded(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Round float32 to bfloat16 stochastically, by the lower 16 bits of the noise."""
    raised = (values.view(torch.int32) + (bits & 0xFFFF)) & _HIGH
    return raised.view(torch.float32).to(torch.bfloat16)


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """A bijection of 32 bits in which every input bit changes every output bit about half of the time."""
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * 0x7FEB352D
    bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * -0x7B935975
    return bits ^ ((bits >> 16) & 0xFFFF)


def high_part(values: torch.Tensor) -> torch.Tensor:
    """The nearest bfloat16 of each float32; ties go away from zero."""
    return ((values.view(torch.int32) + 0x8000) & _HIGH).view(torch.float32).to(torch.bfloat16)


def low_part(values: torch.Tensor) -> torch.Tensor:
    """The 16 bits of each float32 that `high_part` drops."""
    return values.view(torch.int32).to(torch.int16)


def joined(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """The float32 that `high_part` and `low_part` were taken from."""
    return (high.float().view(torch.int32) + low.to(torch.int32)).view(torch.float32)


def split_weights(named: Iterable[tuple[str, Any]]) -> dict[str, torch.Tensor]:
    """Replace each parameter by its upper half, a bfloat16, and return the lower halves by name."""
    low_halves = {}
    for name, parameter in named:
        exact = parameter.data.float()
        low_halves[name], parameter.data = low_part(exact), high_part(exact)
    return low_halves


def _update_exact(
    rule: Rule, weight: Any, low: None, first: Any, second: Any, total: Any, numbers: Any, *_: Any
) -> None:
    is_finite = numbers[0] > 0
    new = rule(weight, first, second, total, numbers)
    for old, value in zip((weight, first, second), new, strict=True):
        if value is not None:
            old.copy_(torch.where(is_finite, value, old))


def _update_halves(
    rule: Rule, weight: Any, low: Any, first: Any, second: Any, total: Any, numbers: Any, *_: Any
) -> None:
    is_finite = numbers[0] > 0
    whole = joined(weight, low)
    new, *moments = rule(whole, first, second, total, numbers)
    new = torch.where(is_finite, new, whole)
    weight.copy_(high_part(new))
    low.copy_(low_part(new))
    for old, value in zip((first, second), moments, strict=True):
        if value is not None:
            old.copy_(torch.where(is_finite, value, old))


def _update_stochastic(
    rule: Rule,
    weight: Any,
    low: None,
    first: Any,
    second: Any,
    total: Any,
    numbers: Any,
    key: Any,
    tick: Any,
    start: Any,
) -> None:
    is_finite = numbers[0] > 0
    exact = (None if tensor is None else tensor.float() for tensor in (weight, first, second, total))
    new = rule(*exact, numbers)
    index = torch.arange(len(weight), dtype=torch.int32, device=weight.device) + start
    bits = noise(key + _WEIGHT, tick, index)
    sources = bits, bits >> 16, noise(key + _SECOND, tick, index)
    for old, value, source in zip((weight, first, second), new, sources, strict=True):
        if value is not None:
            old.copy_(torch.where(is_finite, rounded(value, source), old))


def add_rounded(total: Any, gradient: Any, key: Any, tick: Any, start: Any) -> None:
    """Add a gradient to a bfloat16 sum with stochastic rounding."""
    index = torch.arange(len(total), dtype=torch.int32, device=total.device) + start
    total.copy_(rounded(total.float() + gradient.float(), noise(key + _SUM, tick, index)))


UPDATES: Final[dict[WeightStorage, Callable[..., None]]] = {
    "exact": _update_exact,
    "halves": _update_halves,
    "stochastic": _update_stochastic,
}
"""Functions that apply a rule and write back its values, in place; values that are not finite are not written."""
