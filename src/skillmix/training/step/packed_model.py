"""A causal language model that computes the loss of a micro-batch without padding.

A pass that is repeated can be recorded as a CUDA graph, which one launch runs. A small model's step consists of
thousands of short kernels, which take longer to launch than to run. A graph reads the same memory each time, so each
shape of a micro-batch needs a separate graph, and micro-batches are padded to a few shapes.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch._functorch.config as functorch_config
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from skillmix.errors import UserError
from skillmix.models.local.gpu.graph_pool import GraphPool, NotCaptured
from skillmix.runs.progress import say
from skillmix.training.data.batches import MicroBatch
from skillmix.training.step.optimizer import Optimizer

_LEAST_STEP: Final = 512
Work = Callable[[], None]
"""A function that launches device work, which must read and write the same memory each time."""


class Shape(NamedTuple):
    """The sizes of a micro-batch on the device, including padding."""

    tokens: int
    segments: int
    """The number of examples, including padding and empty examples."""
    rows: int
    """The number of targets, including targets of weight 0."""


class Inputs(NamedTuple):
    """A micro-batch as tensors, in host memory or on the device."""

    tokens: torch.Tensor
    positions: torch.Tensor
    bounds: torch.Tensor
    rows: torch.Tensor
    targets: torch.Tensor
    shares: torch.Tensor
    is_replay: torch.Tensor
    is_target: torch.Tensor
    """Whether each row has a real target rather than padding."""
    longest: int

    @property
    def shape(self) -> Shape:
        """The sizes of the micro-batch, including padding."""
        return Shape(len(self.tokens), len(self.bounds) - 1, len(self.rows))

    def sent(self, device: torch.device, *, longest: int, memory: "Inputs | None" = None) -> "Inputs":
        """Return a copy on the device; if `memory` is given, overwrite this earlier copy of the same shape."""
        *tensors, _ = self
        if device.type == "cuda":  # from pinned memory, a copy need not wait for pending work on the device
            tensors = [tensor.pin_memory() for tensor in tensors]
        if memory is None:
            copies = [tensor.to(device, non_blocking=True) for tensor in tensors]
        else:
            copies = [own.copy_(new, non_blocking=True) for own, new in zip(memory, tensors, strict=False)]
        return Inputs._make([*copies, longest])


def inputs_of(batch: MicroBatch, *, shares: np.ndarray, shape: Shape | None = None) -> Inputs:
    """Convert a micro-batch to tensors in host memory, padded to a shape with empty segments and rows of weight 0.

    A batch without targets has one row of weight 0.
    """
    count = len(batch.rows)
    shape = shape or Shape(len(batch.tokens), len(batch.bounds) - 1, max(1, count))
    # Padding rows use different tokens, because many additions to the gradient of a single token would wait for each
    # other.
    spread = np.arange(shape.rows - count) % shape.tokens
    zeros = np.zeros(shape.rows - count, dtype=np.int64)
    empty = np.full(shape.segments + 1 - len(batch.bounds), batch.bounds[-1])
    return Inputs(
        tokens=torch.tensor(batch.tokens),
        positions=torch.tensor(batch.positions),
        bounds=torch.tensor(np.concatenate((batch.bounds, empty)), dtype=torch.int32),
        rows=torch.tensor(np.concatenate((batch.rows, spread))),
        targets=torch.tensor(np.concatenate((batch.targets, zeros))),
        shares=torch.tensor(np.concatenate((shares, zeros)), dtype=torch.float32),
        is_replay=torch.tensor(np.concatenate((batch.is_replay, zeros)), dtype=torch.bool),
        is_target=torch.arange(shape.rows) < count,
        longest=batch.longest,
    )


def ladder_step(number: int, *, per_octave: int = 8) -> int:
    """Return the step by which sizes near a number are rounded up, so that they take few values per octave.

    >>> [ladder_step(number, per_octave=8) for number in (100, 4096, 9000, 17000)]
    [512, 512, 1024, 2048]
    """
    octave = 1 << max(0, (max(1, number) - 1).bit_length() - 1)
    return max(_LEAST_STEP, octave // per_octave)


def padded_shape(batch: MicroBatch) -> Shape:
    """Round up a micro-batch's shape, so that similar micro-batches have the same shape.

    The number of target rows is rounded up more coarsely than the number of tokens, because a row costs far less than a
    token.
    """
    tokens, segments, rows = len(batch.tokens), len(batch.bounds) - 1, max(1, len(batch.rows))
    step = ladder_step(rows, per_octave=2)
    return Shape(tokens, 1 << segments.bit_length(), max(rows, min(tokens, -(-rows // step) * step)))


class _Recording(NamedTuple):
    replay: Work
    touched: frozenset[str]
    """The names of the parameters that receive a gradient."""


class Recordings:
    """Records device work by key and replays it; work with a new key is run, and recorded when the key repeats."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.recorded: dict[Hashable, _Recording] = {}
        self.failed: set[Hashable] = set()
        """Keys of work that could not be recorded."""
        self._runs: Counter[Hashable] = Counter()
        self._inputs: dict[Shape, Inputs] = {}
        """Device memory for the inputs of recorded passes."""

    def inputs(self, host: Inputs, *, longest: int) -> Inputs:
        """Copy the inputs of a pass to the device, into the memory that recorded passes of this shape read."""
        inputs = host.sent(self.device, longest=longest, memory=self._inputs.get(host.shape))
        return self._inputs.setdefault(host.shape, inputs)._replace(longest=longest)

    def run(self, key: Hashable, work: Work, optimizer: Optimizer) -> None:
        """Replay the work if it is recorded, otherwise run it."""
        self._runs[key] += 1
        if self._runs[key] > 1 and key not in self.recorded and key not in self.failed:
            before = set(optimizer.untouched)
            replay = self.capture(work)
            touched, optimizer.untouched = frozenset(before - optimizer.untouched), before
            if replay is None:
                optimizer.drop_gradients()
                self.failed.add(key)
            else:
                self.recorded[key] = _Recording(replay, touched)
        if key in self.recorded:
            self.recorded[key].replay()
            optimizer.untouched -= self.recorded[key].touched
        else:
            work()

    def capture(self, work: Work) -> Work | None:
        """Record work as a graph without running it, and return its replay function; None if that is impossible."""
        try:
            replay: Work = self._graphs.capture(work).replay
        except (NotCaptured, torch.OutOfMemoryError) as error:
            if not self.failed:
                say(f"a training pass cannot be recorded as a CUDA graph, so it runs more slowly: {error}")
            return None
        return replay

    def clear(self) -> None:
        """Release all recordings and their memory."""
        self.recorded.clear()
        self._graphs.renew()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run on the stream of the recordings, so that libraries allocate their workspaces before a recording."""
        outer, stream = torch.cuda.current_stream(), self._graphs.stream
        stream.wait_stream(outer)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            outer.wait_stream(stream)

    @cached_property
    def _graphs(self) -> GraphPool:
        """The memory pool that all graphs share, because they never run at the same time."""
        return GraphPool(torch.cuda.Stream(self.device))


ATTENTION: Final = "skillmix_packed"
"""The name by which transformers finds `attend`."""
_WHOLE: Final = -1
"""The window size for attention to all earlier tokens."""
_SHORT: Final = 128
"""The longest example that is padded on a CPU, in tokens; a longer example keeps the CPU busy by itself."""


@torch.library.custom_op("skillmix::packed_attention", mutates_args=())  # type: ignore[untyped-decorator]
def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    scale: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs of shape (tokens, heads, size) and logarithms of softmax denominators, (heads, tokens)."""
    if query.is_cuda:
        result = torch.ops.aten._flash_attention_forward(
            query, key, value, bounds, bounds, longest, longest, 0.0, True, False,
            scale=scale, window_size_left=window, window_size_right=0,
        )  # fmt: skip
        return result[0], result[1]
    outputs, sums = torch.empty_like(query), query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)
    for group in _groups(bounds):
        pieces = (_padded(tensor, group, heads=query.shape[1]) for tensor in (query, key, value))
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *pieces, 0.0, window == _WHOLE, attn_mask=_mask(group, window, query), scale=scale
        )
        outputs[group.tokens] = _tokens_of(out, group)
        sums[:, group.tokens] = _tokens_of(log_sum, group).T.to(torch.float32)
    return outputs, sums


@packed_attention.register_fake  # type: ignore[untyped-decorator]
def _(query: Any, key: Any, value: Any, bounds: Any, longest: int, scale: float, window: int) -> Any:
    return torch.empty_like(query), query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)


@torch.library.custom_op("skillmix::packed_attention_backward", mutates_args=())  # type: ignore[untyped-decorator]
def packed_attention_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    outputs: torch.Tensor,
    sums: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    scale: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value."""
    if query.is_cuda:
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=query.device)
        result = torch.ops.aten._flash_attention_backward(
            gradient, query, key, value, outputs, sums, bounds, bounds, longest, longest, 0.0, True,
            no_dropout, query.new_empty(0), scale=scale, window_size_left=window, window_size_right=0,
        )  # fmt: skip
        return result[0], result[1], result[2]
    gradients = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    heads = query.shape[1]
    for group in _groups(bounds):
        padded = [_padded(tensor, group, heads=heads) for tensor in (gradient, query, key, value, outputs)]
        padded[0] = padded[0] * group.is_token[:, None, :, None]
        log_sums = sums.T[group.places].transpose(1, 2)
        pieces = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *padded, log_sums.to(torch.float64 if query.dtype == torch.float64 else torch.float32),
            0.0, window == _WHOLE, attn_mask=_mask(group, window, query), scale=scale,
        )  # fmt: skip
        for target, piece in zip(gradients, pieces, strict=True):
            own = target.shape[1]
            summed = piece if own == heads else piece.unflatten(1, (own, heads // own)).sum(2)
            target[group.tokens] = _tokens_of(summed, group)
    return gradients


@packed_attention_backward.register_fake  # type: ignore[untyped-decorator]
def _(gradient: Any, query: Any, key: Any, value: Any, *_: Any) -> Any:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    """Save the tensors that the attention's backward pass needs."""
    query, key, value, bounds, ctx.longest, ctx.scale, ctx.window = inputs
    ctx.save_for_backward(query, key, value, *output, bounds)


def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of the attention's arguments."""
    gradients = packed_attention_backward(gradient, *ctx.saved_tensors, ctx.longest, ctx.scale, ctx.window)
    return (*gradients, None, None, None, None)


packed_attention.register_autograd(backward, setup_context=keep_for_backward)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    bounds: torch.Tensor,
    longest: int | torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention for transformers: (1, heads, tokens, size) in, (1, tokens, heads, size) out.

    In compiled layers, `longest` is a tensor that has this number of rows.
    """
    if dropout or softcap:
        # Models with such settings are rejected earlier. A model that requests dropout or capping without a setting is
        # rejected here.
        raise UserError(
            f"{type(module).__name__} requests attention with dropout or capped scores.",
            hint="Packed conversations are trained without either.",
        )
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    longest = longest.shape[0] if isinstance(longest, torch.Tensor) else longest
    window = _WHOLE if sliding_window is None or sliding_window >= longest else sliding_window - 1
    outputs, _sums = packed_attention(query, key, value, bounds, longest, scaling or query.shape[-1] ** -0.5, window)
    return outputs[None], None


AttentionInterface.register(ATTENTION, attend)


class _Group(NamedTuple):
    """Examples that are padded to the longest of them."""

    places: torch.Tensor
    """(examples, length): the index of each token; padding repeats its example's last token."""
    is_token: torch.Tensor
    """(examples, length): whether each place contains a token rather than padding."""
    filled: torch.Tensor
    """The indexes of places with tokens."""
    tokens: torch.Tensor
    """The indexes of all tokens in the group's examples."""


def _groups(bounds: torch.Tensor) -> Iterator[_Group]:
    """Group examples whose lengths are between the same powers of two; a long example forms a group by itself.

    No token attends to padding, because padding comes last. The outputs of padding are unused, so its gradients are
    zero.
    """
    sizes = bounds.diff().tolist()
    starts = bounds.tolist()
    classes: dict[int, list[int]] = {}
    for number, size in enumerate(sizes):
        if size:
            classes.setdefault(size.bit_length() if size <= _SHORT else -number, []).append(number)
    for numbers in classes.values():
        first = torch.tensor([starts[number] for number in numbers])[:, None]
        last = torch.tensor([starts[number] + sizes[number] - 1 for number in numbers])[:, None]
        places = first + torch.arange(max(sizes[number] for number in numbers))
        is_token = places <= last
        yield _Group(places.clamp(max=last), is_token, is_token.flatten().nonzero()[:, 0], places[is_token])


def _padded(tensor: torch.Tensor, group: _Group, *, heads: int) -> torch.Tensor:
    """Return (examples, heads, length, size); key and value heads are repeated for the query heads that share them."""
    padded = tensor.index_select(0, group.places.flatten()).view(*group.places.shape, *tensor.shape[1:]).transpose(1, 2)
    return padded if heads == tensor.shape[1] else padded.repeat_interleave(heads // tensor.shape[1], 1)


def _tokens_of(padded: torch.Tensor, group: _Group) -> torch.Tensor:
    """Return the tokens of (examples, heads, length, …) as (tokens, heads, …)."""
    return padded.transpose(1, 2).flatten(0, 1).index_select(0, group.filled)


def _mask(group: _Group, window: int, like: torch.Tensor) -> torch.Tensor | None:
    if window == _WHOLE:
        return None
    positions = torch.arange(group.places.shape[1])
    behind = positions[:, None] - positions[None, :]
    return torch.zeros(behind.shape, dtype=like.dtype).masked_fill((behind < 0) | (behind > window), float("-inf"))


LOGITS: Final = 1 << 28
"""The largest number of logits in a chunk."""
_LOGITS_ON_CPU: Final = 1 << 22
"""The largest number of logits in a chunk on a CPU, where the system would reallocate a larger block each time."""


class _LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """Compute the weighted sum of the losses, and the loss of each row.

    The forward pass also computes the gradient, because the logits of a chunk exist only then.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, shares: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the result of `linear_cross_entropy`, and the gradients."""
        for_hidden, for_weight = ctx.needs_input_grad[:2]
        losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        hidden_gradient = torch.empty_like(hidden) if for_hidden else None
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if for_weight else None
        chunk_logits = LOGITS if hidden.is_cuda else min(LOGITS, _LOGITS_ON_CPU)
        rows = max(1, chunk_logits // len(weight))
        chunk_losses = _chunk_function(hidden.is_cuda)
        for part in (slice(start, start + rows) for start in range(0, len(hidden), rows)):
            # Use copies, because the compiler would recompile for tensors that begin inside other tensors.
            chunk = targets[part].clone(), shares[part].clone()
            losses[part], gradient = chunk_losses(hidden[part] @ weight.T, *chunk)
            if hidden_gradient is not None:
                torch.mm(gradient, weight, out=hidden_gradient[part])
            if weight_gradient is not None:
                weight_gradient += gradient.T @ hidden[part]
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(losses)
        return (losses * shares).sum(), losses

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
        """Scale the gradients that the forward pass computed."""
        hidden, weight = ctx.saved_tensors
        return (
            None if hidden is None else hidden * gradient.to(hidden.dtype),
            None if weight is None else (weight * gradient).to(ctx.weight_dtype),
            None,
            None,
        )


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, shares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of shares · losses, and the losses; each row's hidden state predicts the token in `targets`."""
    if not torch.is_grad_enabled():
        hidden, weight = hidden.detach(), weight.detach()
    result: tuple[torch.Tensor, torch.Tensor] = _LinearCrossEntropy.apply(hidden, weight, targets, shares)
    return result


def _losses_and_gradient(
    logits: torch.Tensor, targets: torch.Tensor, shares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = logits.float()
    sums = torch.logsumexp(scores, dim=-1)
    losses = sums - scores.gather(1, targets[:, None])[:, 0]
    is_target = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    probabilities = torch.exp(scores - sums[:, None])
    gradient = torch.where(is_target, probabilities - 1, probabilities) * shares[:, None]
    return losses, gradient.to(logits.dtype)


@cache
def _chunk_function(is_compiled: bool) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    compiled: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    compiled = torch.compile(_losses_and_gradient, dynamic=True) if is_compiled else _losses_and_gradient
    return compiled


_MARK: Final = "is_compiled_by_skillmix"


def compile_layers(layers: Any, *, is_lean: bool) -> None:
    """Compile the layers' forward pass; the layers share their code, so one compilation serves all of them.

    Lean layers keep only activations that require a matrix product to recompute, which saves a third of the memory for
    a few percent more time. Without gradients, a layer runs uncompiled, because a second compilation would take longer
    than validation saves.
    """
    functorch_config.ban_recompute_materialized_backward = not is_lean

    def with_any_length(forward: Callable[..., Any]) -> Callable[..., Any]:
        compiled = torch.compile(forward)

        def call(hidden: torch.Tensor, **arguments: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(hidden, **arguments)
            if not hidden.requires_grad:  # avoids a separate compilation for the first layer after frozen embeddings
                hidden = hidden.detach().requires_grad_()
            # Mark the sizes that vary, so that the compiler does not specialize on the first ones.
            cos, sin = arguments["position_embeddings"]
            for tensor in (hidden, cos, sin, arguments["position_ids"]):
                torch._dynamo.mark_dynamic(tensor, 1)
            # A number would become a constant of the compiled code, whereas a tensor's size may vary.
            arguments["longest"] = torch.empty((arguments["longest"], 0), device=hidden.device)
            for tensor in (arguments["bounds"], arguments["longest"]):
                torch._dynamo.mark_dynamic(tensor, 0)
            return compiled(hidden, **arguments)

        setattr(call, _MARK, True)
        return call

    for layer in layers:
        layer.forward = with_any_length(layer.forward)


def set_recompute(layers: Any, *, is_on: bool) -> None:
    """If `is_on`, keep only each layer's input for the backward pass; otherwise keep all activations."""
    for layer in layers:
        layer.gradient_checkpointing = is_on
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)


class PackedModel(nn.Module):  # type: ignore[misc]
    """A transformers model, with or without a PEFT adapter, that runs on packed tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        check_architecture(self.causal)
        self._before = self.causal.config._attn_implementation, self.causal.config.use_cache
        self.causal.set_attn_implementation(ATTENTION)
        self.causal.config.use_cache = False

    def release(self) -> None:
        """Restore the model's attention, cache and layers, so that the model can generate again."""
        for layer in self.layers:
            # A compiled layer refers to itself, which would keep its weights in memory.
            if getattr(vars(layer).get("forward"), _MARK, False):
                del layer.forward
        attention, self.causal.config.use_cache = self._before
        self.causal.set_attn_implementation(attention)
        self.model.eval()

    @property
    def causal(self) -> Any:
        """The transformers model inside the adapter's wrapper."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def layers(self) -> Any:
        """The decoder layers of the transformers model."""
        return self.causal.base_model.layers

    def hidden_states(self, inputs: Inputs) -> torch.Tensor:
        """Return the last hidden state of every token, (tokens, size)."""
        output = self.causal.base_model(
            input_ids=inputs.tokens[None],
            position_ids=inputs.positions[None],
            bounds=inputs.bounds,
            longest=inputs.longest,
            use_cache=False,
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def forward(self, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weighted loss, and the loss of each trained token."""
        hidden = self.hidden_states(inputs).index_select(0, inputs.rows)
        head = self.causal.get_output_embeddings()
        return linear_cross_entropy(hidden, head.weight, inputs.targets, inputs.shares)


def check_architecture(causal: Any) -> None:
    """Reject a transformers model whose layers or loss are not computed as training assumes.

    Layers must mix tokens by plain attention alone, and the output layer must be a plain matrix.
    """
    config = causal.config.get_text_config()
    head = causal.get_output_embeddings()
    other_layers = sorted({*(getattr(config, "layer_types", None) or ())} - {"full_attention", "sliding_attention"})
    changed_by = [name for name in _LOGIT_SETTINGS if getattr(config, name, None) not in (None, 1, 1.0)]
    faults = {
        "it has a special attention, which cannot keep packed conversations apart": not getattr(
            causal, "_supports_attention_backend", False
        ),
        f"it has layers of the kind {', '.join(other_layers)}, which mix packed conversations": bool(other_layers),
        "it has convolutions, which mix packed conversations": any(
            isinstance(module, nn.Conv1d) for module in causal.modules()
        ),
        "its attention has sinks": any(name.endswith("sinks") for name, _ in causal.named_parameters()),
        "its attention has keys and values of different sizes": bool(getattr(config, "kv_lora_rank", None)),
        f"it changes its logits by {', '.join(changed_by)}": bool(changed_by),
        "it has attention dropout": bool(getattr(config, "attention_dropout", 0)),
        "its output layer is not a plain matrix": type(head) is not nn.Linear or head.bias is not None,
    }
    fault = next((fault for fault, is_there in faults.items() if is_there), None)
    if fault:
        raise UserError(
            f"{type(causal).__name__} cannot be trained: {fault}.",
            hint="Choose a base with plain attention in every layer, such as a Llama, a Mistral or a Qwen, and leave "
            "the output layer out of an adapter.",
        )


_LOGIT_SETTINGS: Final = ("final_logit_softcapping", "attn_logit_softcapping", "logit_scale", "logits_scaling")
