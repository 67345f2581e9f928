"""Causal attention inside each example of a micro-batch, never across examples.

On a GPU, PyTorch's flash attention runs over all examples with their bounds; on a CPU, examples of similar length are
padded and computed together. Both are one operator, so compilers and tests see no difference.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch
from transformers import AttentionInterface

from skillmix.errors import UserError

ATTENTION: Final = "skillmix_packed"
"""The name by which transformers finds `attend`."""
_WHOLE: Final = -1
"""Window size of attention to all earlier tokens."""
_SHORT: Final = 128
"""Tokens of an example that a CPU may pad; longer ones keep it busy by themselves."""


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
    """Outputs (tokens, heads, size), and the logarithms of the softmax denominators (heads, tokens)."""
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
    """Gradients of query, key and value."""
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


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    query, key, value, bounds, ctx.longest, ctx.scale, ctx.window = inputs
    ctx.save_for_backward(query, key, value, *output, bounds)


def _backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    gradients = packed_attention_backward(gradient, *ctx.saved_tensors, ctx.longest, ctx.scale, ctx.window)
    return (*gradients, None, None, None, None)


packed_attention.register_autograd(_backward, setup_context=_keep)


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
    """The function that transformers calls: (1, heads, tokens, size) in, (1, tokens, heads, size) out.

    In compiled layers `longest` is a tensor of that length.
    """
    if dropout or softcap:
        # Models with such settings are refused earlier; a model that asks for it without a setting is refused here.
        raise UserError(
            f"{type(module).__name__} asks for attention with dropout or capped scores.",
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
    """(examples, length): the index of each token; padding repeats the last token of its example."""
    is_token: torch.Tensor
    """(examples, length): whether a place is no padding."""
    filled: torch.Tensor
    """The indexes of these places."""
    tokens: torch.Tensor
    """The indexes of all tokens."""


def _groups(bounds: torch.Tensor) -> Iterator[_Group]:
    """Examples whose lengths lie between the same powers of two; a long example is a group by itself.

    No token attends to padding, because it comes last. Its gradients are those of no output: zeros.
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
    """(examples, heads, length, size); key and value heads are repeated for the query heads that share them."""
    padded = tensor.index_select(0, group.places.flatten()).view(*group.places.shape, *tensor.shape[1:]).transpose(1, 2)
    return padded if heads == tensor.shape[1] else padded.repeat_interleave(heads // tensor.shape[1], 1)


def _tokens_of(padded: torch.Tensor, group: _Group) -> torch.Tensor:
    """The tokens of (examples, heads, length, …) as (tokens, heads, …)."""
    return padded.transpose(1, 2).flatten(0, 1).index_select(0, group.filled)


def _mask(group: _Group, window: int, like: torch.Tensor) -> torch.Tensor | None:
    if window == _WHOLE:
        return None
    positions = torch.arange(group.places.shape[1])
    behind = positions[:, None] - positions[None, :]
    return torch.zeros(behind.shape, dtype=like.dtype).masked_fill((behind < 0) | (behind > window), float("-inf"))
