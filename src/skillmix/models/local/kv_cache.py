"""Keys and values of many conversations at once: one fixed row of memory, a slot, for each."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from skillmix.models.local.block_attention import BlockedKeys, BlockPlan, block_attention, padded_length, plan_blocks
from skillmix.models.local.kernels import can_step, step_attention

ATTENTION = "skillmix_slots"
"""The name under which `slot_attention` is known to transformers."""


class CacheShape:
    """What a model's cache needs to know of it."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        self.layers: int = config.num_hidden_layers
        self.heads: int = getattr(config, "num_key_value_heads", None) or heads
        self.groups = heads // self.heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.has_kernel = can_step(head_size=self.head_size, groups=self.groups, device=self.device.type)

    @property
    def bytes_per_token(self) -> int:
        """Memory for one token of one conversation."""
        return 2 * self.layers * self.heads * self.head_size * int(self.dtype.itemsize)


_Pair = tuple[torch.Tensor, torch.Tensor]


class Store(NamedTuple):
    """What the kernel of a step needs beside the new keys and values."""

    keys: torch.Tensor
    values: torch.Tensor
    places: torch.Tensor
    is_active: torch.Tensor


class SlotCache:
    """What transformers calls a cache, laid out so that rows come and go while the tensors stay where they are.

    Every slot has `length` places and at least one more, where padding is written and nobody looks.
    """

    is_compileable = False

    def __init__(self, shape: CacheShape, *, slots: int, length: int) -> None:
        self.slots, self.length = slots, length
        # On a CPU steps look at whole blocks of places.
        places = length + 1 if shape.device.type == "cuda" else padded_length(length + 1)
        size = (slots, shape.heads, places, shape.head_size)
        self.keys = [torch.zeros(size, dtype=shape.dtype, device=shape.device) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, dtype=shape.dtype, device=shape.device) for _ in range(shape.layers)]
        self._has_kernel = shape.has_kernel
        self._all_rows = torch.arange(slots, device=shape.device)
        self._rows: torch.Tensor | None = None
        self._places = self._all_rows
        self._is_active: torch.Tensor | None = None
        self._seen: int | None = 0
        self._key_heads = shape.heads
        self._first = 0
        self._plan: BlockPlan | None = None

    def one_token_each(self, places: torch.Tensor, is_active: torch.Tensor, *, seen: int) -> None:
        """The next update brings one token for each of the first slots, to be written at these places."""
        self._rows, self._places, self._is_active, self._seen = None, places, is_active, seen

    def one_token_each_by_blocks(self, first: int, places: torch.Tensor) -> None:
        """The next update brings one token for each slot from the first on; for a CPU.

        Tokens beyond the last slot only fill up the shape of the products and are not kept.
        """
        self._rows, self._first = None, first
        self._places = places[: self.slots - first]
        self._plan = plan_blocks(self._places, key_heads=self._key_heads)

    def tokens_of(self, rows: torch.Tensor, places: torch.Tensor, *, seen: int | None) -> None:
        """The next update brings several tokens for each of these slots; without `seen`, whole prompts."""
        self._rows, self._places, self._seen, self._plan = rows, places, seen, None

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Write what a layer has computed; give it everything it may look at."""
        stored = self.keys[layer_idx], self.values[layer_idx]
        if self._plan is not None:
            return keys, self._blocked(stored, (keys, values), self._plan)
        if self._rows is None:
            count = keys.shape[0]
            if self._has_kernel and self._is_active is not None:
                return (keys, values), Store(*stored, self._places, self._is_active)
            rows = self._all_rows[:count]
            for store, new in zip(stored, (keys, values), strict=True):
                store[rows, :, self._places] = new[:, :, 0]
            return stored[0][:count, :, : self._seen], stored[1][:count, :, : self._seen]
        rows = self._rows
        for store, new in zip(stored, (keys, values), strict=True):
            store[rows[:, None], :, self._places] = new.transpose(1, 2)
        if self._seen is None:
            return keys, values
        return stored[0][rows, :, : self._seen], stored[1][rows, :, : self._seen]

    def _blocked(self, stored: _Pair, new: _Pair, plan: BlockPlan) -> BlockedKeys:
        """Write one token for each slot of a step, and show the slots."""
        last = self._first + len(self._places)
        rows = self._all_rows[self._first : last]
        for store, brought in zip(stored, new, strict=True):
            store[rows, :, self._places] = brought[: len(rows), :, 0]
        return BlockedKeys(stored[0][self._first : last], stored[1][self._first : last], plan)

    def copy(self, sources: torch.Tensor, targets: torch.Tensor, *, length: int) -> None:
        """Copy the first places of some slots to others; what is copied beyond a row's own part is never looked at."""
        for store in (*self.keys, *self.values):
            store[targets, :, :length] = store[sources, :, :length]

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Asked for by models that number positions themselves; ours are always given."""
        return self._seen or 0


def slot_attention(
    module: Any,
    query: torch.Tensor,
    key: Any,
    value: Any,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over slots: a step by its own kernel, whole prompts causally, the rest by the mask.

    With a mask, the queries that share a key head stand in one row, so that keys are never repeated.
    """
    rows, heads, length, size = query.shape
    if isinstance(value, Store):
        return step_attention(query, key, value, scaling=scaling or size**-0.5), None
    if isinstance(value, BlockedKeys):
        return block_attention(query, value, scaling=scaling or size**-0.5), None
    if attention_mask is None:
        found = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return found.transpose(1, 2), None
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1] * length, size)
    found = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return found.reshape(rows, heads, length, size).transpose(1, 2), None


def mask_of(places: torch.Tensor, *, seen: int, shape: CacheShape) -> torch.Tensor:
    """What each query may look at: everything up to its own place. Laid out for `slot_attention`."""
    allowed = torch.arange(seen, device=places.device) <= places[:, :, None]
    mask = torch.zeros(allowed.shape, dtype=shape.dtype, device=places.device)
    mask.masked_fill_(~allowed, float("-inf"))
    return mask.repeat(1, shape.groups, 1)[:, None]


BLOCK: Final = 64
"""Tokens that are looked up together."""
_LOOKED_AT: Final = 4

Chain = list[int]


class Match(NamedTuple):
    """A slot whose tokens begin like a prompt."""

    slot: int
    length: int


class SlotTable:
    """The tokens of every slot; slots at rest keep theirs until somebody needs the room."""

    def __init__(self, slots: int) -> None:
        self._tokens: list[list[int]] = [[] for _ in range(slots)]
        self._chains: list[Chain] = [[] for _ in range(slots)]
        self._free = list(range(slots - 1, -1, -1))
        self._resting: dict[int, float] = {}
        """Slots at rest, the longest first, with the time since when."""
        self._holders: dict[int, set[int]] = {}
        """Slots that hold a block and everything before it."""

    def tokens(self, slot: int) -> list[int]:
        """What a slot knows."""
        return self._tokens[slot]

    def match(self, slot: int, prompt: Sequence[int]) -> Match:
        """How much of a prompt a slot knows, but never its last token: reading that gives the first logits."""
        return Match(slot, min(common_length(self._tokens[slot], prompt), len(prompt) - 1))

    def find(self, prompt: Sequence[int], chain: Chain) -> Match | None:
        """The slot that knows most of a prompt."""
        holders: set[int] | None = None
        for block in chain:
            deeper = self._holders.get(block)
            if not deeper:
                break
            holders = deeper
        if not holders:
            return None
        # Several slots may hold the same blocks and differ after them; a few are looked at for the longest.
        return max((self.match(slot, prompt) for slot in islice(holders, _LOOKED_AT)), key=lambda found: found.length)

    def is_resting(self, slot: int) -> bool:
        """Whether nobody writes in it."""
        return slot in self._resting

    def take(self, slot: int) -> None:
        """Use a slot at rest where it stands."""
        del self._resting[slot]

    def free(self, *, now: float, patience: float) -> int | None:
        """A slot to start anew in: an unused one, or the one that rests longest if it has rested long enough."""
        if self._free:
            return self._free.pop()
        for slot, since in self._resting.items():
            if now - since < patience:
                return None
            del self._resting[slot]
            self.set(slot, [])
            return slot
        return None

    def set(self, slot: int, tokens: list[int], chain: Chain | None = None) -> None:
        """Say what a slot knows now, and its chain if it is known; blocks that it knew before stay as they are."""
        before, after = self._chains[slot], chain_of(tokens) if chain is None else chain
        same = common_length(before, after)
        for block in before[same:]:
            holders = self._holders[block]
            holders.discard(slot)
            if not holders:
                del self._holders[block]
        self._tokens[slot], self._chains[slot] = tokens, after
        for block in after[same:]:
            self._holders.setdefault(block, set()).add(slot)

    def rest(self, slot: int, tokens: list[int], chain: Chain | None = None, *, now: float) -> None:
        """A slot's row has ended; its tokens may be of use to what comes next."""
        self.set(slot, tokens, chain)
        self._resting[slot] = now


def chain_of(tokens: Sequence[int], beginning: Chain | None = None) -> Chain:
    """A hash for each whole block and everything before it; the chain of a beginning of the tokens saves that part."""
    chain = list(beginning or ())
    last = chain[-1] if chain else 0
    for start in range(len(chain) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
        last = hash((last, *tokens[start : start + BLOCK]))
        chain.append(last)
    return chain


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many items two lists have in common at their beginning."""
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length
    low, high = 0, length  # the first `low` are the same, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle)
    return low
