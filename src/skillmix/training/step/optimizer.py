"""The optimizer, which accumulates gradients during the backward pass and updates all parameters in a single pass.

The precision determines how weights, moments and accumulated gradients are stored; see `experiment/train_step.py`.
"""

import hashlib
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import torch

from skillmix.experiment.train_step import (
    DEFAULT_GAMMA,
    DEFAULT_STEPS,
    MUON_ADAM_RATE,
    FloatType,
    Precision,
    RecipeSettings,
    WeightStorage,
)
from skillmix.training.ranks import local_part, start_of


class TrainingRecipe(RecipeSettings):
    """A train step's settings, together with the numbers that are known only once its data has been read."""

    steps: int = DEFAULT_STEPS
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    gamma: float = DEFAULT_GAMMA
    """The weight of the mean loss over replayed tokens; the mean loss over answer tokens has weight 1."""
    seed: int = 0

    @classmethod
    def of(cls, settings: RecipeSettings, *, steps: int, seed: int) -> "TrainingRecipe":
        """Return the recipe of a train step whose data has been counted."""
        fields = {name: getattr(settings, name) for name in RecipeSettings.model_fields}
        gamma = settings.replay.gamma if settings.replay else 0.0
        return cls(**{**fields, "steps": steps, "gamma": gamma, "seed": seed})

    def rate_at(self, step: int) -> float:
        """Return the learning rate at a step, counted from 0: a linear warm-up from above zero, then the schedule.

        >>> recipe = TrainingRecipe(learning_rate=1.0, warmup_steps=4, steps=12, schedule="cosine")
        >>> [round(recipe.rate_at(step), 3) for step in (0, 1, 3, 4, 8, 11)]
        [0.25, 0.5, 1.0, 1.0, 0.5, 0.038]
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        share = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


DTYPES: Final[dict[FloatType, torch.dtype]] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_HIGH: Final = -(1 << 16)
"""A mask for the bits of a float32 that bfloat16 keeps."""
_SECOND, _WEIGHT, _SUM = 1, 2, 3
"""The numbers of the noise streams. Each is added to a parameter's key, which is a multiple of 8."""

NewValues = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""The weight, first moment and second moment after a step."""
Rule = Callable[..., NewValues]
"""A rule such as Adam, which computes new values from weight, moments, gradient and the step's numbers."""


def noise(key: torch.Tensor, tick: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return 32 uniform random bits for every index; all arguments are int32."""
    return _mixed(index ^ _mixed(key ^ _mixed(tick)))


def rounded(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Round float32 to bfloat16 stochastically, using the lower 16 bits of the noise."""
    raised = (values.view(torch.int32) + (bits & 0xFFFF)) & _HIGH
    return raised.view(torch.float32).to(torch.bfloat16)


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """Mix 32 bits by a bijection in which every input bit changes every output bit about half of the time."""
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * 0x7FEB352D
    bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * -0x7B935975
    return bits ^ ((bits >> 16) & 0xFFFF)


def _halves(exact: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each float32 to the nearest bfloat16, with ties away from zero; also return the 16 dropped bits."""
    bits = exact.view(torch.int32)
    return ((bits + 0x8000) & _HIGH).view(torch.float32).to(torch.bfloat16), bits.to(torch.int16)


def split_weights(named: Iterable[tuple[str, Any]]) -> dict[str, torch.Tensor]:
    """Replace each parameter with its upper half, a bfloat16, and return the lower halves by name."""
    low_halves = {}
    for name, parameter in named:
        parameter.data, low_halves[name] = _halves(parameter.data.float())
    return low_halves


def update_exact(
    rule: Rule, weight: Any, low: None, first: Any, second: Any, total: Any, numbers: Any, *_: Any
) -> None:
    """Apply a rule to weights that are stored in a single tensor."""
    is_finite = numbers[0] > 0
    new = rule(weight, first, second, total, numbers)
    for old, value in zip((weight, first, second), new, strict=True):
        if value is not None:
            old.copy_(torch.where(is_finite, value, old))


def update_halves(
    rule: Rule, weight: Any, low: Any, first: Any, second: Any, total: Any, numbers: Any, *_: Any
) -> None:
    """Apply a rule to weights whose lower halves are stored separately."""
    is_finite = numbers[0] > 0
    whole = (weight.float().view(torch.int32) + low.to(torch.int32)).view(torch.float32)
    new, *moments = rule(whole, first, second, total, numbers)
    new = torch.where(is_finite, new, whole)
    high, new_low = _halves(new)
    weight.copy_(high)
    low.copy_(new_low)
    for old, value in zip((first, second), moments, strict=True):
        if value is not None:
            old.copy_(torch.where(is_finite, value, old))


def update_stochastic(
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
    """Apply a rule to bfloat16 weights and round the new values stochastically."""
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
    """Add a gradient to accumulated bfloat16 gradients with stochastic rounding."""
    index = torch.arange(len(total), dtype=torch.int32, device=total.device) + start
    total.copy_(rounded(total.float() + gradient.float(), noise(key + _SUM, tick, index)))


UPDATES: Final[dict[WeightStorage, Callable[..., None]]] = {
    "exact": update_exact,
    "halves": update_halves,
    "stochastic": update_stochastic,
}
"""Functions that apply a rule and store its values in place; values that are not finite are not stored."""


_MOMENTUM: Final = 0.95
"""The momentum of Muon, as in `torch.optim.Muon`."""
_NEWTON: Final = (3.4445, -4.7750, 2.0315)
"""The coefficients of Muon's polynomial, as used by its authors and by torch."""
_NUMBERS_AT_ONCE: Final = 1 << 26
"""The most elements of hidden matrices whose directions are computed at once, which limits their memory."""
_TICKS: Final = 4096
"""Noise ticks per step: one for each micro-batch, and the last one for the update."""


@dataclass(frozen=True, slots=True)
class TrainedParameter:
    """A trained parameter, or this rank's part of it, as flat tensors."""

    name: str
    parameter: Any
    weight: torch.Tensor
    low: torch.Tensor | None
    """The lower halves of the weights, if the precision stores them separately."""
    first: torch.Tensor | None
    """The first moments; SGD has none."""
    second: torch.Tensor | None
    total: torch.Tensor
    """The gradients accumulated so far in the step."""
    key: torch.Tensor
    """The parameter's key for the noise function."""
    start: torch.Tensor
    """The index of the first element in the whole parameter."""
    numbers: int
    """The row of the step's numbers that the parameter's update uses."""
    update: Callable[..., None]


class Optimizer:
    """Adam, SGD or Muon over the trained parameters of a model."""

    def __init__(
        self,
        named: Iterable[tuple[str, Any]],
        recipe: TrainingRecipe,
        *,
        precision: Precision,
        low_halves: Mapping[str, torch.Tensor] | None = None,
        hidden: Container[str] = (),
    ) -> None:
        """Prepare to train the named parameters; with `muon`, Muon updates the `hidden` matrices and Adam the rest."""
        self.recipe, self.precision = recipe, precision
        self._hidden = hidden if recipe.optimizer == "muon" else ()
        named = list(named)
        device = local_part(named[0][1].data).device
        is_compiled = device.type == "cuda"
        self._update, self._add = _functions(is_compiled, recipe.optimizer, precision, recipe.betas, recipe.eps)
        self._update_hidden, _ = _functions(is_compiled, "muon matrix", precision, recipe.betas, recipe.eps)
        # One product for all matrices of the same shape saves thousands of launches on a GPU, but nothing on a CPU.
        self._most_at_once = _NUMBERS_AT_ONCE if is_compiled else 1
        self.parameters = [self._trained_parameter(name, parameter, low_halves or {}) for name, parameter in named]
        self._tick = torch.zeros((), dtype=torch.int32, device=device)
        self._rates = torch.zeros(3, 3, device=device)
        """The learning rate, second-moment correction and decay of a step's update, in one row each for vectors (which
        do not decay), matrices, and matrices that Muon updates."""
        self.untouched: set[str] = set()
        """Names of the parameters that have no gradient yet in this step."""
        self._hooks = [
            trained.parameter.register_post_accumulate_grad_hook(partial(self._gather, trained))
            for trained in self.parameters
        ]

    def begin(self, step: int, micro_batch: int) -> None:
        """Start a micro-batch. The first micro-batch of a step resets the accumulated gradients."""
        self._tick.fill_(step * _TICKS + micro_batch)
        if micro_batch == 0:
            self.untouched = {trained.name for trained in self.parameters}

    def drop_gradients(self) -> None:
        """Discard gradients that were computed but not yet accumulated."""
        for trained in self.parameters:
            trained.parameter.grad = None

    def close(self) -> None:
        """Stop accumulating gradients, and release the state."""
        for hook in self._hooks:
            hook.remove()
        self.parameters.clear()

    def squares(self) -> torch.Tensor:
        """Return the sum of squares of all gradients on this rank."""
        for trained in self.parameters:
            if trained.name in self.untouched:  # for example, an expert to which no token was routed
                trained.total.zero_()
        norms = torch._foreach_norm([trained.total for trained in self.parameters], 2, torch.float32)
        return torch.stack(norms).square().sum()

    def begin_update(self, step: int) -> None:
        """Set the learning rate, correction and decay for a step's update."""
        recipe = self.recipe
        rate, (beta1, beta2) = recipe.rate_at(step), recipe.betas
        is_sgd = recipe.optimizer == "sgd"
        first, second = (1.0, 1.0) if is_sgd else (1 - beta1 ** (step + 1), 1 - beta2 ** (step + 1))
        # Parameters that Adam updates while Muon updates the matrices have a separate learning rate.
        is_muon, adam_rate = recipe.optimizer == "muon", recipe.adam_learning_rate or MUON_ADAM_RATE
        other = rate * (adam_rate / recipe.learning_rate if is_muon else 1.0)
        rows = [[other / first, second**-0.5, decay] for decay in (1.0, 1 - other * recipe.weight_decay)]
        rows.append([rate, 1.0, 1 - rate * recipe.weight_decay])
        numbers = torch.tensor(rows)  # pinned, so that the copy need not wait for pending work on the device
        self._rates.copy_(numbers.pin_memory() if self._rates.is_cuda else numbers, non_blocking=True)
        self._tick.fill_((step + 1) * _TICKS - 1)

    def update(self, norm: torch.Tensor, *, is_finite: torch.Tensor) -> None:
        """Update all parameters with the numbers of the step, or change nothing if a loss or the norm is not finite."""
        clip = self.recipe.clip
        scale = torch.ones_like(norm) if clip is None else (clip / (norm + 1e-6)).clamp(max=1.0)
        finite_and_scale = torch.stack([is_finite.float(), scale])
        numbers = [torch.cat([finite_and_scale, rates]) for rates in self._rates]
        directions = dict(self._directions(numbers[2]))
        for trained in self.parameters:
            second = directions.get(trained.name, trained.second)
            tensors = (trained.weight, trained.low, trained.first, second, trained.total)
            trained.update(*tensors, numbers[trained.numbers], trained.key, self._tick, trained.start)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _directions(self, numbers: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name of each hidden matrix with Muon's direction for it."""
        by_shape: dict[Any, list[TrainedParameter]] = {}
        for trained in self.parameters:
            if trained.name in self._hidden:
                by_shape.setdefault(trained.parameter.shape, []).append(trained)
        for shape, group in by_shape.items():
            count = max(1, self._most_at_once // shape.numel())
            for some in (group[start : start + count] for start in range(0, len(group), count)):
                gradient = torch.stack([trained.total.float() for trained in some]) * numbers[1]
                first = torch.stack([trained.first.float() for trained in some if trained.first is not None])
                momentum = torch.lerp(gradient, torch.lerp(gradient, first, _MOMENTUM), _MOMENTUM)
                directions = orthogonal(momentum.view(-1, *shape)) * max(1, shape[0] / shape[1]) ** 0.5
                yield from zip((trained.name for trained in some), directions.flatten(1), strict=True)

    def _gather(self, trained: TrainedParameter, parameter: Any) -> None:
        gradient, parameter.grad = local_part(parameter.grad).reshape(-1), None
        if trained.name in self.untouched:
            self.untouched.discard(trained.name)
            trained.total.copy_(gradient)
        elif trained.total.dtype == torch.bfloat16:
            self._add(trained.total, gradient, trained.key, self._tick, trained.start)
        else:
            trained.total.add_(gradient)

    def _trained_parameter(self, name: str, parameter: Any, low_halves: Mapping[str, torch.Tensor]) -> TrainedParameter:
        local, start = _flat(local_part(parameter.data)), start_of(parameter)
        low = _flat(low_halves[name]) if name in low_halves else None
        if low is not None and len(low) > len(local):
            low = low[start : start + len(local)].clone()
        state = DTYPES[self.precision.state]
        is_hidden, is_sgd = name in self._hidden, self.recipe.optimizer == "sgd"
        # The number of a noise stream is added to the key, so the key must be a multiple of 8.
        key = hashlib.blake2b(f"{self.recipe.seed}/{name}".encode(), digest_size=4).digest()
        return TrainedParameter(
            name=name,
            parameter=parameter,
            weight=local,
            low=low,
            first=torch.zeros_like(local, dtype=state) if not is_sgd else None,
            second=torch.zeros_like(local, dtype=state) if not is_sgd and not is_hidden else None,
            total=torch.zeros_like(local, dtype=state),
            key=torch.tensor(int.from_bytes(key, "big", signed=True) >> 3 << 3, dtype=torch.int32, device=local.device),
            start=torch.tensor(start, dtype=torch.int32, device=local.device),
            numbers=2 if is_hidden else int(parameter.ndim > 1),
            update=self._update_hidden if is_hidden else self._update,
        )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a contiguous tensor as a vector in the same memory.

    A view would have the same elements, but the compiler would compile separately for views of matrices and vectors.
    """
    if not tensor.is_contiguous():
        raise ValueError("only a contiguous tensor can be seen as a vector")
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), tensor.storage_offset(), (tensor.numel(),), (1,))


@cache
def _functions(
    is_compiled: bool, optimizer: str, precision: Precision, betas: tuple[float, float], eps: float
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return a function that updates a parameter, and one that accumulates a gradient in bfloat16."""
    rules: dict[str, Rule] = {"sgd": sgd, "muon matrix": muon}
    rule = rules.get(optimizer) or partial(adam, betas=betas, eps=eps)
    update, add = partial(UPDATES[precision.storage], rule), add_rounded
    if is_compiled:
        return torch.compile(update, dynamic=True), torch.compile(add, dynamic=True)
    return torch.no_grad()(update), torch.no_grad()(add)


def adam(
    weight: Any, first: Any, second: Any, gradient: Any, numbers: Any, *, betas: tuple[float, float], eps: float
) -> NewValues:
    """Compute the new values by Adam's rule."""
    gradient = gradient * numbers[1]
    first = first + (gradient - first) * (1 - betas[0])
    second = second + (gradient * gradient - second) * (1 - betas[1])
    return weight * numbers[4] - numbers[2] * first / (second.sqrt() * numbers[3] + eps), first, second


def sgd(weight: Any, first: None, second: None, gradient: Any, numbers: Any) -> NewValues:
    """Compute the new values by gradient descent."""
    return weight * numbers[4] - numbers[2] * numbers[1] * gradient, None, None


def muon(weight: Any, first: Any, direction: Any, gradient: Any, numbers: Any) -> NewValues:
    """Compute the new values as `torch.optim.Muon` does with Nesterov's momentum.

    Muon has no second moment; the argument in its place is the direction, which is computed for many matrices at once.
    """
    first = torch.lerp(gradient * numbers[1], first, _MOMENTUM)
    return weight * numbers[4] - numbers[2] * direction, first, None


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Return matrices with the same singular vectors and singular values near 1, by five Newton-Schulz steps.

    `torch.optim.Muon` computes these steps in bfloat16 everywhere, which is slow on most CPUs and kills the process on
    some.
    """
    rows, columns = matrices.shape[-2:]
    wide = matrices.mT if rows > columns else matrices
    wide = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    wide = wide.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    a, b, c = _NEWTON
    for _ in range(5):
        square = wide @ wide.mT
        wide = torch.baddbmm(wide, torch.baddbmm(square, square, square, beta=b, alpha=c), wide, beta=a)
    return (wide.mT if rows > columns else wide).to(matrices.dtype)
