"""The key-value cache of a CPU, for batches that mix prefill tokens with rows that write.

A batch is one flat sequence: first one token for each row that writes, then pieces of prompts. Matrix products treat
all tokens alike. Attention treats them separately, so that the result for a row depends on that row alone, bit for bit.
Each piece of a prompt is computed alone, in a shape that depends only on its position and its length. Plain attention
over rows that write would cover as many positions as the longest row has, and a processor rounds differently when that
number changes. So the keys of every row are cut into blocks of one size, each block is computed alone, in a constant
shape, and the blocks of a row are added from first to last. Blocks after the end of a row add exact zeros, so their
number does not matter.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

GRAIN: Final = 16
"""Tokens of a piece. Pieces start at multiples of it, so a whole piece has the same bits whichever request reads it."""
_BLOCK: Final = 128
_GAP: Final = 8
"""The largest gap in slots from one row to the next: a call takes as long as the attention of a few rows."""


class PromptPiece(NamedTuple):
    """Up to `GRAIN` tokens of a prompt."""

    slot: int
    first: int
    """The position of the first token."""
    length: int


class BlockPlan(NamedTuple):
    """The positions of its blocks that each row attends to; made once per step and used by every layer."""

    mask: torch.Tensor
    is_beyond: torch.Tensor
    """Whether a block lies after the end of its row."""


class _Run(NamedTuple):
    """Rows that write in neighboring slots; slots between them are computed, but their results are unused."""

    first_slot: int
    length: int
    row_of: torch.Tensor
    """The row of each slot; the first row for a slot without one."""
    rows: torch.Tensor
    places: torch.Tensor
    """The slot of each row, from the first slot on."""
    plan: BlockPlan


class _Layout(NamedTuple):
    """The layout of a batch's tokens; made once per batch and used by every layer."""

    slots: torch.Tensor
    positions: torch.Tensor
    runs: list[_Run]
    rows: int
    pieces: Sequence[PromptPiece]


class CpuCache:
    """A cache with the interface of transformers; every slot holds the tokens of one conversation."""

    is_compileable = False

    def __init__(self, shape: Any, *, slots: int, length: int) -> None:
        size = (slots, shape.heads, -(-length // _BLOCK) * _BLOCK, shape.head_size)
        # memory from numpy is not touched before it is written to
        self.keys = [torch.from_numpy(np.zeros(size, dtype=np.float32)) for _ in range(shape.layers)]
        self.values = [torch.from_numpy(np.zeros(size, dtype=np.float32)) for _ in range(shape.layers)]
        self._heads = shape.heads
        self._layout: _Layout | None = None

    def lay_out(self, slots: Sequence[int], positions: Sequence[int], pieces: Sequence[PromptPiece]) -> None:
        """Announce the next batch: one token for each of these slots, in ascending order, and then these pieces."""
        of_pieces = [(piece.slot, piece.first + n) for piece in pieces for n in range(piece.length)]
        self._layout = _Layout(
            torch.tensor([*slots, *(slot for slot, _ in of_pieces)]),
            torch.tensor([*positions, *(position for _, position in of_pieces)]),
            self._runs(slots, positions),
            len(slots),
            pieces,
        )

    def _runs(self, slots: Sequence[int], positions: Sequence[int]) -> list[_Run]:
        if not slots:
            return []
        runs = []
        bounds = [0, *(n for n in range(1, len(slots)) if slots[n] - slots[n - 1] > _GAP), len(slots)]
        for start, end in pairwise(bounds):
            rows = torch.arange(start, end)
            places = torch.tensor(slots[start:end]) - slots[start]
            row_of, position_of = places.new_full((2, int(places[-1]) + 1), start)
            position_of.zero_()
            row_of[places], position_of[places] = rows, torch.tensor(positions[start:end])
            plan = plan_blocks(position_of, key_heads=self._heads)
            runs.append(_Run(slots[start], len(row_of), row_of, rows, places, plan))
        return runs

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Store the new keys and values of a layer; padding tokens of the batch are dropped."""
        layout = self._layout
        assert layout is not None
        stored = self.keys[layer_idx], self.values[layer_idx]
        for store, new in zip(stored, (keys, values), strict=True):
            store[layout.slots, :, layout.positions] = new[0, :, : len(layout.slots)].transpose(0, 1)
        return keys, _FlatKeys(*stored, layout)

    def copy(self, source: int, target: int, *, length: int) -> None:
        """Copy the first positions of a slot to another."""
        for store in (*self.keys, *self.values):
            store[target, :, :length] = store[source, :, :length]

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """For models that number positions themselves; the decoder always gives positions."""
        return 0


class _FlatKeys(NamedTuple):
    """The stored keys and values of a layer, with the layout of the batch."""

    keys: torch.Tensor
    values: torch.Tensor
    layout: _Layout

    def attend(self, query: torch.Tensor, key: Any, *, scaling: float) -> torch.Tensor:
        """Attend with every token of a batch to the tokens before it in its own slot."""
        keys, values, layout = self
        heads, tokens, size = query.shape[1:]
        output = query.new_zeros(1, tokens, heads, size)
        for run in layout.runs:
            slots = slice(run.first_slot, run.first_slot + run.length)
            own = query[0].index_select(1, run.row_of).transpose(0, 1)[:, :, None]
            attended = block_attention(own, keys[slots], values[slots], run.plan, scaling=scaling)
            output[0, run.rows] = attended[run.places, 0]
        first = layout.rows
        for piece in layout.pieces:
            last, seen = first + piece.length, piece.first + piece.length
            grouped = query[:, :, first:last].reshape(1, keys.shape[1], -1, size)
            own_keys, own_values = (stored[piece.slot, None, :, :seen] for stored in (keys, values))
            mask = _mask(piece.first, piece.length, heads // keys.shape[1])
            attended = scaled_dot_product_attention(grouped, own_keys, own_values, attn_mask=mask, scale=scaling)
            output[0, first:last] = attended.view(heads, piece.length, size).transpose(0, 1)
            first = last
        return output


@lru_cache(maxsize=256)
def _mask(first: int, count: int, groups: int) -> torch.Tensor:
    """The mask that lets each token of a piece attend to everything up to its own position."""
    positions = torch.arange(first, first + count)
    is_later = torch.arange(first + count) > positions[:, None]
    mask = torch.zeros(is_later.shape).masked_fill_(is_later, float("-inf"))
    return mask.repeat(groups, 1)[None, None]


def plan_blocks(positions: torch.Tensor, *, key_heads: int) -> BlockPlan:
    """Make the plan for rows that each attend to everything up to their own position."""
    count = int(positions.max()) // _BLOCK + 1
    first = torch.arange(count) * _BLOCK
    is_beyond = first > positions[:, None]
    is_hidden = (first[:, None] + torch.arange(_BLOCK)) > positions[:, None, None]
    # A block after the end of its row hides nothing: attention over minus infinities alone would give NaN.
    is_hidden &= ~is_beyond[:, :, None]
    mask = torch.zeros(is_hidden.shape).masked_fill_(is_hidden, float("-inf"))
    mask, is_beyond = (tensor.repeat_interleave(key_heads, 0) for tensor in (mask, is_beyond))
    return BlockPlan(mask[:, :, None], is_beyond[:, :, None])


def block_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: BlockPlan, *, scaling: float
) -> torch.Tensor:
    """Attend with one query per row; a query of an unused row, which has no keys, gives zeros."""
    rows, key_heads, _, size = keys.shape
    heads, count = query.shape[1], plan.mask.shape[1]
    grouped = query[:rows].reshape(rows * key_heads, 1, heads // key_heads, size).expand(-1, count, -1, -1)
    # Views with the dimensions (row and head, block, position, channel).
    key_blocks, value_blocks = (
        stored.flatten(0, 1)[:, : count * _BLOCK].unflatten(1, (-1, _BLOCK)) for stored in (keys, values)
    )
    outputs, logs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        grouped, key_blocks, value_blocks, 0.0, False,
        attn_mask=plan.mask.expand(-1, -1, grouped.shape[2], -1), scale=scaling,
    )  # fmt: skip
    logs = logs.masked_fill(plan.is_beyond, float("-inf"))
    weights = torch.exp(logs - logs.amax(1, keepdim=True))
    # A cumulative sum adds from first to last; a plain sum adds in an order that depends on the number of blocks.
    total = (outputs * weights[..., None]).cumsum(1)[:, -1] / weights.cumsum(1)[:, -1, :, None]
    result = query.new_zeros(query.shape[0], 1, heads, size)
    result[:rows] = total.view(rows, 1, heads, size)
    return result
