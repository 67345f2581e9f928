"""One optimiser step: forward and backward passes over micro-batches, the sum of their gradients, one update."""

import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from skillmix.errors import UserError
from skillmix.experiment.train_step import AUTO, PRECISIONS, Precision
from skillmix.hashing import digest
from skillmix.models.local.gpu.graph_pool import GraphPool, NotCaptured
from skillmix.runs.progress import say
from skillmix.training.data.batches import MicroBatch, pack, split
from skillmix.training.data.examples import Example
from skillmix.training.ranks import Ranks, reshard, shard
from skillmix.training.step.compiling import compile_estimate, note_compiled
from skillmix.training.step.inputs import (
    HostInputs,
    Inputs,
    Shape,
    device_inputs,
    exact_shape,
    host_inputs,
    inputs_of,
    padded_shape,
    tokens_multiple,
)
from skillmix.training.step.optimizer import DTYPES, Optimizer, TrainingRecipe, split_weights
from skillmix.training.step.packed_model import LOGITS, PackedModel, compile_layers, set_recompute

_UNRECORDED: Final = 1
"""How often work runs before it is recorded."""
Work = Callable[[], None]
"""Launches device work that reads and writes the same memory each time."""


class Recorder(Protocol):
    """Records device work."""

    def record(self, work: Work) -> Work | None:
        """A replay of the work, which has not run yet; None if it cannot be recorded."""
        ...

    def forget(self) -> None:
        """Note that all recordings have been dropped."""
        ...

    def running(self) -> Any:
        """A context in which all work runs, recorded or not."""
        ...


class GraphRecorder:
    """Records CUDA graphs, which share one memory pool: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = GraphPool(self._stream)
        self._has_warned = False

    def record(self, work: Work) -> Work | None:
        """Record a graph; None if memory runs out, or if an operation cannot be recorded."""
        try:
            replay: Work = self._pool.capture(work).replay
        except (NotCaptured, torch.OutOfMemoryError) as error:
            if not self._has_warned:
                self._has_warned = True
                say(f"a pass of this training cannot be recorded as a CUDA graph, and stays slower: {error}")
            return None
        return replay

    def forget(self) -> None:
        """Use other memory from now on."""
        self._pool.renew()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run on the stream of the recordings, so that libraries allocate their workspaces before a recording."""
        outer = torch.cuda.current_stream()
        self._stream.wait_stream(outer)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            outer.wait_stream(self._stream)


class _Recording(NamedTuple):
    replay: Work
    touched: frozenset[str]
    """Names of the parameters that get a gradient."""


class Recordings:
    """Replays of device work by key; work with a new key runs, and is recorded when it comes again."""

    def __init__(self, recorder: Recorder, optimizer: Optimizer) -> None:
        self._recorder, self._optimizer = recorder, optimizer
        self._runs: Counter[Hashable] = Counter()
        self._recordings: dict[Hashable, _Recording] = {}
        self.failed: set[Hashable] = set()
        """Keys of work that could not be recorded."""

    @property
    def count(self) -> int:
        """How many recordings there are."""
        return len(self._recordings)

    def run(self, key: Hashable, work: Work) -> None:
        """Replay the work if it is recorded; run it otherwise."""
        self._runs[key] += 1
        if key not in self._recordings and key not in self.failed and self._runs[key] > _UNRECORDED:
            self._record(key, work)
        recording = self._recordings.get(key)
        if recording is None:
            work()
            return
        recording.replay()
        self._optimizer.untouched -= recording.touched

    def clear(self) -> None:
        """Release all recordings and their memory."""
        self._recordings.clear()
        self._recorder.forget()

    def _record(self, key: Hashable, work: Work) -> None:
        before = set(self._optimizer.untouched)
        replay = self._recorder.record(work)
        touched, self._optimizer.untouched = frozenset(before - self._optimizer.untouched), before
        if replay is None:
            self._optimizer.drop_gradients()
            self.failed.add(key)
        else:
            self._recordings[key] = _Recording(replay, touched)


_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
_LOGIT_BYTES: Final = 12
"""Bytes of a logit, with its gradient and what is computed in between."""


class ActivationBound:
    """Bytes that the activations of a micro-batch take at most, if none of them are recomputed."""

    def __init__(self, per_token: int, vocabulary: int) -> None:
        self._per_token, self._vocabulary = per_token, vocabulary

    def bytes(self, tokens: int) -> int:
        """Bytes for a micro-batch of some tokens, all of them targets."""
        return tokens * self._per_token + _LOGIT_BYTES * min(LOGITS, tokens * self._vocabulary)

    def tokens(self, free: float) -> int:
        """Tokens whose activations surely fit into some bytes."""
        return max(0, int((free - _LOGIT_BYTES * LOGITS) / self._per_token))


def activation_bound(config: Any) -> ActivationBound | None:
    """The bound for a model; None if its config lacks a size, or if its layers have experts.

    In bfloat16 a layer keeps about 22 bytes per hidden number and 8 per number of the inner layer; the bound has half
    as many again.
    """
    text = config.get_text_config()
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads")
    sizes = [getattr(text, name, None) for name in names]
    if any(getattr(text, name, None) for name in _EXPERTS) or not all(isinstance(size, int) for size in sizes):
        return None
    layers, hidden, inner, vocabulary, heads = (int(size or 0) for size in sizes)
    widest = max(hidden, heads * int(getattr(text, "head_dim", None) or 0))
    return ActivationBound(layers * (32 * widest + 12 * inner), vocabulary)


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
_SURE_SHARE: Final = 0.4
"""Share of the free memory that activations may take by their upper bound, so that nothing need be measured."""
_STATE_SHARE: Final = 0.8
"""Share of a GPU's memory that weights and state may take in a precision that `auto` chooses."""
_LARGE: Final = 1e9
"""Weights from which on a model's kernels take longer than their launches, so that recording gains nothing."""


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


class PreparedStep(NamedTuple):
    """The micro-batches of a step in host memory."""

    budget: int
    micro_batches: list[HostInputs]
    answers: int
    """Targets in answers."""
    replay: int
    """Targets in replayed texts."""
    tokens: int


class Engine:
    """A model with its optimiser, which takes optimiser steps."""

    def __init__(
        self,
        model: Any,
        recipe: TrainingRecipe,
        ranks: Ranks = Ranks(),  # noqa: B008, it is frozen
        *,
        recorder: Recorder | None = None,
    ) -> None:
        self.recipe, self.ranks = recipe, ranks
        self.device: torch.device = next(model.parameters()).device
        self.packed = PackedModel(model)
        self.precision = choose_precision(model, recipe, self.device, ranks=ranks.count)
        low_halves = _convert_weights(model, self.precision)
        self.packed.train()
        if ranks.count > 1:
            if recipe.optimizer == "muon":
                raise UserError(
                    "optimizer: muon needs whole matrices, and several ranks have parts of them.",
                    hint="Train on one rank (ranks: 1), or choose adam.",
                )
            shard(self.packed, ranks, reshard=recipe.reshard)
        named = trained_parameters(model)
        in_layers = {id(parameter) for layer in self.packed.layers for parameter in layer.parameters()}
        hidden = {name for name, parameter in named if id(parameter) in in_layers and parameter.ndim == 2}
        self.optimizer = Optimizer(named, recipe, precision=self.precision, low_halves=low_halves, hidden=hidden)
        self._has_dropout = has_dropout(model)
        set_recompute(self.packed.layers, is_on=recipe.recompute == "on")
        self.budget = recipe.token_budget
        self.first_step = 0
        """The first step that this process takes."""
        self.is_ready = False
        """Whether the size of the first step has decided what is recorded and compiled, and the budget."""
        self._is_compiled = recipe.compile == "on"
        self._longest = 0
        self._sums = torch.zeros(3, device=self.device)
        """Losses of answers, losses of replayed texts, and the norm of the gradient."""
        self._recorder = recorder
        self.recordings: Recordings | None = None
        self._blocks: dict[Shape, torch.Tensor] = {}
        """Device memory for the inputs of recorded passes."""
        self.before_micro_batch: Callable[[int], None] = lambda number: None

    def prepare(self, examples: Sequence[Example]) -> PreparedStep:
        """Pack a step's examples; another thread may do so while the device works on the step before."""
        budget = self._begin(examples)
        answers, replay = (sum(_trained(e) for e in examples if e.is_replay == kind) for kind in (False, True))
        micro_batches = []
        for batch in self._batches(examples, budget):
            shares = np.where(batch.is_replay, self.recipe.gamma / max(1, replay), 1 / max(1, answers))
            shape = exact_shape(batch) if self._recorder is None else padded_shape(batch)
            micro_batches.append(host_inputs(batch, shape, shares=shares, is_pinned=self.device.type == "cuda"))
        return PreparedStep(budget, micro_batches, answers, replay, sum(len(e.tokens) for e in examples))

    def step(self, number: int, examples: Sequence[Example], prepared: PreparedStep | None = None) -> OptimizerStep:
        """Take one step; if memory runs out, compute its gradients again from smaller micro-batches."""
        while True:
            if prepared is None or prepared.budget != self.budget:
                prepared = self.prepare(examples)
            try:
                with self._running():
                    self._gradients(number, prepared)
                break
            except torch.OutOfMemoryError as error:
                smaller = self._smaller(prepared.budget, examples, error)
            self._free()
            self.budget = smaller
        with self._running():
            # Update the weights, unless a loss or the gradient is not finite
            self.optimizer.begin_update(number)
            if self.recordings is None:
                self._finish()
            else:
                self.recordings.run(("update", frozenset(self.optimizer.untouched)), self._finish)
            answers, replay, norm = self._sums.tolist()
        if self._is_compiled and number == self.first_step:
            note_compiled(self.packed.model)
        return OptimizerStep(
            answers=answers / max(1, prepared.answers),
            replay=replay / prepared.replay if prepared.replay else None,
            norm=norm,
            tokens=prepared.tokens,
            micro_batches=len(prepared.micro_batches),
        )

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def validate(self, examples: Sequence[Example]) -> float:
        """Mean loss over the answers' tokens, without dropout."""
        budget = self._begin(examples)
        trained = sum(_trained(e) for e in examples)
        total = torch.zeros((), device=self.device)
        self.packed.eval()
        for batch in self._batches(examples, budget):
            shares = np.full(len(batch.rows), 1 / trained)
            inputs = inputs_of(batch, shares=shares, longest=self._bound(batch.longest), device=self.device)
            total += self.packed(inputs)[0]
        self.packed.train()
        return float(self.ranks.summed(total))

    def close(self) -> None:
        """Release the model and the memory of its optimiser."""
        self._free()
        self.optimizer.close()
        if self.ranks.count > 1:
            reshard(self.packed)
        self.packed.release()

    def _begin(self, examples: Sequence[Example]) -> int:
        """Decide at the first step what is recorded and compiled; return the token budget of a micro-batch."""
        if not self.is_ready:
            tokens = sum(len(e.tokens) for e in examples)
            self._recorder = self._recorder or self._own_recorder(tokens)
            if self._recorder is not None:
                self.recordings = Recordings(self._recorder, self.optimizer)
            self._compile(tokens)
            if self.budget is None:
                self.budget = self._found_budget(examples)
            self.is_ready = True
        return self.budget or 0

    def _own_recorder(self, tokens: int) -> Recorder | None:
        """A recorder for a small model on one GPU; None if recording gains nothing or cannot be done."""
        is_recomputed = self.recipe.recompute == "on"
        is_large = sum(parameter.numel() for parameter in self.packed.parameters()) >= _LARGE
        if self.device.type != "cuda" or self.ranks.count > 1 or self._has_dropout or is_recomputed or is_large:
            return None
        # Recorded passes keep their memory, and passes of rare shapes run beside them.
        return GraphRecorder(self.device) if self._sure_budget(min(tokens, self.budget or tokens)) else None

    def _compile(self, tokens: int) -> None:
        """Compile the layers if the recipe says so, or on a GPU if that pays for itself."""
        model = self.packed.model
        if self.recipe.compile == "auto" and self.device.type == "cuda":
            estimate = compile_estimate(
                model,
                steps=self.recipe.steps * self.recipe.trainings - self.first_step,
                tokens=tokens,
                is_recorded=self._recorder is not None,
                ranks=self.ranks.count,
            )
            self._is_compiled = estimate.pays
            if self.ranks.is_first:
                say(estimate.sentence())
        if self._is_compiled:
            size = sum(parameter.nbytes for parameter in model.parameters())
            compile_layers(self.packed.layers, is_lean=self.recipe.recompute != "off" and size > _LEAN_FROM)

    def _running(self) -> AbstractContextManager[None]:
        return nullcontext() if self._recorder is None else self._recorder.running()

    def _gradients(self, number: int, prepared: PreparedStep) -> None:
        """Sum up a step's gradients and its losses."""
        self._sums.zero_()
        for index, host in enumerate(prepared.micro_batches):
            self.before_micro_batch(index)
            self.optimizer.begin(number, index)
            with self._dropout_seed(number, index):
                self._micro_batch(host, is_first=index == 0)

    def _micro_batch(self, host: HostInputs, *, is_first: bool) -> None:
        longest = self._bound(host.longest)
        if self.recordings is None:
            block = host.block.to(self.device, non_blocking=True)
            self._backward(device_inputs(block, host.shape, longest=longest))
            return
        block = self._blocks.setdefault(host.shape, torch.empty_like(host.block, device=self.device))
        block.copy_(host.block, non_blocking=True)
        inputs = device_inputs(block, host.shape, longest=longest)
        self.recordings.run((host.shape, longest, is_first), lambda: self._backward(inputs))

    def _finish(self) -> None:
        self._sums[2] = self.optimizer.squares()
        self.ranks.summed(self._sums)
        self._sums[2].sqrt_()
        self.optimizer.update(self._sums[2], is_finite=self._sums.isfinite().all())

    def _batches(self, examples: Sequence[Example], budget: int) -> list[MicroBatch]:
        groups = split([len(e.tokens) for e in examples], budget=budget, ranks=self.ranks.count)[self.ranks.own]
        chosen = [[examples[index] for index in group] for group in groups]
        return [pack(group, multiple=self._multiple(group)) for group in chosen]

    def _multiple(self, examples: Sequence[Example]) -> int:
        if self._recorder is not None:
            return tokens_multiple(sum(len(e.tokens) for e in examples))
        return _FILL if self.device.type == "cuda" else 1

    def _backward(self, inputs: Inputs) -> None:
        """Run a micro-batch forward and backward; add up the losses of answers and of replay."""
        loss, losses = self.packed(inputs)
        loss.backward()
        losses = losses.detach() * inputs.is_target
        replay_loss = (losses * inputs.is_replay).sum()
        self._sums[:2] += torch.stack([losses.sum() - replay_loss, replay_loss])

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

    def _found_budget(self, examples: Sequence[Example]) -> int:
        if self.device.type != "cuda":
            return _CPU_BUDGET
        return self._sure_budget(sum(len(e.tokens) for e in examples)) or self._measured_budget(examples)

    def _sure_budget(self, tokens: int) -> int | None:
        """Tokens that surely fit into memory; None if these are fewer than a whole step has."""
        bound = activation_bound(self.packed.causal.config)
        if bound is None or self.ranks.count > 1 or self.recipe.recompute == "on":
            return None
        budget = min(_LARGEST_BUDGET, bound.tokens(_SURE_SHARE * _free_memory()))
        return budget if budget >= tokens else None

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
            shares = np.full(len(probe.rows), 1 / max(1, len(probe.rows)))
            self._backward(inputs_of(probe, shares=shares, longest=self._longest, device=self.device))
            peaks[len(probe.tokens)] = torch.cuda.max_memory_allocated() - before
        self._free()
        (few, low), (many, high) = min(peaks.items()), max(peaks.items())
        per_token = (high - low) / (many - few) if many > few else low / few
        fitting = int((_ACTIVATION_SHARE * _free_memory() - max(0, low - few * per_token)) / per_token)
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
        if self.recordings is not None:
            self.recordings.clear()
        self.optimizer.drop_gradients()
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


def _free_memory() -> int:
    """Bytes of the GPU that this process could allocate."""
    free: int = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free


def _trained(example: Example) -> int:
    return int(example.is_trained.sum())
