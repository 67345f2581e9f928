"""Which slot holds which tokens, so that a prompt is read only from where no slot knows it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

BLOCK: Final = 8
"""Tokens that are looked up together."""

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

    def find(self, prompt: Sequence[int], chain: Chain) -> Match | None:
        """The slot that knows most of a prompt, but never its last token: reading that gives the first logits."""
        holders: set[int] | None = None
        for block in chain:
            deeper = self._holders.get(block)
            if not deeper:
                break
            holders = deeper
        if not holders:
            return None
        slot = next(iter(holders))
        return Match(slot, min(_common(self._tokens[slot], prompt), len(prompt) - 1))

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

    def set(self, slot: int, tokens: list[int]) -> None:
        """Say what a slot knows now."""
        for block in self._chains[slot]:
            self._holders[block].discard(slot)
            if not self._holders[block]:
                del self._holders[block]
        self._tokens[slot], self._chains[slot] = tokens, chain_of(tokens)
        for block in self._chains[slot]:
            self._holders.setdefault(block, set()).add(slot)

    def rest(self, slot: int, tokens: list[int], *, now: float) -> None:
        """A slot's row has ended; its tokens may be of use to what comes next."""
        self.set(slot, tokens)
        self._resting[slot] = now


def chain_of(tokens: Sequence[int]) -> Chain:
    """A hash for each whole block and everything before it."""
    chain, last = [], 0
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        last = hash((last, *tokens[start : start + BLOCK]))
        chain.append(last)
    return chain


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    length = min(len(first), len(second))
    for place in range(length):
        if first[place] != second[place]:
            return place
    return length
