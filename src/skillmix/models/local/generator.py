"""Continuous batching: waiting requests become rows, and rows that end make room for others.

A row starts from a slot that already holds the beginning of its prompt, if there is one, so that no prompt is read
twice.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from skillmix.calls import CallProblem, GenerateKey, Outcome, Reply, Request
from skillmix.models.local.chat import Renderer
from skillmix.models.local.cpu.cpu_decoder import CpuDecoder
from skillmix.models.local.cpu.flat_cache import GRAIN
from skillmix.models.local.cpu.products import MOST_SLOTS
from skillmix.models.local.decoder import Decoder, uniforms
from skillmix.models.local.gpu.slot_length import roomy_length
from skillmix.models.local.gpu_share import gpu_memory
from skillmix.models.local.kv_cache import BLOCK, CacheShape, Chain, Match, SlotTable, chain_of
from skillmix.models.local.starts import Start
from skillmix.models.local.tokenising import DirectTokeniser, ThreadedTokeniser, Tokeniser

Done = Callable[[Request, Outcome], None]

_STEPS: Final = {"cuda": 8, "cpu": 1}
"""Steps between two checks for rows that have ended."""
_PATIENCE: Final = 0.2
_SHORT_PATIENCE: Final = 0.03
"""Seconds for which the slot of an ended row is kept for the next turn, while other rows run and while none does."""
_PATIENT_ROUNDS: Final = 8
"""Rounds for which it is kept at most: what a small model would read again takes less time than an empty slot costs."""
_LENGTH_STEP: Final = 128
"""The length of a slot is a multiple of this many positions."""
_LIMIT_STEP: Final = 64
"""The longest text of a decoder is a multiple of this many tokens."""
_MAX_STARTS: Final = {"cuda": 768, "cpu": 64}
"""Rows that start in one round; the device reads their prompts while the next round is prepared."""
_MAX_ENDS: Final = {"cuda": 768, "cpu": 64}
"""Ended rows that are delivered in one round; the device goes on with other rows meanwhile."""
_DEFAULT_LIMIT: Final = 512


@dataclass(slots=True)
class _Row:
    """A request with its prompt."""

    request: Request
    tokens: list[int]
    chain: Chain
    limit: int

    @property
    def conversation(self) -> tuple[object, ...]:
        """A key that all turns of a conversation share."""
        key = self.request.key
        return (key.student, key.combination, key.generation) if isinstance(key, GenerateKey) else (key,)

    def opening(self, known_blocks: int) -> object:
        """A key that rows share if their known blocks and the block after these are the same."""
        return self.chain[known_blocks] if known_blocks < len(self.chain) else tuple(self.tokens)


class Generator:
    """One model on one device; all methods must be called from one thread."""

    def __init__(
        self, model: Any, renderer: Renderer, *, slots: int, done: Done, ends: Sequence[int] | None = None
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._device: str = model.device.type
        self._slots = slots if self._device == "cuda" else min(slots, MOST_SLOTS)
        self._grain = 1 if self._device == "cuda" else GRAIN
        """Prompts are known by whole pieces of this many tokens."""
        self._done = done
        self._ends = renderer.ends(model) if ends is None else list(ends)
        self._longest: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._tokeniser = self._new_tokeniser()
        self._ended: list[tuple[int, _Row, list[int]]] = []
        self._going_on: deque[_Row] = deque()
        self._fresh: deque[_Row] = deque()
        self._active: dict[int, _Row] = {}
        self._resting: dict[tuple[object, ...], int] = {}
        """The slots of conversations that may go on."""
        self._counts = np.zeros(self._slots, dtype=np.int64)
        self._decoder: Decoder | CpuDecoder | None = None
        self._table = SlotTable(0)
        self.read_tokens = 0
        """Prompt tokens that no slot held and that were therefore read."""
        self._round_s = 0.0
        """Duration of the last round that wrote."""

    def _new_tokeniser(self) -> Tokeniser:
        return (ThreadedTokeniser if self._device == "cuda" else DirectTokeniser)(self._renderer)

    def serve_next(self, renderer: Renderer, *, done: Done) -> None:
        """Serve another model, whose weights have replaced those of the present model in memory.

        Slots, captured steps and compiled modules stay; requests and cached prompts of the present model are dropped.
        """
        self._renderer, self._done = renderer, done
        ends = renderer.ends(self._model)
        if isinstance(self._decoder, Decoder) and ends == self._ends:
            self._decoder.clear()
        else:
            # Captured steps compare tokens with the former ends. On a CPU nothing is captured.
            self._decoder = None
        self._ends = ends
        self._tokeniser = self._new_tokeniser()
        for queue in (self._ended, self._going_on, self._fresh, self._active):
            queue.clear()
        self.forget()
        self._counts = np.zeros(self._slots, dtype=np.int64)

    def forget(self) -> None:
        """Drop the tokens of slots at rest, so that the second run of a benchmark cannot reuse the first."""
        self._table = SlotTable(self._slots)
        self._resting.clear()

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        return self._tokeniser.is_empty and not (self._going_on or self._fresh or self._active or self._ended)

    @property
    def is_running_out(self) -> bool:
        """Whether no request waits and most slots are free."""
        is_waiting = not self._tokeniser.is_empty or self._going_on or self._fresh
        return not is_waiting and 2 * len(self._active) < self._slots

    def add(self, requests: Sequence[Request]) -> None:
        """Add requests; they are tokenised while the device works."""
        self._tokeniser.add(requests)

    def work(self) -> None:
        """Do one round: start waiting rows, write some tokens, deliver ended rows."""
        begun = time.monotonic()
        try:
            if not self._active or self._device != "cuda":
                self._deliver()
            self._queue_new()
            self._start_waiting()
            if self._active:
                self._write()
                self._round_s = time.monotonic() - begun
            elif self._fresh or self._going_on:
                time.sleep(_SHORT_PATIENCE / 10)
        except torch.OutOfMemoryError:
            if self._slots == 1:
                raise
            self._shrink()

    def _queue_new(self) -> None:
        """Queue the requests that are tokenised by now; a prompt that is too long is answered at once."""
        has_nothing_else = not (self._active or self._going_on or self._fresh)
        for request, tokens in self._tokeniser.take(wait=has_nothing_else):
            limit = request.decoding.max_tokens or _DEFAULT_LIMIT
            if self._longest is not None and len(tokens) + limit > self._longest:
                detail = f"{len(tokens)} tokens, {limit} more to write, and the model allows {self._longest}"
                self._done(request, CallProblem("failed", "prompt too long", detail, is_free=True))
                continue
            row = _Row(request, tokens, chain_of(tokens), limit)
            (self._fresh if self._own_slot(row) is None else self._going_on).append(row)

    def _own_slot(self, row: _Row) -> Match | None:
        """The slot at rest in which the row's conversation can go on."""
        slot = self._resting.get(row.conversation)
        if slot is None or not self._table.is_resting(slot):
            return None
        match = self._table.match(slot, row.tokens)
        return match if self._can_be_taken(match) else None

    def _shrink(self) -> None:
        """Halve the slots; rows start again and write the same texts, since a seed decides all random numbers."""
        self._slots //= 2
        self._fresh.extendleft([*self._active.values(), *self._going_on])
        self._active.clear()
        self._going_on.clear()
        self._deliver_all()
        self._decoder = None
        if self._device == "cuda":
            torch.cuda.empty_cache()

    def _start_waiting(self) -> None:
        decoder = self._fitting_decoder() if self._going_on or self._fresh else None
        if decoder is None:
            return
        starting = _StartingRows()
        for queue in (self._going_on, self._fresh):
            later: list[_Row] = []
            while queue and self._assign(queue[0], starting, later):
                queue.popleft()
            queue.extendleft(reversed(later))
        if not starting.starts:
            return
        if starting.copies:
            sources, targets, lengths = zip(*starting.copies, strict=True)
            decoder.copy(sources, targets, lengths=lengths)
        decoder.start(starting.starts)
        for start in starting.starts:
            row = self._active[start.slot]
            self._table.set(start.slot, self._exact(row.tokens), row.chain)
            self._counts[start.slot] = 1
        self.read_tokens += sum(len(start.tokens) - start.known for start in starting.starts)

    def _fitting_decoder(self) -> Decoder | CpuDecoder | None:
        """The decoder; None while rows run and a waiting row needs longer slots, for which a new decoder is made."""
        waiting = [*self._going_on, *self._fresh] if self._decoder is None else self._too_long()
        if not waiting:
            return self._decoder
        if self._active:
            return None
        self._deliver_all()
        before = self._decoder
        longest = max([row.limit for row in waiting] + ([before.longest] if before else []))
        length = max([len(row.tokens) + row.limit for row in waiting] + ([before.length] if before else []))
        self._decoder = before = None
        if self._device == "cuda":
            length = self._with_room(length)
        length = -(-length // _LENGTH_STEP) * _LENGTH_STEP
        # Some room, so that another student with a slightly higher limit does not need a new decoder.
        longest = -(-longest // _LIMIT_STEP) * _LIMIT_STEP
        if self._device != "cuda":
            # Room for the next turn: longer slots could only be made when no row runs, and would hold nothing.
            length = longest = 2 * length
        kind = Decoder if self._device == "cuda" else CpuDecoder
        self._decoder = kind(self._model, slots=self._slots, length=length, longest=longest, ends=self._ends)
        self._table = SlotTable(self._slots)
        self._resting.clear()
        self._counts = np.zeros(self._slots, dtype=np.int64)
        return self._decoder

    def _with_room(self, length: int) -> int:
        _, memory = gpu_memory()
        return roomy_length(length, CacheShape(self._model), slots=self._slots, memory=memory, limit=self._longest)

    def _too_long(self) -> list[_Row]:
        decoder = self._decoder
        assert decoder is not None
        firsts = [queue[0] for queue in (self._going_on, self._fresh) if queue]
        return [r for r in firsts if len(r.tokens) + r.limit > decoder.length or r.limit > decoder.longest]

    def _assign(self, row: _Row, starting: "_StartingRows", later: list[_Row]) -> bool:
        """Assign a slot to a row, or leave the row for a later round; False if there is no free slot."""
        decoder = self._decoder
        assert decoder is not None
        if len(row.tokens) + row.limit > decoder.length or row.limit > decoder.longest:
            return False
        if len(starting.starts) >= _MAX_STARTS[self._device]:
            return False
        match = self._own_slot(row) or self._table.find(row.tokens, row.chain)
        known = match.length if match else 0
        known -= known % self._grain
        opening = row.opening(known // BLOCK)
        if opening in starting.openings and self._device == "cuda":
            later.append(row)
            return True
        slot = self._slot_for(match)
        if slot is None:
            return False
        starting.openings.add(opening)
        self._resting.pop(row.conversation, None)
        if match and match.slot != slot:
            starting.copies.append((match.slot, slot, known))
        self._active[slot] = row
        if self._device != "cuda":
            # Prompts are read in order there, so a row of this round can share the beginning of another.
            self._table.set(slot, self._exact(row.tokens), row.chain)
        starting.starts.append(_start_of(row, slot, known))
        return True

    def _slot_for(self, match: Match | None) -> int | None:
        if match is not None and self._can_be_taken(match):
            self._table.take(match.slot)
            return match.slot
        patience = min(_PATIENCE, _PATIENT_ROUNDS * self._round_s) if self._active else _SHORT_PATIENCE
        return self._table.free(now=time.monotonic(), patience=patience)

    def _exact(self, tokens: list[int]) -> list[int]:
        """The tokens that other rows may reuse: on a CPU only whole pieces, which are the same to the last bit."""
        return tokens[: len(tokens) - len(tokens) % self._grain]

    def _can_be_taken(self, match: Match) -> bool:
        """Whether a row takes over a matching slot; a row that shares only a small part of it copies that part."""
        return self._table.is_resting(match.slot) and 2 * match.length > len(self._table.tokens(match.slot))

    def _write(self) -> None:
        decoder = self._decoder
        assert decoder is not None
        longest_row = max(len(row.tokens) + int(self._counts[slot]) for slot, row in self._active.items())
        with_top_p = any(row.request.decoding.top_p is not None for row in self._active.values())
        decoder.run(_STEPS[self._device], rows=max(self._active) + 1, longest_row=longest_row, with_top_p=with_top_p)
        # While the device works on these steps, deliver the rows that ended before them.
        self._deliver()
        self._queue_new()
        self._counts, is_active = decoder.progress()
        ended = [slot for slot in self._active if not is_active[slot]]
        if ended:
            for slot, written in zip(ended, decoder.written(ended), strict=True):
                self._ended.append((slot, self._active.pop(slot), written[: self._counts[slot]].tolist()))
        if self._device != "cuda":
            # A step has ended here, so a reply that waits for the next step gains nothing and delays its next turn.
            self._deliver()

    def _deliver_all(self) -> None:
        while self._ended:
            self._deliver()

    def _deliver(self) -> None:
        limit = _MAX_ENDS[self._device]
        ended, self._ended = self._ended[:limit], self._ended[limit:]
        now = time.monotonic()
        for slot, row, tokens in ended:
            # The last token was written but never read, so the slot does not hold it.
            known = [*row.tokens, *tokens[:-1]] if self._device == "cuda" else self._exact(row.tokens)
            self._table.rest(slot, known, chain_of(known, row.chain), now=now)
            self._resting[row.conversation] = slot
        texts = self._renderer.texts([tokens[:-1] if tokens[-1] in self._ends else tokens for _, _, tokens in ended])
        for (_, row, tokens), text in zip(ended, texts, strict=True):
            self._done(row.request, self._reply(row, tokens, text))

    def _reply(self, row: _Row, tokens: list[int], text: str) -> Reply:
        return Reply(
            text=self._renderer.opening(row.tokens) + text,
            finish="stop" if tokens[-1] in self._ends else "length",
            input_tokens=len(row.tokens),
            output_tokens=len(tokens),
        )


class _StartingRows:
    """The rows that start in one round."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.copies: list[tuple[int, int, int]] = []
        self.openings: set[object] = set()
        """Keys of the rows that start; another row with the same key waits until its next block has been read."""


def _start_of(row: _Row, slot: int, known: int) -> Start:
    decoding = row.request.decoding
    return Start(
        slot=slot,
        tokens=row.tokens,
        known=known,
        numbers=uniforms(row.request.seed or 0, row.limit),
        temperature=1.0 if decoding.temperature is None else decoding.temperature,
        top_p=decoding.top_p,
        limit=row.limit,
    )
