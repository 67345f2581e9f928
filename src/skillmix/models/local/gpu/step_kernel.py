"""The attention of a step on a GPU: a kernel for rows of different lengths."""

from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without triton
    triton = None

_BLOCK = 64
_GROUP = 16
"""The smallest number of rows of a matrix product on the device; the queries of a key head fill some of them."""


def can_step(*, head_size: int, groups: int, device: str) -> bool:
    """Whether the kernel supports a model: the head size is a power of two, and few queries share a key head."""
    return triton is not None and device == "cuda" and head_size in (32, 64, 128, 256) and groups <= _GROUP


def step_attention(
    query: torch.Tensor, new: tuple[torch.Tensor, torch.Tensor], store: Any, *, scaling: float
) -> torch.Tensor:
    """Store each row's new key and value at its position, and attend to everything up to it."""
    keys, values, positions, is_active = store
    rows, heads, _, size = query.shape
    key_heads = keys.shape[1]
    query, key, value = query[:, :, 0], new[0][:, :, 0], new[1][:, :, 0]
    output = torch.empty((rows, heads, size), dtype=query.dtype, device=query.device)
    _step[(rows, key_heads)](
        query, key, value, keys, values, positions, is_active, output, scaling,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        keys.stride(0), keys.stride(1), output.stride(0), output.stride(1),
        groups=heads // key_heads, size=size, block=_BLOCK, group=_GROUP, num_warps=4, num_stages=3,
    )  # fmt: skip
    return output[:, None]


if triton is not None:

    @triton.jit
    def _step(
        query, new_key, new_value, keys, values, positions, is_active, output, scaling,
        query_row, query_head, key_row, key_head, value_row, value_head, store_row, store_head, output_row, output_head,
        groups: tl.constexpr, size: tl.constexpr, block: tl.constexpr, group: tl.constexpr,
    ) -> None:  # fmt: skip
        """Compute softmax(q k) v for one row and one key head, in one pass over blocks."""
        row = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        if tl.load(is_active + row) == 0:
            return
        position = tl.load(positions + row)
        across = tl.arange(0, size)
        key = tl.load(new_key + row * key_row + head * key_head + across)
        value = tl.load(new_value + row * value_row + head * value_head + across)
        base = row * store_row + head * store_head
        tl.store(keys + base + position * size + across, key)
        tl.store(values + base + position * size + across, value)
        member = tl.arange(0, group)
        pointers = query + row * query_row + (head * groups + member)[:, None] * query_head + across[None, :]
        q = tl.load(pointers, mask=(member < groups)[:, None], other=0.0)
        # The new token comes first: it always exists, so the running maximum starts as a finite number.
        best = tl.sum(q.to(tl.float32) * key[None, :].to(tl.float32), 1) * scaling
        total = tl.full((group,), 1.0, tl.float32)
        sums = tl.zeros((group, size), tl.float32) + value[None, :].to(tl.float32)
        for start in range(0, position, block):
            at = start + tl.arange(0, block)
            is_there = at < position
            where = base + at[:, None] * size + across[None, :]
            k = tl.load(keys + where, mask=is_there[:, None], other=0.0)
            v = tl.load(values + where, mask=is_there[:, None], other=0.0)
            score = tl.dot(q, tl.trans(k)) * scaling
            score = tl.where(is_there[None, :], score, float("-inf"))
            higher = tl.maximum(best, tl.max(score, 1))
            share = tl.exp(score - higher[:, None])
            shrink = tl.exp(best - higher)
            total = total * shrink + tl.sum(share, 1)
            sums = sums * shrink[:, None] + tl.dot(share.to(v.dtype), v)
            best = higher
        result = sums / total[:, None]
        target = output + row * output_row + (head * groups + member)[:, None] * output_head + across[None, :]
        tl.store(target, result.to(output.dtype.element_ty), mask=(member < groups)[:, None])
