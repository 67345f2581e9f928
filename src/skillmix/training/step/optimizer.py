"""Weights, moments and the sum of gradients, each kept so that small updates are not lost; one pass for each update.

fp32: everything in float32. bf16-master: the model computes with bfloat16 weights, whose other 16 bits lie beside
them; moments and sums in float32. bf16-stochastic: all four in bfloat16, rounded stochastically.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import torch

from skillmix.training.ranks import local_part, start_of
from skillmix.training.recipe import TrainingRecipe
from skillmix.training.step.precision import high_part, joined, low_part, noise, rounded

BYTES: Final = {"fp32": 16, "bf16-master": 16, "bf16-stochastic": 8}
"""Memory for one trained parameter: weight, its lower half, two moments, sum of gradients."""
_FIRST, _SECOND, _WEIGHT, _SUM = range(4)
"""Streams of noise."""
_TICKS: Final = 4096
"""Ticks of a step: one for each micro-batch, the last for the update."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One trained parameter, or this rank's part of it, as flat tensors."""

    name: str
    parameter: Any
    weight: torch.Tensor
    low: torch.Tensor | None
    first: torch.Tensor | None
    second: torch.Tensor | None
    total: torch.Tensor
    """Sum of the step's gradients so far."""
    key: torch.Tensor
    start: torch.Tensor
    """Index of the first element in the whole parameter."""
    is_decayed: bool


class Optimizer:
    """Gathers gradients as the backward pass makes them, and applies them."""

    def __init__(
        self,
        named: Iterable[tuple[str, Any]],
        recipe: TrainingRecipe,
        *,
        precision: str,
        lows: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.recipe, self.precision = recipe, precision
        self.slots = [self._slot(name, parameter, lows or {}) for name, parameter in named]
        device = self.slots[0].weight.device
        self._tick = torch.zeros((), dtype=torch.int32, device=device)
        self._untouched: set[str] = set()
        """What has no gradient yet in this step."""
        self._functions = _functions(device.type == "cuda", recipe.optimizer, precision, recipe.betas, recipe.eps)
        self._hooks = [
            slot.parameter.register_post_accumulate_grad_hook(partial(self._gather, slot)) for slot in self.slots
        ]

    def begin(self, step: int, micro_batch: int) -> None:
        """From now on gradients belong to this micro-batch; the first forgets what was gathered before."""
        self._tick.fill_(step * _TICKS + micro_batch)
        if micro_batch == 0:
            self._untouched = {slot.name for slot in self.slots}

    def close(self) -> None:
        """Take no more gradients."""
        for hook in self._hooks:
            hook.remove()
        self.slots.clear()

    def squares(self) -> torch.Tensor:
        """Sum of squares of all gradients on this rank."""
        for slot in self.slots:
            if slot.name in self._untouched:  # such as an expert that no token was sent to
                slot.total.zero_()
        norms = [torch.linalg.vector_norm(slot.total, dtype=torch.float32) for slot in self.slots]
        return torch.stack(norms).square().sum()

    def apply(self, step: int, *, norm: torch.Tensor) -> None:
        """One update; none at all where the gradient is not finite."""
        recipe = self.recipe
        rate, (beta1, beta2) = recipe.rate_at(step), recipe.betas
        scale = torch.ones_like(norm) if recipe.clip is None else (recipe.clip / (norm + 1e-6)).clamp(max=1.0)
        is_adam = recipe.optimizer == "adam"
        first, second = (1 - beta1 ** (step + 1), 1 - beta2 ** (step + 1)) if is_adam else (1.0, 1.0)
        found = torch.stack([torch.isfinite(norm).float(), scale])
        numbers = {
            decay: torch.cat([found, sent(torch.tensor([rate / first, second**-0.5, decay]), norm.device)])
            for decay in {1.0, 1 - rate * recipe.weight_decay}
        }
        self._tick.fill_((step + 1) * _TICKS - 1)
        for slot in self.slots:
            decay = 1 - rate * recipe.weight_decay if slot.is_decayed else 1.0
            tensors = (slot.weight, slot.low, slot.first, slot.second, slot.total)
            self._functions.update(*tensors, numbers[decay], slot.key, self._tick, slot.start)

    def _gather(self, slot: Slot, parameter: Any) -> None:
        gradient, parameter.grad = local_part(parameter.grad).reshape(-1), None
        if slot.name in self._untouched:
            self._untouched.discard(slot.name)
            slot.total.copy_(gradient)
        elif slot.total.dtype == torch.bfloat16:
            self._functions.add(slot.total, gradient, slot.key, self._tick, slot.start)
        else:
            slot.total.add_(gradient)

    def _slot(self, name: str, parameter: Any, lows: Mapping[str, torch.Tensor]) -> Slot:
        local, start = local_part(parameter.data).view(-1), start_of(parameter)
        low = lows[name].view(-1) if name in lows else None
        if low is not None and len(low) > len(local):
            low = low[start : start + len(local)].clone()
        state = torch.float32 if self.precision != "bf16-stochastic" else torch.bfloat16
        has_moments = self.recipe.optimizer == "adam"
        return Slot(
            name=name,
            parameter=parameter,
            weight=local,
            low=low,
            first=torch.zeros_like(local, dtype=state) if has_moments else None,
            second=torch.zeros_like(local, dtype=state) if has_moments else None,
            total=torch.zeros_like(local, dtype=state),
            key=torch.tensor(_key(self.recipe.seed, name), dtype=torch.int32, device=local.device),
            start=torch.tensor(start, dtype=torch.int32, device=local.device),
            is_decayed=parameter.ndim > 1,
        )


def divided(named: Iterable[tuple[str, Any]]) -> dict[str, torch.Tensor]:
    """Leave each parameter its upper half, a bfloat16, and give out the lower ones by name."""
    lows = {}
    for name, parameter in named:
        exact = parameter.data.float()
        lows[name], parameter.data = low_part(exact), high_part(exact)
    return lows


@dataclass(frozen=True, slots=True)
class _Functions:
    update: Callable[..., None]
    add: Callable[..., None]


@cache
def _functions(is_compiled: bool, optimizer: str, precision: str, betas: tuple[float, float], eps: float) -> _Functions:
    moved = partial(_adam, betas=betas, eps=eps) if optimizer == "adam" else _sgd
    update, add = partial(_UPDATES[precision], moved), _add
    if is_compiled:
        return _Functions(torch.compile(update, dynamic=True), torch.compile(add, dynamic=True))
    return _Functions(torch.no_grad()(update), torch.no_grad()(add))


_Moved = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]


def _adam(
    weight: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    gradient: torch.Tensor,
    numbers: torch.Tensor,
    *,
    betas: tuple[float, float],
    eps: float,
) -> _Moved:
    gradient = gradient * numbers[1]
    first = first + (gradient - first) * (1 - betas[0])
    second = second + (gradient * gradient - second) * (1 - betas[1])
    return weight * numbers[4] - numbers[2] * first / (second.sqrt() * numbers[3] + eps), first, second


def _sgd(weight: torch.Tensor, first: None, second: None, gradient: torch.Tensor, numbers: torch.Tensor) -> _Moved:
    return weight * numbers[4] - numbers[2] * numbers[1] * gradient, None, None


def _update_fp32(
    moved: Callable[..., _Moved], weight: Any, low: None, first: Any, second: Any, total: Any, numbers: Any, *_: Any
) -> None:
    is_finite = numbers[0] > 0
    new = moved(weight, first, second, total, numbers)
    for old, value in zip((weight, first, second), new, strict=True):
        if value is not None:
            old.copy_(torch.where(is_finite, value, old))


def _update_master(
    moved: Callable[..., _Moved], weight: Any, low: Any, first: Any, second: Any, total: Any, numbers: Any, *_: Any
) -> None:
    is_finite = numbers[0] > 0
    whole = joined(weight, low)
    new, *moments = moved(whole, first, second, total, numbers)
    new = torch.where(is_finite, new, whole)
    weight.copy_(high_part(new))
    low.copy_(low_part(new))
    for old, value in zip((first, second), moments, strict=True):
        if value is not None:
            old.copy_(torch.where(is_finite, value, old))


def _update_stochastic(
    moved: Callable[..., _Moved],
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
    new = moved(*exact, numbers)
    index = torch.arange(len(weight), dtype=torch.int32, device=weight.device) + start
    bits = noise(key + _WEIGHT, tick, index)
    sources = bits, bits >> 16, noise(key + _SECOND, tick, index)
    for old, value, source in zip((weight, first, second), new, sources, strict=True):
        if value is not None:
            old.copy_(torch.where(is_finite, rounded(value, source), old))


def _add(total: Any, gradient: Any, key: Any, tick: Any, start: Any) -> None:
    index = torch.arange(len(total), dtype=torch.int32, device=total.device) + start
    total.copy_(rounded(total.float() + gradient.float(), noise(key + _SUM, tick, index)))


_UPDATES: Final[dict[str, Callable[..., None]]] = {
    "fp32": _update_fp32,
    "bf16-master": _update_master,
    "bf16-stochastic": _update_stochastic,
}


def _key(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big", signed=True) >> 3 << 3


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A small tensor on the device, without waiting for what the device has still to do."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
