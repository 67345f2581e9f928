"""One optimiser step: micro-batches forward and backward, gradients summed, one update."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from skillmix.errors import UserError
from skillmix.hashing import digest
from skillmix.training.data.examples import Example
from skillmix.training.data.micro_batches import MicroBatch, pack, split
from skillmix.training.ranks import Ranks, shard
from skillmix.training.recipe import TrainingRecipe
from skillmix.training.step.optimizer import BYTES, Optimizer, divided
from skillmix.training.step.packed_model import PackedModel, compile_layers, inputs_of, set_recompute


def has_dropout(model: Any) -> bool:
    """Whether anything in a model is drawn while it trains."""
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())


@contextmanager
def seeded(*key: int, device: torch.device) -> Iterator[None]:
    """Draw by a key inside, and as before afterwards."""
    seed = int.from_bytes(digest("dropout", *key, size=8)) >> 1
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


_FILL: Final = 128
"""On a GPU, micro-batches are as long as a multiple of this."""
_LEAN_FROM: Final = 1 << 30
"""Bytes of weights from which activations are worth saving."""
_CPU_BUDGET: Final = 4096
_LARGEST_BUDGET: Final = 1 << 16
_KEPT_FREE: Final = 0.9
"""Part of the free memory that activations may take."""


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """What one step did."""

    answers: float
    """Mean loss over the answers' tokens."""
    replay: float | None
    """Mean loss over replay tokens, if there were any."""
    norm: float
    """Norm of the gradient before clipping."""
    tokens: int
    micro_batches: int


class Engine:
    """A model and its optimiser, ready to take steps."""

    def __init__(self, model: Any, recipe: TrainingRecipe, ranks: Ranks = Ranks()) -> None:  # noqa: B008, it is frozen
        self.recipe, self.ranks = recipe, ranks
        self.device: torch.device = next(model.parameters()).device
        self.packed = PackedModel(model)
        self.precision = choose_precision(model, recipe, self.device, ranks=ranks.count)
        if self.precision != "fp32":
            _to_bf16(model, but_trained=self.precision == "bf16-master")
        lows = divided(trained_parameters(model)) if self.precision == "bf16-master" else {}
        self.packed.train()
        if ranks.count > 1:
            shard(self.packed, ranks, reshard=recipe.reshard)
        self.optimizer = Optimizer(trained_parameters(model), recipe, precision=self.precision, lows=lows)
        self._has_dropout = has_dropout(model)
        if recipe.compile == "on" or (recipe.compile == "auto" and self.device.type == "cuda"):
            size = sum(parameter.nbytes for parameter in model.parameters())
            compile_layers(self.packed.layers, is_lean=recipe.recompute != "off" and size > _LEAN_FROM)
        set_recompute(self.packed.layers, is_on=recipe.recompute == "on")
        self.budget = recipe.token_budget
        self._longest = 0
        self.before_micro_batch: Callable[[int], None] = lambda number: None

    def step(self, number: int, examples: Sequence[Example]) -> OptimizerStep:
        """Take one step; short of memory, gather its gradients again from smaller micro-batches."""
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
        """Mean loss over the answers' tokens, with nothing dropped out."""
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
        """Let go of the model and of all that was kept for it."""
        self._free()
        self.optimizer.close()
        self.packed.release()

    def _gradients(self, number: int, examples: Sequence[Example], budget: int) -> tuple[OptimizerStep, torch.Tensor]:
        """Gather a step's gradients; what it did, and their norm."""
        batches = self._batches(examples, budget)
        answers, replay = (sum(_trained(e) for e in examples if e.is_replay == kind) for kind in (False, True))
        sums = torch.zeros(3, device=self.device)
        for place, batch in enumerate(batches):
            self.before_micro_batch(place)
            self.optimizer.begin(number, place)
            with self._drawing(number, place):
                sums[:2] += self._one(batch, answers=answers, replay=replay)
        sums[2] = self.optimizer.squares()
        sums = self.ranks.summed(sums)
        norm = sums[2].sqrt()
        found = torch.cat([sums[:2], norm[None]]).tolist()
        step = OptimizerStep(
            answers=found[0] / max(1, answers),
            replay=found[1] / replay if replay else None,
            norm=found[2],
            tokens=sum(len(e.tokens) for e in examples),
            micro_batches=len(batches),
        )
        return step, norm

    def _batches(self, examples: Sequence[Example], budget: int) -> list[MicroBatch]:
        multiple = _FILL if self.device.type == "cuda" else 1
        groups = split([len(e.tokens) for e in examples], budget=budget, ranks=self.ranks.count)[self.ranks.own]
        return [pack([examples[i] for i in group], multiple=multiple) for group in groups]

    def _one(self, batch: MicroBatch, *, answers: int, replay: int) -> torch.Tensor:
        """Forward and backward; the summed losses of answers and replay."""
        shares = np.where(batch.is_replay, self.recipe.gamma / max(1, replay), 1 / max(1, answers))
        inputs = inputs_of(batch, shares=shares, longest=self._bound(batch.longest), device=self.device)
        loss, losses = self.packed(inputs)
        loss.backward()
        if not len(batch.rows):  # what stands in for targets is nobody's loss
            return torch.zeros(2, device=self.device)
        of_replay = (losses * inputs.is_replay).sum()
        return torch.stack([losses.sum() - of_replay, of_replay]).detach()

    def _drawing(self, number: int, place: int) -> AbstractContextManager[None]:
        if not self._has_dropout:
            return nullcontext()
        return seeded(self.recipe.seed, number, place, self.ranks.own, device=self.device)

    def _bound(self, longest: int) -> int:
        """An upper bound of the length that rarely changes, as kernels are compiled for it."""
        if self.device.type != "cuda":
            return longest
        self._longest = max(self._longest, 1 << (max(128, longest) - 1).bit_length())
        return self._longest

    def _find_budget(self, examples: Sequence[Example]) -> int:
        if self.budget is None:
            self.budget = self._measured_budget(examples) if self.device.type == "cuda" else _CPU_BUDGET
        return self.budget

    def _measured_budget(self, examples: Sequence[Example]) -> int:
        """How many tokens fit, judged by what two small micro-batches take."""
        longest = sorted(examples, key=lambda e: -len(e.tokens))[:3]
        self._bound(len(longest[0].tokens))
        for is_recomputed in {"on": (True,), "off": (False,), "auto": (False, True)}[self.recipe.recompute]:
            set_recompute(self.packed.layers, is_on=is_recomputed)
            fitting = self._fitting(pack(longest[:1], multiple=_FILL), pack(longest, multiple=_FILL))
            if fitting >= 4 * len(longest[0].tokens):
                break
        return max(len(longest[0].tokens), min(_LARGEST_BUDGET, fitting))

    def _fitting(self, small: MicroBatch, large: MicroBatch) -> int:
        """Tokens for which the free memory suffices, on the line through two measurements."""
        taken = {}
        for probe in (small, small, large):  # twice: compilers and libraries take memory of their own the first time
            self._free()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.optimizer.begin(0, 0)
            self._one(probe, answers=len(probe.rows), replay=len(probe.rows))
            taken[len(probe.tokens)] = torch.cuda.max_memory_allocated() - before
        self._free()
        (few, low), (many, high) = sorted(taken.items())[0], sorted(taken.items())[-1]
        per_token = (high - low) / (many - few) if many > few else low / few
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        found = int((_KEPT_FREE * free - max(0, low - few * per_token)) / per_token)
        return int(self.ranks.least(found, self.device))

    def _smaller(self, budget: int, examples: Sequence[Example], error: BaseException) -> int:
        longest = max(len(e.tokens) for e in examples)
        if self.ranks.count > 1:  # the others wait for this rank in the middle of the step
            raise UserError(
                f"Out of memory with micro-batches of {budget} tokens.",
                hint="Set a smaller token_budget; the run goes on from its last checkpoint.",
            ) from error
        if budget <= longest:
            raise UserError(
                f"Out of memory with a single example of {longest} tokens in a micro-batch.",
                hint="Set recompute: on, a smaller precision, LoRA, or more GPUs.",
            ) from error
        return max(longest, budget * 3 // 4)

    def _free(self) -> None:
        for slot in self.optimizer.slots:
            slot.parameter.grad = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def trained_parameters(model: Any) -> list[tuple[str, Any]]:
    """What is trained, each under one name even if it is used twice."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def choose_precision(model: Any, recipe: TrainingRecipe, device: torch.device, *, ranks: int = 1) -> str:
    """The asked one; `auto`: float32 on a CPU, on a GPU float32 masters if a fifth of it stays free, else none."""
    if recipe.precision != "auto":
        return recipe.precision
    if device.type != "cuda":
        return "fp32"
    trained = sum(parameter.numel() for _, parameter in trained_parameters(model))
    frozen = sum(parameter.numel() for parameter in model.parameters()) - trained
    total = torch.cuda.mem_get_info(device)[1]
    return "bf16-master" if (BYTES["bf16-master"] * trained + 2 * frozen) / ranks < 0.8 * total else "bf16-stochastic"


def _to_bf16(model: Any, *, but_trained: bool) -> None:
    for parameter in model.parameters():
        if not (but_trained and parameter.requires_grad):
            parameter.data = parameter.data.to(torch.bfloat16)


def _trained(example: Example) -> int:
    return int(example.is_trained.sum())
