"""Generation on a CPU: every step writes one token in each row, and prefills waiting prompts as the batch allows.

A text depends only on its own request, bit for bit: products treat every row alike (`products`), and attention computes
every row and every piece of a prompt in a shape of its own (`cpu_cache`).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from skillmix.models.local.attention import CacheShape
from skillmix.models.local.cpu.cpu_cache import GRAIN, CpuCache, PromptPiece
from skillmix.models.local.cpu.products import LARGEST, fuse_layers, make_rows_independent, size_for
from skillmix.models.local.sampling import Rows, Start


@dataclass(slots=True, eq=False)
class _Reading:
    """A prompt that waits to be read, from its first unread token on."""

    start: Start
    next: int
    source: int | None
    """The slot to copy the known tokens from when the reading begins; None once they are in place."""


class CpuDecoder:
    """The slots of one model on a CPU, and the steps that fill them."""

    def __init__(self, model: Any, *, slots: int, length: int, longest: int, ends: Sequence[int]) -> None:
        """Make slots of `length` positions for rows that write at most `longest` tokens."""
        if make_rows_independent(model):
            fuse_layers(model)
        self.slots, self.length, self.longest = slots, length, longest
        self.cache = CpuCache(CacheShape(model), slots=slots, length=length)
        self._model = model
        self.rows = Rows(slots, longest=longest, ends=ends, device=model.device)
        self._waiting: deque[_Reading] = deque()
        self._sources: dict[int, int] = {}

    def start(self, starts: Sequence[Start]) -> None:
        """Add rows; the next steps read their prompts, one prompt after the other."""
        for start in starts:
            slot, rows = start.slot, self.rows
            rows.numbers[slot, : start.limit] = torch.from_numpy(start.numbers[: start.limit])
            rows.limit[slot] = start.limit
            rows.temperature[slot] = start.temperature
            rows.top_p[slot] = 1.0 if start.top_p is None else start.top_p
            rows.position[slot] = len(start.tokens) - 1
            rows.count[slot] = 0
            rows.is_active[slot] = True
            self._waiting.append(_Reading(start, start.known, self._sources.pop(slot, None)))

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Let rows that start next take their known tokens from other slots, which may not have read them yet.

        Prompts are read in order of arrival, so a source has been read when its target begins.
        """
        self._sources.update((target, source) for source, target, _ in copies)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def run(self, steps: int, *, rows: int, with_top_p: bool) -> None:
        """Write up to `steps` tokens in each active row, and read waiting prompts; a row that ends writes no more."""
        for _ in range(steps):
            self._step(with_top_p)

    def progress(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of tokens that each slot has written, and whether it is still reading or writing."""
        return self.rows.count.numpy().copy(), self.rows.is_active.numpy().copy()

    def written(self, slots: Sequence[int]) -> np.ndarray:
        """Return the tokens that some slots have written."""
        rows: np.ndarray = self.rows.written[list(slots)].numpy()
        return rows

    def _step(self, with_top_p: bool) -> None:
        """Pass one batch through the model, and choose the next token of each row whose last token was in it."""
        is_reading = {reading.start.slot for reading in self._waiting}
        slots = [slot for slot in self.rows.is_active.nonzero()[:, 0].tolist() if slot not in is_reading]
        pieces, tokens, ready = self._next_pieces(LARGEST - len(slots))
        count = len(slots) + len(tokens)
        if not count:
            return
        positions = self.rows.position[slots].tolist()
        self.cache.lay_out(slots, positions, pieces)
        batch = torch.zeros(2, 1, size_for(count), dtype=torch.long)
        batch[0, 0, :count] = torch.tensor([*self.rows.token[slots].tolist(), *tokens])
        batch[1, 0, :count] = torch.tensor(positions + [p.first + n for p in pieces for n in range(p.length)])
        hidden = self._model.get_decoder()(
            input_ids=batch[0], position_ids=batch[1], past_key_values=self.cache, use_cache=True
        ).last_hidden_state[0]
        ends = [*range(len(slots)), *(len(slots) + index for _, index in ready)]
        if ends:
            rows = torch.tensor([*slots, *(slot for slot, _ in ready)])
            filled = [*ends, *[0] * (size_for(len(ends)) - len(ends))]
            logits = self._model.get_output_embeddings()(hidden[filled])[: len(ends)]
            self.rows.accept(rows, logits, with_top_p)

    def _next_pieces(self, room: int) -> tuple[list[PromptPiece], list[int], list[tuple[int, int]]]:
        """Return pieces for a batch, their tokens, and the index of the last token in each slot whose prompt ends."""
        pieces: list[PromptPiece] = []
        tokens: list[int] = []
        ready: list[tuple[int, int]] = []
        unread: set[int] = set()
        """Slots whose prompts are not read before this batch."""
        needed: set[int] = set()
        """Slots from which prompts that must wait will copy: copies see slots as if prompts were read one by one."""
        for reading in list(self._waiting):
            slot = reading.start.slot
            must_wait = reading.source in unread or slot in needed
            unread.add(slot)
            if must_wait and reading.source is not None:
                needed.add(reading.source)
            if must_wait:
                continue
            if reading.source is not None:
                self.cache.copy(reading.source, slot, length=reading.start.known)
                reading.source = None
            # A piece attends to pieces of the same batch too, since every layer stores its keys first.
            while part := reading.start.tokens[reading.next : reading.next // GRAIN * GRAIN + GRAIN]:
                if len(tokens) + len(part) > room:
                    return pieces, tokens, ready
                pieces.append(PromptPiece(slot, reading.next, len(part)))
                tokens.extend(part)
                reading.next += len(part)
            ready.append((slot, len(tokens) - 1))
            self._waiting.remove(reading)
        return pieces, tokens, ready
