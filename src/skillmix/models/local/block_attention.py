"""One step of attention on a CPU, whose result for a row depends on that row alone, to the last bit.

Plain attention over a batch looks at as many places as the longest row has, and a processor rounds differently with
another number of places. Here the keys of every row are cut into blocks of one size. Each block is computed alone, in
a shape that never changes, and the blocks of a row are added from first to last. Blocks behind the end of a row add
exact zeros, so their number does not matter.
"""

from typing import Any, Final, NamedTuple

import torch

_BLOCK: Final = 128


class BlockPlan(NamedTuple):
    """Which places of its blocks each row may look at; made once for a step and used by every layer."""

    mask: torch.Tensor
    is_beyond: torch.Tensor
    """Blocks behind the end of their row."""

    @property
    def places(self) -> int:
        """How many places of a slot the blocks cover."""
        return int(self.mask.shape[1]) * _BLOCK


class BlockedKeys(NamedTuple):
    """The keys and values of the rows of a step, with its plan."""

    keys: torch.Tensor
    values: torch.Tensor
    plan: BlockPlan


def padded_length(length: int) -> int:
    """The number of places a slot needs so that whole blocks fit."""
    return -(-length // _BLOCK) * _BLOCK


def plan_blocks(places: torch.Tensor, *, key_heads: int) -> BlockPlan:
    """The plan for rows that each look at everything up to their own place."""
    count = int(places.max()) // _BLOCK + 1
    first = torch.arange(count) * _BLOCK
    is_beyond = first > places[:, None]
    is_hidden = (first[:, None] + torch.arange(_BLOCK)) > places[:, None, None]
    # Nothing is hidden in a block that does not count: a row of minus infinities would not give a number.
    is_hidden &= ~is_beyond[:, :, None]
    mask = torch.zeros(is_hidden.shape).masked_fill_(is_hidden, float("-inf"))
    mask, is_beyond = (tensor.repeat_interleave(key_heads, 0) for tensor in (mask, is_beyond))
    return BlockPlan(mask[:, :, None], is_beyond[:, :, None])


def block_attention(query: torch.Tensor, blocked: BlockedKeys, *, scaling: float) -> torch.Tensor:
    """Attend with one query for each row; queries without keys, which stand for unused rows, give zeros."""
    keys, values, plan = blocked
    rows, key_heads, _, size = keys.shape
    heads, count = query.shape[1], plan.mask.shape[1]
    grouped = query[:rows].reshape(rows * key_heads, 1, heads // key_heads, size).expand(-1, count, -1, -1)
    found, logs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        grouped, _blocks_of(keys, plan), _blocks_of(values, plan), 0.0, False,
        attn_mask=plan.mask.expand(-1, -1, grouped.shape[2], -1), scale=scaling,
    )  # fmt: skip
    logs = logs.masked_fill(plan.is_beyond, float("-inf"))
    weights = torch.exp(logs - logs.amax(1, keepdim=True))
    # Cumulative sums add from first to last; plain sums choose an order by the number of blocks.
    total = (found * weights[..., None]).cumsum(1)[:, -1] / weights.cumsum(1)[:, -1, :, None]
    result = query.new_zeros(query.shape[0], 1, heads, size)
    result[:rows] = total.view(rows, 1, heads, size)
    return result


def _blocks_of(stored: torch.Tensor, plan: BlockPlan) -> torch.Tensor:
    """A view of rows of keys or values as (row and head, block, place, number)."""
    blocks: Any = stored.flatten(0, 1)[:, : plan.places].unflatten(1, (-1, _BLOCK))
    return blocks
