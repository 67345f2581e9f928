"""Kernels for the small operations between the matrix products of a model: norms, gates and rotary embeddings.

Each computes in float32 and rounds where the modules of transformers round.
"""

from typing import Any, Final

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without triton
    triton = None

HAS_TRITON: Final = triton is not None
_GATED: Final = 1024


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Scale each row to a mean square of one, and multiply it by the weight."""
    size = hidden.shape[-1]
    rows = hidden.reshape(-1, size)
    output = torch.empty_like(rows)
    block = triton.next_power_of_2(size)
    warps = min(8, max(1, block // 256))
    _norm[(len(rows),)](rows, weight, output, epsilon, rows.stride(0), size=size, block=block, num_warps=warps)
    return output.view(hidden.shape)


def silu_and_multiply(both: torch.Tensor) -> torch.Tensor:
    """Multiply silu of the first half of each row by the second half."""
    size = both.shape[-1] // 2
    rows = both.reshape(-1, 2 * size)
    output = torch.empty((*both.shape[:-1], size), dtype=both.dtype, device=both.device)
    _gate[(len(rows), triton.cdiv(size, _GATED))](rows, output, size=size, block=_GATED, num_warps=4)
    return output


def rotate(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Apply rotary embeddings to queries and keys of the dimensions row, head, token and size."""
    rows, heads, tokens, size = query.shape
    key_heads = key.shape[1]
    new_query = torch.empty((rows, tokens, heads, size), dtype=query.dtype, device=query.device)
    new_key = torch.empty((rows, tokens, key_heads, size), dtype=key.dtype, device=key.device)
    angle_row = cos.stride(0) if cos.shape[0] > 1 else 0
    _rotate[(tokens, rows)](
        query, key, cos, sin, new_query, new_key, tokens,
        query.stride(0), query.stride(1), query.stride(2), key.stride(0), key.stride(1), key.stride(2),
        angle_row, cos.stride(1),
        heads=heads, key_heads=key_heads, half=size // 2,
        block=triton.next_power_of_2(heads), key_block=triton.next_power_of_2(key_heads), num_warps=1,
    )  # fmt: skip
    return new_query.transpose(1, 2), new_key.transpose(1, 2)


if triton is not None:

    @triton.jit
    def _norm(rows, weight, output, epsilon, stride, size: tl.constexpr, block: tl.constexpr) -> None:
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, block)
        is_there = at < size
        values = tl.load(rows + row * stride + at, mask=is_there, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / size + epsilon)
        normed = (values * scale).to(output.dtype.element_ty).to(tl.float32)
        factor = tl.load(weight + at, mask=is_there, other=0.0).to(tl.float32)
        tl.store(output + row * size + at, (normed * factor).to(output.dtype.element_ty), mask=is_there)

    @triton.jit
    def _gate(rows, output, size: tl.constexpr, block: tl.constexpr) -> None:
        row = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * block + tl.arange(0, block)
        is_there = at < size
        gate = tl.load(rows + row * 2 * size + at, mask=is_there, other=0.0).to(tl.float32)
        up = tl.load(rows + row * 2 * size + size + at, mask=is_there, other=0.0).to(tl.float32)
        opened = (gate / (1.0 + tl.exp(-gate))).to(output.dtype.element_ty).to(tl.float32)
        tl.store(output + row * size + at, (opened * up).to(output.dtype.element_ty), mask=is_there)

    @triton.jit
    def _turn(
        source, target, cos_low, cos_high, sin_low, sin_high, source_head,
        heads: tl.constexpr, half: tl.constexpr, block: tl.constexpr,
    ) -> None:  # fmt: skip
        """Rotate the heads of one token."""
        head = tl.arange(0, block)[:, None]
        at = tl.arange(0, half)[None, :]
        is_head = head < heads
        low = tl.load(source + head * source_head + at, mask=is_head, other=0.0).to(tl.float32)
        high = tl.load(source + head * source_head + half + at, mask=is_head, other=0.0).to(tl.float32)
        new_low = low * cos_low - high * sin_low
        new_high = high * cos_high + low * sin_high
        tl.store(target + head * 2 * half + at, new_low.to(target.dtype.element_ty), mask=is_head)
        tl.store(target + head * 2 * half + half + at, new_high.to(target.dtype.element_ty), mask=is_head)

    @triton.jit(do_not_specialize=["tokens"])
    def _rotate(
        query, key, cos, sin, new_query, new_key, tokens,
        query_row, query_head, query_token, key_row, key_head, key_token, angle_row, angle_token,
        heads: tl.constexpr, key_heads: tl.constexpr, half: tl.constexpr, block: tl.constexpr, key_block: tl.constexpr,
    ) -> None:  # fmt: skip
        """Rotate the queries and the keys of one token."""
        token = tl.program_id(0).to(tl.int64)
        row = tl.program_id(1).to(tl.int64)
        at = tl.arange(0, half)[None, :]
        angle = row * angle_row + token * angle_token + at
        cos_low = tl.load(cos + angle).to(tl.float32)
        cos_high = tl.load(cos + angle + half).to(tl.float32)
        sin_low = tl.load(sin + angle).to(tl.float32)
        sin_high = tl.load(sin + angle + half).to(tl.float32)
        number = row * tokens + token
        _turn(
            query + row * query_row + token * query_token, new_query + number * heads * 2 * half,
            cos_low, cos_high, sin_low, sin_high, query_head, heads, half, block,
        )  # fmt: skip
        _turn(
            key + row * key_row + token * key_token, new_key + number * key_heads * 2 * half,
            cos_low, cos_high, sin_low, sin_high, key_head, key_heads, half, key_block,
        )  # fmt: skip
