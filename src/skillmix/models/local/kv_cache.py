"""The key-value cache: each conversation has a slot, a fixed row of memory.

`SlotCache` holds the keys and values of all slots, `slot_attention` reads them, and `SlotTable` knows which slot holds
which tokens, so that a prompt is only read from the first token that no slot holds.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from skillmix.models.local.cpu.flat_cache import FlatKeys, flat_attention
from skillmix.models.local.gpu.prompt_kernel import PackedStore, copy_slots, packed_attention, store_packed
from skillmix.models.local.gpu.step_kernel import can_step, step_attention

ATTENTION = "skillmix_slots"
"""The name under which transformers knows `slot_attention`."""


class CacheShape:
    """The properties of a model that decide the size of its cache."""

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
        """Bytes of memory for one token of one conversation."""
        return 2 * self.layers * self.heads * self.head_size * int(self.dtype.itemsize)


class Store(NamedTuple):
    """The stored keys and values, and where the kernel of a step adds the new ones."""

    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    is_active: torch.Tensor


class SlotCache:
    """A cache in the sense of transformers, in which rows come and go while the tensors stay in memory.

    Every slot has `length` positions and at least one more, to which padding is written and which no row attends to.
    """

    is_compileable = False

    def __init__(self, shape: CacheShape, *, slots: int, length: int) -> None:
        self.slots, self.length = slots, length
        size = (slots, shape.heads, length + 1, shape.head_size)
        if shape.has_kernel:
            self._whole = torch.zeros((2 * shape.layers, *size), dtype=shape.dtype, device=shape.device)
            self.keys, self.values = list(self._whole[: shape.layers]), list(self._whole[shape.layers :])
        else:
            self.keys = [torch.zeros(size, dtype=shape.dtype, device=shape.device) for _ in range(shape.layers)]
            self.values = [torch.zeros(size, dtype=shape.dtype, device=shape.device) for _ in range(shape.layers)]
        self._has_kernel = shape.has_kernel
        self._all_rows = torch.arange(slots, device=shape.device)
        self._rows: torch.Tensor | None = None
        self._positions = self._all_rows
        self._is_active: torch.Tensor | None = None
        self._seen: int | None = 0
        self._blocks: torch.Tensor | None = None

    def one_token_each(self, positions: torch.Tensor, is_active: torch.Tensor, *, seen: int) -> None:
        """The next update brings one token for each of the first slots, to be written at these positions."""
        self._rows, self._positions, self._is_active, self._seen = None, positions, is_active, seen
        self._blocks = None

    def packed_tokens(self, blocks: torch.Tensor) -> None:
        """The next update brings a flat row of tokens, and a table says which tokens belong to which slot."""
        self._blocks = blocks

    def tokens_of(self, rows: torch.Tensor, positions: torch.Tensor, *, seen: int | None) -> None:
        """The next update brings several tokens for each of these slots; if `seen` is None, whole prompts."""
        self._rows, self._positions, self._seen = rows, positions, seen

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Store the new keys and values of a layer; return everything that the layer attends to."""
        stored = self.keys[layer_idx], self.values[layer_idx]
        if self._blocks is not None:
            store = PackedStore(*stored, self._blocks)
            store_packed(keys, values, store)
            return keys, store
        if self._rows is None:
            count = keys.shape[0]
            if self._has_kernel and self._is_active is not None:
                return (keys, values), Store(*stored, self._positions, self._is_active)
            rows = self._all_rows[:count]
            for store, new in zip(stored, (keys, values), strict=True):
                store[rows, :, self._positions] = new[:, :, 0]
            return stored[0][:count, :, : self._seen], stored[1][:count, :, : self._seen]
        rows = self._rows
        for store, new in zip(stored, (keys, values), strict=True):
            store[rows[:, None], :, self._positions] = new.transpose(1, 2)
        if self._seen is None:
            return keys, values
        return stored[0][rows, :, : self._seen], stored[1][rows, :, : self._seen]

    def copy(self, sources: torch.Tensor, targets: torch.Tensor, *, length: int) -> None:
        """Copy the first positions of some slots to others; no row attends to what is copied after its own end."""
        for store in (*self.keys, *self.values):
            store[targets, :, :length] = store[sources, :, :length]

    def copy_exactly(self, copies: torch.Tensor, *, longest: int) -> None:
        """Copy the beginnings of slots; each row of `copies` has a source, a target and a number of positions."""
        copy_slots(self._whole, copies, longest=longest)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """For models that number positions themselves; the decoder always gives positions."""
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
    """Attention over slots: by kernels for steps and packed prompts, causal for whole prompts, by the mask otherwise.

    With a mask, the queries that share a key head are in one row, so that keys are never repeated.
    """
    rows, heads, length, size = query.shape
    if isinstance(value, Store):
        return step_attention(query, key, value, scaling=scaling or size**-0.5), None
    if isinstance(value, PackedStore):
        return packed_attention(query, value, scaling=scaling or size**-0.5), None
    if isinstance(value, FlatKeys):
        return flat_attention(query, value, scaling=scaling or size**-0.5), None
    if attention_mask is None:
        output = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return output.transpose(1, 2), None
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1] * length, size)
    output = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(rows, heads, length, size).transpose(1, 2), None


def mask_of(positions: torch.Tensor, *, seen: int, shape: CacheShape) -> torch.Tensor:
    """The mask that lets each query attend to everything up to its own position, laid out for `slot_attention`."""
    allowed = torch.arange(seen, device=positions.device) <= positions[:, :, None]
    mask = torch.zeros(allowed.shape, dtype=shape.dtype, device=positions.device)
    mask.masked_fill_(~allowed, float("-inf"))
    return mask.repeat(1, shape.groups, 1)[:, None]


BLOCK: Final = 64
"""Tokens of a block; a slot is found by whole blocks."""
_CANDIDATES: Final = 4
"""Slots that are compared when several hold the same blocks."""

Chain = list[int]
"""The hash of each whole block of a prompt with everything before that block."""


class Match(NamedTuple):
    """A slot whose tokens begin like a prompt, and the number of tokens that they share."""

    slot: int
    length: int


class SlotTable:
    """The tokens of every slot; a slot at rest keeps its tokens until another row needs the slot."""

    def __init__(self, slots: int) -> None:
        self._tokens: list[list[int]] = [[] for _ in range(slots)]
        self._chains: list[Chain] = [[] for _ in range(slots)]
        self._free = list(range(slots - 1, -1, -1))
        self._resting: dict[int, float] = {}
        """Slots at rest with the times at which their rows ended, the earliest first."""
        self._holders: dict[int, set[int]] = {}
        """The slots that hold a block and everything before it, by the hash of both."""

    def tokens(self, slot: int) -> list[int]:
        """The tokens that a slot holds."""
        return self._tokens[slot]

    def match(self, slot: int, prompt: Sequence[int]) -> Match:
        """How much of a prompt a slot holds; the last token never counts, since reading it gives the first logits."""
        return Match(slot, min(common_length(self._tokens[slot], prompt), len(prompt) - 1))

    def find(self, prompt: Sequence[int], chain: Chain) -> Match | None:
        """The slot that holds most of a prompt."""
        holders: set[int] | None = None
        held = 0
        for block in chain:
            deeper = self._holders.get(block)
            if not deeper:
                break
            holders = deeper
            held += BLOCK
        if not holders:
            return None
        # These slots hold the same blocks and differ in the next one; the best of a few is good enough.
        following = prompt[held : held + BLOCK]
        best = max(
            islice(holders, _CANDIDATES),
            key=lambda slot: common_length(self._tokens[slot][held : held + BLOCK], following),
        )
        return self.match(best, prompt)

    def is_resting(self, slot: int) -> bool:
        """Whether no row uses a slot that still holds tokens."""
        return slot in self._resting

    def take(self, slot: int) -> None:
        """Use a slot at rest, with the tokens that it holds."""
        del self._resting[slot]

    def free(self, *, now: float, patience: float) -> int | None:
        """A slot for a new row: an unused one, or the one that has rested longest, if that is long enough."""
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
        """Note the tokens that a slot holds now, with their chain if the caller has it."""
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
        """Note that a slot's row has ended; a later row may reuse the tokens."""
        self.set(slot, tokens, chain)
        self._resting[slot] = now


def chain_of(tokens: Sequence[int], beginning: Chain | None = None) -> Chain:
    """The chain of some tokens; a known chain of their beginning saves time."""
    chain = list(beginning or ())
    last = chain[-1] if chain else 0
    for start in range(len(chain) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
        last = hash((last, *tokens[start : start + BLOCK]))
        chain.append(last)
    return chain


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the longest common beginning of two lists."""
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length
    low, high = 0, length  # the first `low` are the same, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle)
    return low
