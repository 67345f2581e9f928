"""One step of attention on a CPU in which the result for a row depends on that row alone, to the last bit.

Plain attention over a batch covers as many positions as the longest row has, and a processor rounds differently when
that number changes. This module cuts the keys of every row into blocks of one size. It computes each block alone, in
a shape that never changes, and adds the blocks of a row from first to last. Blocks after the end of a row add exact
zeros, so their number does not matter.
"""

from typing import Any, Final, NamedTuple

import torch

_BLOCK: Final = 128


class BlockPlan(NamedTuple):
    """Which positions of its blocks each row attends to; made once per step and used by every layer."""

    mask: torch.Tensor
    is_beyond: torch.Tensor
    """Whether a block lies after the end of its row."""

    @property
    def length(self) -> int:
        """The number of positions that the blocks cover."""
        return int(self.mask.shape[1]) * _BLOCK


class BlockedKeys(NamedTuple):
    """The keys and values of the rows of a step, with its plan."""

    keys: torch.Tensor
    values: torch.Tensor
    plan: BlockPlan


def padded_length(length: int) -> int:
    """The number of positions of a slot that holds whole blocks."""
    return -(-length // _BLOCK) * _BLOCK


def plan_blocks(positions: torch.Tensor, *, key_heads: int) -> BlockPlan:
    """The plan for rows that each attend to everything up to their own position."""
    count = int(positions.max()) // _BLOCK + 1
    first = torch.arange(count) * _BLOCK
    is_beyond = first > positions[:, None]
    is_hidden = (first[:, None] + torch.arange(_BLOCK)) > positions[:, None, None]
    # A block after the end of its row hides nothing: attention over minus infinities alone would give NaN.
    is_hidden &= ~is_beyond[:, :, None]
    mask = torch.zeros(is_hidden.shape).masked_fill_(is_hidden, float("-inf"))
    mask, is_beyond = (tensor.repeat_interleave(key_heads, 0) for tensor in (mask, is_beyond))
    return BlockPlan(mask[:, :, None], is_beyond[:, :, None])


def block_attention(query: torch.Tensor, blocked: BlockedKeys, *, scaling: float) -> torch.Tensor:
    """Attend with one query per row; a query of an unused row, which has no keys, gives zeros."""
    keys, values, plan = blocked
    rows, key_heads, _, size = keys.shape
    heads, count = query.shape[1], plan.mask.shape[1]
    grouped = query[:rows].reshape(rows * key_heads, 1, heads // key_heads, size).expand(-1, count, -1, -1)
    outputs, logs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        grouped, _blocks_of(keys, plan), _blocks_of(values, plan), 0.0, False,
        attn_mask=plan.mask.expand(-1, -1, grouped.shape[2], -1), scale=scaling,
    )  # fmt: skip
    logs = logs.masked_fill(plan.is_beyond, float("-inf"))
    weights = torch.exp(logs - logs.amax(1, keepdim=True))
    # A cumulative sum adds from first to last; a plain sum adds in an order that depends on the number of blocks.
    total = (outputs * weights[..., None]).cumsum(1)[:, -1] / weights.cumsum(1)[:, -1, :, None]
    result = query.new_zeros(query.shape[0], 1, heads, size)
    result[:rows] = total.view(rows, 1, heads, size)
    return result


def _blocks_of(stored: torch.Tensor, plan: BlockPlan) -> torch.Tensor:
    """A view of keys or values with the dimensions (row and head, block, position, channel)."""
    blocks: Any = stored.flatten(0, 1)[:, : plan.length].unflatten(1, (-1, _BLOCK))
    return blocks
