"""One optimiser step: forward and backward passes over micro-batches, the sum of their gradients, one update."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from skillmix.errors import UserError
from skillmix.experiment.precisions import AUTO, PRECISIONS, Precision
from skillmix.hashing import digest
from skillmix.training.data.examples import Example
from skillmix.training.data.micro_batches import MicroBatch, pack, split
from skillmix.training.ranks import Ranks, shard
from skillmix.training.recipe import TrainingRecipe
from skillmix.training.step.optimizer import Optimizer
from skillmix.training.step.packed_model import PackedModel, compile_layers, inputs_of, set_recompute
from skillmix.training.step.precision import DTYPES, split_weights


def has_dropout(model: Any) -> bool:
    """Whether a model draws random numbers while it trains."""
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())


@contextmanager
def seeded(*key: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers with a key, and restore their former state afterwards."""
    seed = int.from_bytes(digest("dropout", *key, size=8)) >> 1
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


_FILL: Final = 128
"""On a GPU, the length of a micro-batch is a multiple of this."""
_LEAN_FROM: Final = 1 << 30
"""Bytes of weights from which on compiled layers save memory for activations."""
_CPU_BUDGET: Final = 4096
_LARGEST_BUDGET: Final = 1 << 16
_ACTIVATION_SHARE: Final = 0.9
"""Share of the free memory that activations may take."""
_STATE_SHARE: Final = 0.8
"""Share of a GPU's memory that weights and state may take in a precision that `auto` chooses."""


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """Losses and sizes of one optimiser step."""

    answers: float
    """Mean loss over the answers' tokens."""
    replay: float | None
    """Mean loss over replayed tokens; None without replay."""
    norm: float
    """Norm of the whole gradient before clipping."""
    tokens: int
    micro_batches: int


class Engine:
    """A model with its optimiser, which takes optimiser steps."""

    def __init__(self, model: Any, recipe: TrainingRecipe, ranks: Ranks = Ranks()) -> None:  # noqa: B008, it is frozen
        self.recipe, self.ranks = recipe, ranks
        self.device: torch.device = next(model.parameters()).device
        self.packed = PackedModel(model)
        self.precision = choose_precision(model, recipe, self.device, ranks=ranks.count)
        low_halves = _convert_weights(model, self.precision)
        self.packed.train()
        if ranks.count > 1:
            shard(self.packed, ranks, reshard=recipe.reshard)
        self.optimizer = Optimizer(trained_parameters(model), recipe, precision=self.precision, low_halves=low_halves)
        self._has_dropout = has_dropout(model)
        if recipe.compile == "on" or (recipe.compile == "auto" and self.device.type == "cuda"):
            size = sum(parameter.nbytes for parameter in model.parameters())
            compile_layers(self.packed.layers, is_lean=recipe.recompute != "off" and size > _LEAN_FROM)
        set_recompute(self.packed.layers, is_on=recipe.recompute == "on")
        self.budget = recipe.token_budget
        self._longest = 0
        self.before_micro_batch: Callable[[int], None] = lambda number: None

    def step(self, number: int, examples: Sequence[Example]) -> OptimizerStep:
        """Take one step; if memory runs out, compute its gradients again from smaller micro-batches."""
        budget = self._find_budget(examples)
        while True:
            try:
                step, norm = self._gradients(number, examples, budget)
                break
            except torch.OutOfMemoryError as error:
                budget = self._smaller(budget, examples, error)
            self._free()
            self.budget = budget
        self.optimizer.apply(number, norm=norm)
        return step

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def validate(self, examples: Sequence[Example]) -> float:
        """Mean loss over the answers' tokens, without dropout."""
        trained = sum(_trained(e) for e in examples)
        total = torch.zeros((), device=self.device)
        self.packed.eval()
        for batch in self._batches(examples, self._find_budget(examples)):
            shares = np.full(len(batch.rows), 1 / trained)
            inputs = inputs_of(batch, shares=shares, longest=self._bound(batch.longest), device=self.device)
            total += self.packed(inputs)[0]
        self.packed.train()
        return float(self.ranks.summed(total))

    def close(self) -> None:
        """Release the model and the memory of its optimiser."""
        self._free()
        self.optimizer.close()
        self.packed.release()

    def _gradients(self, number: int, examples: Sequence[Example], budget: int) -> tuple[OptimizerStep, torch.Tensor]:
        """Compute a step's gradients; return its losses, and the norm as a tensor."""
        batches = self._batches(examples, budget)
        answers, replay = (sum(_trained(e) for e in examples if e.is_replay == kind) for kind in (False, True))
        sums = torch.zeros(3, device=self.device)
        for index, batch in enumerate(batches):
            self.before_micro_batch(index)
            self.optimizer.begin(number, index)
            with self._dropout_seed(number, index):
                sums[:2] += self._backward(batch, answers=answers, replay=replay)
        sums[2] = self.optimizer.squares()
        sums = self.ranks.summed(sums)
        norm = sums[2].sqrt()
        answers_loss, replay_loss, norm_value = torch.cat([sums[:2], norm[None]]).tolist()
        step = OptimizerStep(
            answers=answers_loss / max(1, answers),
            replay=replay_loss / replay if replay else None,
            norm=norm_value,
            tokens=sum(len(e.tokens) for e in examples),
            micro_batches=len(batches),
        )
        return step, norm

    def _batches(self, examples: Sequence[Example], budget: int) -> list[MicroBatch]:
        multiple = _FILL if self.device.type == "cuda" else 1
        groups = split([len(e.tokens) for e in examples], budget=budget, ranks=self.ranks.count)[self.ranks.own]
        return [pack([examples[i] for i in group], multiple=multiple) for group in groups]

    def _backward(self, batch: MicroBatch, *, answers: int, replay: int) -> torch.Tensor:
        """Run a micro-batch forward and backward; return the summed losses of answers and of replay."""
        shares = np.where(batch.is_replay, self.recipe.gamma / max(1, replay), 1 / max(1, answers))
        inputs = inputs_of(batch, shares=shares, longest=self._bound(batch.longest), device=self.device)
        loss, losses = self.packed(inputs)
        loss.backward()
        if not len(batch.rows):  # `inputs_of` adds a dummy target, whose loss does not count
            return torch.zeros(2, device=self.device)
        replay_loss = (losses * inputs.is_replay).sum()
        return torch.stack([losses.sum() - replay_loss, replay_loss]).detach()

    def _dropout_seed(self, number: int, micro_batch: int) -> AbstractContextManager[None]:
        if not self._has_dropout:
            return nullcontext()
        return seeded(self.recipe.seed, number, micro_batch, self.ranks.own, device=self.device)

    def _bound(self, longest: int) -> int:
        """An upper bound of the longest example; kernels are compiled for it, so it changes rarely."""
        if self.device.type != "cuda":
            return longest
        self._longest = max(self._longest, 1 << (max(128, longest) - 1).bit_length())
        return self._longest

    def _find_budget(self, examples: Sequence[Example]) -> int:
        if self.budget is None:
            self.budget = self._measured_budget(examples) if self.device.type == "cuda" else _CPU_BUDGET
        return self.budget

    def _measured_budget(self, examples: Sequence[Example]) -> int:
        """The tokens that fit into memory, extrapolated from two small micro-batches."""
        longest = sorted(examples, key=lambda e: -len(e.tokens))[:3]
        self._bound(len(longest[0].tokens))
        for is_recomputed in {"on": (True,), "off": (False,), "auto": (False, True)}[self.recipe.recompute]:
            set_recompute(self.packed.layers, is_on=is_recomputed)
            fitting = self._fitting(pack(longest[:1], multiple=_FILL), pack(longest, multiple=_FILL))
            if fitting >= 4 * len(longest[0].tokens):
                break
        return max(len(longest[0].tokens), min(_LARGEST_BUDGET, fitting))

    def _fitting(self, small: MicroBatch, large: MicroBatch) -> int:
        """The tokens that fit into free memory, by the line through two measurements."""
        peaks = {}
        for probe in (small, small, large):  # twice, because compilers and libraries allocate memory the first time
            self._free()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.optimizer.begin(0, 0)
            self._backward(probe, answers=len(probe.rows), replay=len(probe.rows))
            peaks[len(probe.tokens)] = torch.cuda.max_memory_allocated() - before
        self._free()
        (few, low), (many, high) = min(peaks.items()), max(peaks.items())
        per_token = (high - low) / (many - few) if many > few else low / few
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        fitting = int((_ACTIVATION_SHARE * free - max(0, low - few * per_token)) / per_token)
        return int(self.ranks.minimum(fitting, self.device))

    def _smaller(self, budget: int, examples: Sequence[Example], error: BaseException) -> int:
        longest = max(len(e.tokens) for e in examples)
        if self.ranks.count > 1:  # the other ranks wait for this one in the middle of the step
            raise UserError(
                f"Out of memory with micro-batches of {budget} tokens.",
                hint="Set a smaller token_budget; the run continues from its last checkpoint.",
            ) from error
        if budget <= longest:
            raise UserError(
                f"Out of memory with a single example of {longest} tokens in a micro-batch.",
                hint="Set recompute: on, a smaller precision, LoRA, or more GPUs.",
            ) from error
        return max(longest, budget * 3 // 4)

    def _free(self) -> None:
        for trained in self.optimizer.parameters:
            trained.parameter.grad = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def trained_parameters(model: Any) -> list[tuple[str, Any]]:
    """Names and parameters that are trained; a parameter that is used twice is listed once."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def choose_precision(model: Any, recipe: TrainingRecipe, device: torch.device, *, ranks: int = 1) -> Precision:
    """The precision of the recipe; for `auto`, the first of the device's that leaves a fifth of its memory free.

    If none does, it is the last, which needs the least memory.
    """
    if recipe.precision != AUTO:
        chosen = PRECISIONS[recipe.precision]
        if device.type == "cuda" and chosen.weights != "bfloat16":
            raise UserError(
                f"precision: {chosen.name} cannot be trained on a GPU: its attention takes 16-bit numbers only.",
                hint="Use bf16-master, which keeps float32 weights beside the model.",
            )
        return chosen
    kind = "cuda" if device.type == "cuda" else "cpu"
    *preferred, last = (precision for precision in PRECISIONS.values() if precision.auto_device == kind)
    trained = sum(parameter.numel() for _, parameter in trained_parameters(model))
    frozen = sum(parameter.numel() for parameter in model.parameters()) - trained
    for precision in preferred:
        needed = (precision.training_bytes * trained + precision.weight_bytes * frozen) / ranks
        if device.type != "cuda" or needed < _STATE_SHARE * torch.cuda.mem_get_info(device)[1]:
            return precision
    return last


def _convert_weights(model: Any, precision: Precision) -> dict[str, torch.Tensor]:
    """Bring the weights into the format of the precision; the lower halves by name, if it stores them apart."""
    if precision.weights == "float32":  # loaded like this; tests train in float64 as well
        return {}
    is_split = precision.storage == "halves"
    for parameter in model.parameters():
        if not (is_split and parameter.requires_grad):
            parameter.data = parameter.data.to(DTYPES[precision.weights])
    return split_weights(trained_parameters(model)) if is_split else {}


def _trained(example: Example) -> int:
    return int(example.is_trained.sum())
