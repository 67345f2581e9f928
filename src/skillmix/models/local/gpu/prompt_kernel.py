"""Kernels that read the prompts of many slots in one flat row of tokens, and that copy the beginnings of slots.

A row of tokens is cut into query blocks. Each block holds consecutive tokens of one slot and has an entry in a table:
the index of its first token in the row, the number of its tokens, its slot, and the position of its first token. An
entry with no tokens costs almost nothing, so the table has a fixed size and the kernels can be captured.
"""

from typing import Final, NamedTuple

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without triton
    triton = None

QUERIES: Final = 64
"""The largest number of tokens of a query block."""
FIELDS: Final = 4
"""Numbers of a table entry: index of the first token, number of tokens, slot, position of the first token."""
_KEYS: Final = 64
_COPIED: Final = 64
_LOG2_E: Final = 1.4426950408889634


class PackedStore(NamedTuple):
    """The stored keys and values of all slots in one layer, and the table of query blocks."""

    keys: torch.Tensor
    values: torch.Tensor
    blocks: torch.Tensor


def store_packed(key: torch.Tensor, value: torch.Tensor, store: PackedStore) -> None:
    """Store the keys and values of a row of tokens, each in its slot at its position."""
    key, value = key[0], value[0]
    keys, values, blocks = store
    heads, _, size = key.shape
    _store[(len(blocks), heads)](
        key, value, keys, values, blocks,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1), keys.stride(0), keys.stride(1),
        size=size, queries=QUERIES, num_warps=4,
    )  # fmt: skip


def packed_attention(query: torch.Tensor, store: PackedStore, *, scaling: float) -> torch.Tensor:
    """Attend from each token of a row to its slot, up to the token's own position; padding gives zeros."""
    keys, values, blocks = store
    _, heads, tokens, size = query.shape
    query = query[0]
    output = torch.zeros((tokens, heads, size), dtype=query.dtype, device=query.device)
    _attend[(len(blocks), heads)](
        query, keys, values, blocks, output, scaling * _LOG2_E,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), output.stride(0), output.stride(1),
        groups=heads // keys.shape[1], size=size, queries=QUERIES, block=_KEYS, num_warps=4, num_stages=2,
    )  # fmt: skip
    return output[None]


def copy_slots(store: torch.Tensor, copies: torch.Tensor, *, longest: int) -> None:
    """Copy the first positions of some slots to others, in all layers.

    `store` has the dimensions part, slot, head, position and size. Each row of `copies` has a source, a target and a
    number of positions. No slot may be both a source and a target.
    """
    parts, _, heads, _, size = store.shape
    grid = (len(copies), -(-longest // _COPIED), parts * heads)
    strides = store.stride()
    _copy[grid](store, copies, strides[0], strides[1], strides[2], heads=heads, size=size, block=_COPIED, num_warps=4)


if triton is not None:

    @triton.jit
    def _store(
        key, value, keys, values, blocks,
        key_head, key_token, value_head, value_token, store_slot, store_head,
        size: tl.constexpr, queries: tl.constexpr,
    ) -> None:  # fmt: skip
        """Store the tokens of one query block for one key head."""
        entry = blocks + tl.program_id(0) * 4
        head = tl.program_id(1)
        count = tl.load(entry + 1)
        if count == 0:
            return
        first_token = tl.load(entry).to(tl.int64)
        slot = tl.load(entry + 2).to(tl.int64)
        first = tl.load(entry + 3)
        member = tl.arange(0, queries)
        across = tl.arange(0, size)
        is_token = (member < count)[:, None]
        token = (first_token + member)[:, None]
        target = slot * store_slot + head * store_head + (first + member)[:, None] * size + across[None, :]
        k = tl.load(key + head * key_head + token * key_token + across[None, :], mask=is_token)
        v = tl.load(value + head * value_head + token * value_token + across[None, :], mask=is_token)
        tl.store(keys + target, k, mask=is_token)
        tl.store(values + target, v, mask=is_token)

    @triton.jit
    def _attend(
        query, keys, values, blocks, output, scaling,
        query_head, query_token, store_slot, store_head, output_token, output_head,
        groups: tl.constexpr, size: tl.constexpr, queries: tl.constexpr, block: tl.constexpr,
    ) -> None:  # fmt: skip
        """Compute softmax(q k) v for one query block and one head, in one pass over blocks of keys."""
        entry = blocks + tl.program_id(0) * 4
        head = tl.program_id(1)
        count = tl.load(entry + 1)
        if count == 0:
            return
        first_token = tl.load(entry).to(tl.int64)
        slot = tl.load(entry + 2).to(tl.int64)
        first = tl.load(entry + 3)
        member = tl.arange(0, queries)
        across = tl.arange(0, size)
        is_token = (member < count)[:, None]
        token = (first_token + member)[:, None]
        q = tl.load(query + head * query_head + token * query_token + across[None, :], mask=is_token, other=0.0)
        base = slot * store_slot + (head // groups) * store_head
        best = tl.full((queries,), float("-inf"), tl.float32)
        total = tl.zeros((queries,), tl.float32)
        sums = tl.zeros((queries, size), tl.float32)
        # Every query of the block attends to all keys before `shared`, so these need no mask.
        shared = (first + 1) // block * block
        for start in range(0, shared, block):
            at = start + tl.arange(0, block)
            where = base + at[:, None] * size + across[None, :]
            score = tl.dot(q, tl.trans(tl.load(keys + where))) * scaling
            higher = tl.maximum(best, tl.max(score, 1))
            share = tl.exp2(score - higher[:, None])
            shrink = tl.exp2(best - higher)
            total = total * shrink + tl.sum(share, 1)
            v = tl.load(values + where)
            sums = sums * shrink[:, None] + tl.dot(share.to(v.dtype), v)
            best = higher
        # Every query attends to the first key of its slot, so no maximum is infinite after the first block.
        end = first + count
        for start in range(shared, end, block):
            at = start + tl.arange(0, block)
            is_there = (at < end)[:, None]
            where = base + at[:, None] * size + across[None, :]
            score = tl.dot(q, tl.trans(tl.load(keys + where, mask=is_there, other=0.0))) * scaling
            score = tl.where(at[None, :] <= (first + member)[:, None], score, float("-inf"))
            higher = tl.maximum(best, tl.max(score, 1))
            share = tl.exp2(score - higher[:, None])
            shrink = tl.exp2(best - higher)
            total = total * shrink + tl.sum(share, 1)
            v = tl.load(values + where, mask=is_there, other=0.0)
            sums = sums * shrink[:, None] + tl.dot(share.to(v.dtype), v)
            best = higher
        target = output + token * output_token + head * output_head + across[None, :]
        tl.store(target, (sums / total[:, None]).to(output.dtype.element_ty), mask=is_token)

    @triton.jit
    def _copy(
        store, copies, store_part, store_slot, store_head,
        heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr,
    ) -> None:  # fmt: skip
        """Copy some positions of one slot to another, for one part and one head."""
        entry = copies + tl.program_id(0) * 3
        length = tl.load(entry + 2)
        at = tl.program_id(1) * block + tl.arange(0, block)
        if tl.program_id(1) * block >= length:
            return
        part = (tl.program_id(2) // heads).to(tl.int64)
        base = store + part * store_part + (tl.program_id(2) % heads) * store_head
        where = at[:, None] * size + tl.arange(0, size)[None, :]
        is_copied = (at < length)[:, None]
        row = tl.load(base + tl.load(entry) * store_slot + where, mask=is_copied)
        tl.store(base + tl.load(entry + 1) * store_slot + where, row, mask=is_copied)
