"""Causal attention inside each example of a micro-batch, never across examples.

On a GPU, PyTorch's flash attention runs over all examples with their bounds; on a CPU, each example is computed by
itself. Both are one operator, so compilers and tests see no difference.
"""

from itertools import pairwise
from typing import Any, Final

import torch
from transformers import AttentionInterface

from skillmix.errors import UserError

ATTENTION: Final = "skillmix_packed"
"""The name by which transformers finds `attend`."""
_WHOLE: Final = -1
"""Window size of attention to all earlier tokens."""


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
    for part in _parts(bounds):
        pieces = (_piece(tensor, part, heads=query.shape[1]) for tensor in (query, key, value))
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *pieces, 0.0, window == _WHOLE, attn_mask=_mask(part, window, query), scale=scale
        )
        outputs[part], sums[:, part] = out[0].transpose(0, 1), log_sum[0].to(torch.float32)
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
    for part in _parts(bounds):
        whole = (_piece(tensor, part, heads=heads) for tensor in (gradient, query, key, value, outputs))
        pieces = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *whole, sums[None, :, part].to(torch.float64 if query.dtype == torch.float64 else torch.float32),
            0.0, window == _WHOLE, attn_mask=_mask(part, window, query), scale=scale,
        )  # fmt: skip
        for target, piece in zip(gradients, pieces, strict=True):
            own = target.shape[1]
            target[part] = piece[0].reshape(own, heads // own, -1, piece.shape[-1]).sum(1).transpose(0, 1)
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


def _parts(bounds: torch.Tensor) -> list[slice]:
    return [slice(start, end) for start, end in pairwise(bounds.tolist()) if start < end]


def _piece(tensor: torch.Tensor, part: slice, *, heads: int) -> torch.Tensor:
    """One example as (1, heads, tokens, size); key and value heads are repeated for the query heads that share them."""
    piece = tensor[part].transpose(0, 1)
    return piece.repeat_interleave(heads // piece.shape[0], 0)[None]


def _mask(part: slice, window: int, like: torch.Tensor) -> torch.Tensor | None:
    if window == _WHOLE:
        return None
    positions = torch.arange(part.stop - part.start)
    behind = positions[:, None] - positions[None, :]
    return torch.zeros(behind.shape, dtype=like.dtype).masked_fill((behind < 0) | (behind > window), float("-inf"))
