"""Generation on a CPU: every step writes one token in each row, and reads waiting prompts as far as the batch allows.

A text depends on its own request alone, to the last bit: products treat every row alike (`products`), and attention
computes every row and every piece of a prompt in a shape of its own (`cpu_cache`).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from skillmix.models.local.attention import CacheShape
from skillmix.models.local.cpu.cpu_cache import GRAIN, CpuCache, PromptPiece
from skillmix.models.local.cpu.fused_layers import fuse_layers
from skillmix.models.local.cpu.products import LARGEST, make_rows_independent, size_for
from skillmix.models.local.sampling import Start, choose


@dataclass(slots=True, eq=False)
class _Reading:
    """A prompt that waits to be read, from its first unread token on."""

    start: Start
    next: int
    source: int | None
    """The slot to copy the known tokens from when the reading begins; None once they are in place."""

    def next_part(self) -> Sequence[int]:
        """The tokens of the next piece; none after the last."""
        return self.start.tokens[self.next : self.next // GRAIN * GRAIN + GRAIN]


class _Order:
    """Which of the waiting prompts a batch may read: copies see the slots as if prompts were read one by one."""

    def __init__(self) -> None:
        self._unread: set[int] = set()
        """Slots whose prompts are not read before this batch."""
        self._needed: set[int] = set()
        """Slots from which prompts that must wait will copy."""

    def allows(self, reading: _Reading) -> bool:
        """Whether a batch may read a prompt; call this once for each prompt, in order."""
        slot, source = reading.start.slot, reading.source
        must_wait = source in self._unread or slot in self._needed
        self._unread.add(slot)
        if must_wait and source is not None:
            self._needed.add(source)
        return not must_wait


class CpuDecoder:
    """The slots of one model on a CPU, and the steps that fill them."""

    def __init__(self, model: Any, *, slots: int, length: int, longest: int, ends: Sequence[int]) -> None:
        """Make slots of `length` positions for rows that write at most `longest` tokens."""
        if make_rows_independent(model):
            fuse_layers(model)
        self.slots, self.length, self.longest = slots, length, longest
        self.cache = CpuCache(CacheShape(model), slots=slots, length=length)
        self._model = model
        self._ends = torch.tensor(list(ends))
        self._token = torch.zeros(slots, dtype=torch.long)
        self._position = torch.zeros(slots, dtype=torch.long)
        self._count = torch.zeros(slots, dtype=torch.long)
        self._limit = torch.ones(slots, dtype=torch.long)
        self._temperature = torch.ones(slots)
        self._top_p = torch.ones(slots)
        self._numbers = torch.zeros(slots, longest)
        self._written = torch.zeros(slots, longest, dtype=torch.long)
        self._is_active = torch.zeros(slots, dtype=torch.bool)
        self._waiting: deque[_Reading] = deque()
        self._sources: dict[int, int] = {}
        self.chances: torch.Tensor | None = None
        """The log-probability of every written token; None unless `note_chances` was called."""

    def start(self, starts: Sequence[Start]) -> None:
        """Add rows; the next steps read their prompts, one prompt after the other."""
        for start in starts:
            slot = start.slot
            self._numbers[slot, : start.limit] = torch.from_numpy(start.numbers[: start.limit])
            self._limit[slot] = start.limit
            self._temperature[slot] = start.temperature
            self._top_p[slot] = 1.0 if start.top_p is None else start.top_p
            self._position[slot] = len(start.tokens) - 1
            self._count[slot] = 0
            self._is_active[slot] = True
            self._waiting.append(_Reading(start, start.known, self._sources.pop(slot, None)))

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Let rows that start next take their known tokens from other slots, which may still have to read them.

        Prompts are read in the order in which they came, so a source has been read when its target begins.
        """
        self._sources.update((target, source) for source, target, _ in copies)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def run(self, steps: int, *, rows: int, with_top_p: bool) -> None:
        """Write up to `steps` tokens in each active row, and read waiting prompts; a row that ends writes no more."""
        for _ in range(steps):
            self._step(with_top_p)

    def progress(self) -> tuple[np.ndarray, np.ndarray]:
        """The number of tokens that each slot has written, and whether it is still reading or writing."""
        return self._count.numpy().copy(), self._is_active.numpy().copy()

    def note_chances(self) -> None:
        """Note log-probabilities from now on; slow, for tests."""
        self.chances = torch.zeros(self.slots, self.longest)

    def written(self, slots: Sequence[int]) -> np.ndarray:
        """The tokens that some slots have written."""
        rows: np.ndarray = self._written[list(slots)].numpy()
        return rows

    def _step(self, with_top_p: bool) -> None:
        """One batch through the model, and the next token of each row whose last token was in it."""
        is_reading = {reading.start.slot for reading in self._waiting}
        slots = [slot for slot in self._is_active.nonzero()[:, 0].tolist() if slot not in is_reading]
        pieces, tokens, ready = self._next_pieces(LARGEST - len(slots))
        count = len(slots) + len(tokens)
        if not count:
            return
        positions = self._position[slots].tolist()
        self.cache.lay_out(slots, positions, pieces)
        batch = torch.zeros(2, 1, size_for(count), dtype=torch.long)
        batch[0, 0, :count] = torch.tensor([*self._token[slots].tolist(), *tokens])
        batch[1, 0, :count] = torch.tensor(positions + [p.first + n for p in pieces for n in range(p.length)])
        hidden = self._model.get_decoder()(
            input_ids=batch[0], position_ids=batch[1], past_key_values=self.cache, use_cache=True
        ).last_hidden_state[0]
        ends = [*range(len(slots)), *(len(slots) + index for _, index in ready)]
        if ends:
            rows = torch.tensor([*slots, *(slot for slot, _ in ready)])
            self._accept(rows, self._logits(hidden, ends), with_top_p)

    def _next_pieces(self, room: int) -> tuple[list[PromptPiece], list[int], list[tuple[int, int]]]:
        """Pieces that fit into a batch, their tokens, and each slot whose prompt ends with its last token's index."""
        pieces: list[PromptPiece] = []
        tokens: list[int] = []
        ready: list[tuple[int, int]] = []
        order = _Order()
        for reading in list(self._waiting):
            if not order.allows(reading):
                continue
            slot = reading.start.slot
            if reading.source is not None:
                self.cache.copy(reading.source, slot, length=reading.start.known)
                reading.source = None
            # A piece attends to pieces of the same batch too, since every layer stores its keys first.
            while part := reading.next_part():
                if len(tokens) + len(part) > room:
                    return pieces, tokens, ready
                pieces.append(PromptPiece(slot, reading.next, len(part)))
                tokens.extend(part)
                reading.next += len(part)
            ready.append((slot, len(tokens) - 1))
            self._waiting.remove(reading)
        return pieces, tokens, ready

    def _logits(self, hidden: torch.Tensor, ends: list[int]) -> torch.Tensor:
        filled = [*ends, *[0] * (size_for(len(ends)) - len(ends))]
        logits: torch.Tensor = self._model.get_output_embeddings()(hidden[filled])
        return logits[: len(ends)]

    def _accept(self, rows: torch.Tensor, logits: torch.Tensor, with_top_p: bool) -> None:
        """Choose the next token of rows; an end token, or the last token within the limit, ends a row."""
        count = self._count[rows]
        token = choose(
            logits, self._numbers[rows, count], self._temperature[rows], self._top_p[rows] if with_top_p else None
        )
        if self.chances is not None:
            scaled = torch.log_softmax(logits / self._temperature[rows, None], dim=-1)
            self.chances[rows, count] = scaled.gather(-1, token[:, None])[:, 0]
        self._written[rows, count] = token
        self._count[rows] = count + 1
        self._token[rows] = token
        self._position[rows] += 1
        is_end = (token[:, None] == self._ends).any(-1)
        self._is_active[rows] = ~is_end & (count + 1 < self._limit[rows])
