"""One optimizer step: forward and backward passes over micro-batches, accumulated gradients, and one update."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from skillmix.errors import UserError
from skillmix.experiment.train_step import AUTO, PRECISIONS, Precision
from skillmix.hashing import digest
from skillmix.training.data.batches import MicroBatch, pack, split
from skillmix.training.data.examples import Example
from skillmix.training.ranks import Ranks, shard
from skillmix.training.step.optimizer import DTYPES, Optimizer, TrainingRecipe, split_weights
from skillmix.training.step.packed_model import (
    LOGITS,
    Inputs,
    PackedModel,
    Recordings,
    compile_layers,
    inputs_of,
    ladder_step,
    padded_shape,
    set_recompute,
)

_FILL: Final = 128
"""The length of a micro-batch on a GPU is a multiple of this number of tokens."""
_LEAN_FROM: Final = 1 << 30
"""With more than this many bytes of weights, compiled layers save memory for activations."""
_CPU_BUDGET: Final = 4096
_LARGEST_BUDGET: Final = 1 << 16
_ACTIVATION_SHARE: Final = 0.9
"""The share of free memory that activations may take."""
_SURE_SHARE: Final = 0.4
"""If an upper bound on activations is within this share of free memory, no measurement is needed."""
_STATE_SHARE: Final = 0.8
"""The share of a GPU's memory that weights and state may take if `auto` chooses the precision."""
_LARGE: Final = 1e9
"""With at least this many weights, kernels take longer than their launches, so that recording is useless."""
_MANY_STEPS: Final = 200
"""With at least this many steps, `compile: auto` also compiles a smaller model."""
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
_LOGIT_BYTES: Final = 12
"""Bytes per logit, including its gradient and intermediate results."""


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """Losses and sizes of one optimizer step."""

    answers: float
    """The mean loss over the answers' tokens."""
    replay: float | None
    """The mean loss over replayed tokens; None without replay."""
    norm: float
    """The norm of the whole gradient before clipping."""
    tokens: int
    micro_batches: int


class Engine:
    """A model with its optimizer, which performs optimizer steps."""

    def __init__(self, model: Any, recipe: TrainingRecipe, ranks: Ranks = Ranks()) -> None:  # noqa: B008, it is frozen
        self.recipe, self.ranks = recipe, ranks
        self.device: torch.device = next(model.parameters()).device
        self.packed = PackedModel(model)
        self.precision = choose_precision(model, recipe, self.device, ranks=ranks.count)
        low_halves = {}
        if self.precision.weights != "float32":  # float32 weights are already loaded as such; tests also use float64
            is_split = self.precision.storage == "halves"
            for parameter in model.parameters():
                if not (is_split and parameter.requires_grad):
                    parameter.data = parameter.data.to(DTYPES[self.precision.weights])
            low_halves = split_weights(trained_parameters(model)) if is_split else {}
        self.packed.train()
        if ranks.count > 1:
            if recipe.optimizer == "muon":
                raise UserError(
                    "optimizer: muon needs whole matrices, but with several ranks each has only a part of them.",
                    hint="Train on one rank, or choose adam.",
                )
            shard(self.packed, ranks, reshard=recipe.reshard)
        named = trained_parameters(model)
        in_layers = {id(parameter) for layer in self.packed.layers for parameter in layer.parameters()}
        hidden = {name for name, parameter in named if id(parameter) in in_layers and parameter.ndim == 2}
        self.optimizer = Optimizer(named, recipe, precision=self.precision, low_halves=low_halves, hidden=hidden)
        set_recompute(self.packed.layers, is_on=recipe.recompute == "on")
        self.budget = recipe.token_budget
        """The most tokens in a micro-batch; None until the first step determines it."""
        self.recordings: Recordings | None = None
        self._is_ready = False
        """Whether the first step has determined the budget, and what is recorded and compiled."""
        self._has_dropout = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
        self._is_large = sum(parameter.numel() for parameter in model.parameters()) >= _LARGE
        self._longest = 0
        self._sums = torch.zeros(3, device=self.device)
        """The summed losses of answers and of replayed texts, and the norm of the gradient."""

    def step(self, number: int, examples: Sequence[Example]) -> OptimizerStep:
        """Take one step; if memory runs out, recompute its gradients with smaller micro-batches."""
        self._begin(examples)
        answers, replay = (
            sum(int(e.is_trained.sum()) for e in examples if e.is_replay == kind) for kind in (False, True)
        )
        while True:
            try:
                with self._running():
                    micro_batches = self._gradients(number, examples, answers=answers, replay=replay)
                break
            except torch.OutOfMemoryError as error:
                smaller = self._smaller_budget(examples, error)
            self._free()
            self.budget = smaller
        with self._running():
            # Update the weights unless a loss or the gradient is not finite.
            self.optimizer.begin_update(number)
            if self.recordings is None:
                self._finish()
            else:
                self.recordings.run(("update", frozenset(self.optimizer.untouched)), self._finish, self.optimizer)
            answer_sum, replay_sum, norm = self._sums.tolist()
        return OptimizerStep(
            answers=answer_sum / max(1, answers),
            replay=replay_sum / replay if replay else None,
            norm=norm,
            tokens=sum(len(e.tokens) for e in examples),
            micro_batches=micro_batches,
        )

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def validate(self, examples: Sequence[Example]) -> float:
        """Return the mean loss over the answers' tokens, without dropout."""
        self._begin(examples)
        trained = sum(int(e.is_trained.sum()) for e in examples)
        total = torch.zeros((), device=self.device)
        self.packed.eval()
        for batch in self._batches(examples):
            total += self.packed(self._inputs(batch, np.full(len(batch.rows), 1 / trained)))[0]
        self.packed.train()
        return float(self.ranks.summed(total))

    def close(self) -> None:
        """Release the model and the memory of its optimizer."""
        self._free()
        self.optimizer.close()
        if self.ranks.count > 1:
            # After validation, some modules have whole weights. FSDP2 would restore the shards when the model's state
            # is read, even over gathered weights, and the first rank would then block while it saves.
            for module in (*self.packed.layers, self.packed):
                module.reshard()
        self.packed.release()

    def _begin(self, examples: Sequence[Example]) -> None:
        """At the first step, determine what to record and compile, and the token budget of a micro-batch.

        A small model on one GPU is recorded if its activations surely fit into memory, because recorded passes
        keep memory for their activations even while other passes run.
        """
        if self._is_ready:
            return
        self._is_ready = True
        recipe, is_on_gpu = self.recipe, self.device.type == "cuda"
        tokens = sum(len(e.tokens) for e in examples)
        may_record = is_on_gpu and self.ranks.count == 1 and not self._is_large and not self._has_dropout
        if may_record and self._sure_budget(min(tokens, self.budget or tokens)):
            self.recordings = Recordings(self.device)
        is_worth_it = is_on_gpu and (self._is_large or recipe.steps >= _MANY_STEPS)
        if recipe.compile == "on" or (recipe.compile == "auto" and is_worth_it):
            size = sum(parameter.nbytes for parameter in self.packed.parameters())
            compile_layers(self.packed.layers, is_lean=recipe.recompute != "off" and size > _LEAN_FROM)
        if self.budget is None:
            sure = self._sure_budget(tokens) if is_on_gpu else _CPU_BUDGET
            self.budget = sure or self._measured_budget(examples)

    def _running(self) -> AbstractContextManager[None]:
        return nullcontext() if self.recordings is None else self.recordings.running()

    def _gradients(self, number: int, examples: Sequence[Example], *, answers: int, replay: int) -> int:
        """Accumulate the gradients and losses of a step, and return the number of micro-batches."""
        self._sums.zero_()
        batches = self._batches(examples)
        for index, batch in enumerate(batches):
            self.optimizer.begin(number, index)
            shares = np.where(batch.is_replay, self.recipe.gamma / max(1, replay), 1 / max(1, answers))
            with self._dropout_seed(number, index):
                if self.recordings is None:
                    self._backward(self._inputs(batch, shares))
                else:
                    host = inputs_of(batch, shares=shares, shape=padded_shape(batch))
                    inputs = self.recordings.inputs(host, longest=self._bound(batch.longest))
                    key = host.shape, inputs.longest, index == 0
                    self.recordings.run(key, partial(self._backward, inputs), self.optimizer)
        return len(batches)

    def _finish(self) -> None:
        """Compute the norm of the gradient, and update the weights."""
        self._sums[2] = self.optimizer.squares()
        self.ranks.summed(self._sums)
        self._sums[2].sqrt_()
        self.optimizer.update(self._sums[2], is_finite=self._sums.isfinite().all())

    def _batches(self, examples: Sequence[Example]) -> list[MicroBatch]:
        """Divide the examples into micro-batches, and return this rank's share."""
        groups = split([len(e.tokens) for e in examples], budget=self.budget or 0, ranks=self.ranks.count)
        batches = []
        for group in groups[self.ranks.own]:
            chosen = [examples[index] for index in group]
            multiple = _FILL if self.device.type == "cuda" else 1
            if self.recordings is not None:
                multiple = ladder_step(sum(len(e.tokens) for e in chosen))
            batches.append(pack(chosen, multiple=multiple))
        return batches

    def _inputs(self, batch: MicroBatch, shares: np.ndarray) -> Inputs:
        """Copy a micro-batch to the device."""
        return inputs_of(batch, shares=shares).sent(self.device, longest=self._bound(batch.longest))

    def _backward(self, inputs: Inputs) -> None:
        """Run the forward and backward passes of a micro-batch, and accumulate the losses on answers and replay."""
        loss, losses = self.packed(inputs)
        loss.backward()
        losses = losses.detach() * inputs.is_target
        replay_loss = (losses * inputs.is_replay).sum()
        self._sums[:2] += torch.stack([losses.sum() - replay_loss, replay_loss])

    @contextmanager
    def _dropout_seed(self, number: int, micro_batch: int) -> Iterator[None]:
        """Seed torch's random numbers for a micro-batch of a model with dropout, and restore their state afterwards."""
        if not self._has_dropout:
            yield
            return
        key = digest("dropout", self.recipe.seed, number, micro_batch, self.ranks.own, size=8)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int.from_bytes(key) >> 1)
            yield

    def _bound(self, longest: int) -> int:
        """Return an upper bound on the longest example; it changes rarely, because kernels are compiled for it."""
        if self.device.type != "cuda":
            return longest
        self._longest = max(self._longest, 1 << (max(128, longest) - 1).bit_length())
        return self._longest

    def _sure_budget(self, tokens: int) -> int | None:
        """Return a number of tokens that certainly fits into memory; None if unknown or less than a whole step."""
        per_token = activation_bytes(self.packed.causal.config)
        if per_token is None or self.ranks.count > 1 or self.recipe.recompute == "on":
            return None
        free = _SURE_SHARE * _free_memory() - _LOGIT_BYTES * LOGITS
        budget = min(_LARGEST_BUDGET, max(0, int(free / per_token)))
        return budget if budget >= tokens else None

    def _measured_budget(self, examples: Sequence[Example]) -> int:
        """Estimate how many tokens fit into memory, from the line through the peaks of two small micro-batches."""
        longest = sorted(examples, key=lambda e: -len(e.tokens))[:3]
        self._bound(len(longest[0].tokens))
        small, large = pack(longest[:1], multiple=_FILL), pack(longest, multiple=_FILL)
        for is_recomputed in {"on": (True,), "off": (False,), "auto": (False, True)}[self.recipe.recompute]:
            set_recompute(self.packed.layers, is_on=is_recomputed)
            peaks = {}
            for probe in (small, small, large):  # `small` twice, as compiled code allocates memory at first
                self._free()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                self.optimizer.begin(0, 0)
                self._backward(self._inputs(probe, np.full(len(probe.rows), 1 / max(1, len(probe.rows)))))
                peaks[len(probe.tokens)] = torch.cuda.max_memory_allocated() - before
            self._free()
            (few, low), (many, high) = min(peaks.items()), max(peaks.items())
            per_token = (high - low) / (many - few) if many > few else low / few
            most = int((_ACTIVATION_SHARE * _free_memory() - max(0, low - few * per_token)) / per_token)
            fitting = int(self.ranks.minimum(most, self.device))
            if fitting >= 4 * len(longest[0].tokens):
                break
        return max(len(longest[0].tokens), min(_LARGEST_BUDGET, fitting))

    def _smaller_budget(self, examples: Sequence[Example], error: BaseException) -> int:
        """Return a smaller budget for a retry after memory ran out, or raise an error if no retry is possible."""
        budget, longest = self.budget or 0, max(len(e.tokens) for e in examples)
        if self.ranks.count > 1:  # the other ranks are waiting for this rank in the middle of the step
            raise UserError(
                f"Out of memory with micro-batches of {budget} tokens.",
                hint="Set a smaller token_budget; the run continues from its last checkpoint.",
            ) from error
        if budget <= longest:
            raise UserError(
                f"Out of memory with a single example of {longest} tokens in a micro-batch.",
                hint="Set recompute: on, choose a smaller precision, train a LoRA adapter, or use more GPUs.",
            ) from error
        return max(longest, budget * 3 // 4)

    def _free(self) -> None:
        if self.recordings is not None:
            self.recordings.clear()
        self.optimizer.drop_gradients()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def activation_bytes(config: Any) -> int | None:
    """Return an upper bound on a token's activations in bytes, without recomputation and excluding its logits.

    Return None if the config lacks a size or the layers have experts. In bfloat16, a layer keeps about 22 bytes per
    hidden number and 8 bytes per number in the inner layer; the bound is 1.5 times as large.
    """
    text = config.get_text_config()
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
    sizes = [getattr(text, name, None) for name in names]
    if any(getattr(text, name, None) for name in _EXPERTS) or not all(isinstance(size, int) for size in sizes):
        return None
    layers, hidden, inner, heads = (int(size or 0) for size in sizes)
    widest = max(hidden, heads * int(getattr(text, "head_dim", None) or 0))
    return layers * (32 * widest + 12 * inner)


def trained_parameters(model: Any) -> list[tuple[str, Any]]:
    """Return the trained parameters with their names; a parameter that is used twice is listed once."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def choose_precision(model: Any, recipe: TrainingRecipe, device: torch.device, *, ranks: int = 1) -> Precision:
    """Return the recipe's precision, or for `auto` the first one that leaves a fifth of the device's memory free.

    If no precision does, return the last one, which needs the least memory.
    """
    if recipe.precision != AUTO:
        chosen = PRECISIONS[recipe.precision]
        if device.type == "cuda" and chosen.weights != "bfloat16":
            raise UserError(
                f"precision: {chosen.name} cannot be used on a GPU, where attention supports only 16-bit numbers.",
                hint="Use bf16-master, which keeps a float32 master copy of the weights.",
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


def _free_memory() -> int:
    """Return how many bytes of the GPU this process could allocate."""
    free: int = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free
