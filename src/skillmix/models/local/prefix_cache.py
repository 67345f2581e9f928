"""Which slot holds which tokens, so that a prompt is read only from where no slot knows it."""

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

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
