"""Triton kernels for the attention of steps and packed prompts, for copying slots, and for small operations.

Prompts are read in one flat row of tokens, which is cut into query blocks. Each block consists of consecutive tokens of
one slot. Its entry in a table contains the index of its first token in the row, the number of its tokens, its slot, and
the position of its first token. Everything is computed in float32 and rounded where the transformers modules round.
"""

from typing import Any, Final, NamedTuple

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch do not include triton
    triton = None

QUERIES: Final = 64
"""The largest number of tokens in a query block."""
_KEYS: Final = 64
_GROUP: Final = 16
"""The smallest number of rows in a matrix product on the device; the queries of a key head fill some of these rows."""
_COPIED: Final = 64
_GATED: Final = 1024
_LOG2_E: Final = 1.4426950408889634


def can_step(*, head_size: int, groups: int) -> bool:
    """Return whether the kernels support a model: its head size is a power of two, and few queries share a key head."""
    return triton is not None and head_size in (32, 64, 128, 256) and groups <= _GROUP


def step_attention(
    query: torch.Tensor, new: tuple[torch.Tensor, torch.Tensor], store: Any, *, scaling: float
) -> torch.Tensor:
    """Store each row's new key and value at its position, and compute attention to everything up to that position."""
    keys, values, positions, is_active = store
    rows, heads, _, size = query.shape
    key_heads = keys.shape[1]
    query, key, value = query[:, :, 0], new[0][:, :, 0], new[1][:, :, 0]
    output = torch.empty((rows, heads, size), dtype=query.dtype, device=query.device)
    _step[(rows, key_heads)](
        query, key, value, keys, values, positions, is_active, output, scaling,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        keys.stride(0), keys.stride(1), output.stride(0), output.stride(1),
        groups=heads // key_heads, size=size, block=_KEYS, group=_GROUP, num_warps=4, num_stages=3,
    )  # fmt: skip
    return output[:, None]


class PackedStore(NamedTuple):
    """The stored keys and values of all slots in one layer, and the table of query blocks."""

    keys: torch.Tensor
    values: torch.Tensor
    blocks: torch.Tensor


def store_packed(key: torch.Tensor, value: torch.Tensor, store: PackedStore) -> None:
    """Store the keys and values of a row of tokens, each in its token's slot at the token's position."""
    key, value = key[0], value[0]
    keys, values, blocks = store
    heads, _, size = key.shape
    _store[(len(blocks), heads)](
        key, value, keys, values, blocks,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1), keys.stride(0), keys.stride(1),
        size=size, queries=QUERIES, num_warps=4,
    )  # fmt: skip


def packed_attention(query: torch.Tensor, store: PackedStore, *, scaling: float) -> torch.Tensor:
    """Compute attention from each token of a flat row to its slot, up to the token's own position."""
    keys, values, blocks = store
    _, heads, tokens, size = query.shape
    query = query[0]
    output = torch.empty((tokens, heads, size), dtype=query.dtype, device=query.device)
    _attend[(len(blocks), heads)](
        query, keys, values, blocks, output, scaling * _LOG2_E,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), output.stride(0), output.stride(1),
        groups=heads // keys.shape[1], size=size, queries=QUERIES, block=_KEYS, num_warps=4, num_stages=2,
    )  # fmt: skip
    return output[None]


def copy_slots(store: torch.Tensor, copies: torch.Tensor, *, longest: int) -> None:
    """Copy the first positions of slots to other slots, in all layers.

    `store` has the shape (part, slot, head, position, size). Each row of `copies` consists of a source, a target
    and a number of positions. No slot may be both a source and a target.
    """
    parts, _, heads, _, size = store.shape
    grid = (len(copies), -(-longest // _COPIED), parts * heads)
    strides = store.stride()
    _copy[grid](store, copies, strides[0], strides[1], strides[2], heads=heads, size=size, block=_COPIED, num_warps=4)


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
    """Multiply the SiLU of the first half of each row by the second half."""
    size = both.shape[-1] // 2
    rows = both.reshape(-1, 2 * size)
    output = torch.empty((*both.shape[:-1], size), dtype=both.dtype, device=both.device)
    _gate[(len(rows), triton.cdiv(size, _GATED))](rows, output, size=size, block=_GATED, num_warps=4)
    return output


def rotate(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Apply rotary embeddings to queries and keys of shape (row, head, token, size)."""
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
        # The new token comes first because it always exists, so that the running maximum starts as a finite number.
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
        # Every query of the block attends to all keys before `shared`, so these keys need no mask.
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
