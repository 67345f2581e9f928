"""Which slot holds which tokens, so that a prompt is only read from the first token that no slot holds."""

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

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
