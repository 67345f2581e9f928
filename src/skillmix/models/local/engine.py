"""Continuous generation: requests wait, rows run, ended rows make room, and nothing is read twice."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from skillmix.core.calls import CallProblem, Outcome, Reply, Request
from skillmix.models.local.decoding import Decoder, Start
from skillmix.models.local.prompts import Renderer
from skillmix.models.local.sampling import uniforms
from skillmix.models.local.slots import BLOCK, Chain, Match, SlotTable, chain_of

Done = Callable[[Request, Outcome], None]

_STEPS: Final = {"cuda": 8, "cpu": 1}
"""Tokens between two looks at which rows have ended."""
_PATIENCE: Final = 0.2
_SHORT_PATIENCE: Final = 0.03
"""Seconds for which an ended row's slot waits for its conversation to go on, while others run or while none does."""
_SHARED: Final = 64
"""A row lets another go ahead that will have read that many more tokens of its prompt than any slot knows."""
_LENGTHS: Final = 128
"""Slots have a multiple of this many places."""
_DEFAULT_LIMIT: Final = 512


@dataclass(slots=True)
class _Row:
    request: Request
    tokens: list[int]
    chain: Chain
    limit: int


class Generator:
    """One model on one device; everything is called from one thread."""

    def __init__(
        self, model: Any, renderer: Renderer, *, slots: int, done: Done, ends: Sequence[int] | None = None
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._slots = slots
        self._done = done
        self._device: str = model.device.type
        self._ends = renderer.ends(model) if ends is None else list(ends)
        self._longest: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._going_on: deque[_Row] = deque()
        self._fresh: deque[_Row] = deque()
        self._active: dict[int, _Row] = {}
        self._counts = np.zeros(slots, dtype=np.int64)
        self._decoder: Decoder | None = None
        self._table = SlotTable(0)
        self.read_tokens = 0
        """Prompt tokens that were not known to any slot."""

    def forget(self) -> None:
        """Let go of what slots at rest know; a benchmark's second run must not find the first."""
        self._table = SlotTable(self._slots)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._going_on and not self._fresh and not self._active

    def add(self, requests: Sequence[Request]) -> None:
        """Take in requests; one that cannot be served is answered at once."""
        for request, tokens in zip(requests, self._renderer.tokens([r.messages for r in requests]), strict=True):
            limit = request.decoding.max_tokens or _DEFAULT_LIMIT
            if self._longest is not None and len(tokens) + limit > self._longest:
                detail = f"{len(tokens)} tokens and {limit} to write, of {self._longest}"
                self._done(request, CallProblem("final", "prompt too long", detail))
                continue
            row = _Row(request, tokens, chain_of(tokens), limit)
            match = self._table.find(tokens, row.chain)
            is_going_on = match is not None and self._can_be_taken(match)
            (self._going_on if is_going_on else self._fresh).append(row)

    def work(self) -> None:
        """One round: start what there is room for, write some tokens, hand over what has ended."""
        try:
            self._start_waiting()
            if self._active:
                self._write()
            elif not self.is_idle:
                time.sleep(_SHORT_PATIENCE / 10)
        except torch.OutOfMemoryError:
            if self._slots == 1:
                raise
            self._shrink()

    def _shrink(self) -> None:
        """Half the slots; rows that were running start again and write the same, since their numbers are theirs."""
        self._slots //= 2
        self._fresh.extendleft([*self._active.values(), *self._going_on])
        self._active.clear()
        self._going_on.clear()
        self._decoder = None
        if self._device == "cuda":
            torch.cuda.empty_cache()

    def _start_waiting(self) -> None:
        decoder = self._fitting_decoder() if self._going_on or self._fresh else None
        if decoder is None:
            return
        placing = _Placing()
        for queue in (self._going_on, self._fresh):
            later: list[_Row] = []
            while queue and self._place(queue[0], placing, later):
                queue.popleft()
            queue.extendleft(reversed(later))
        if not placing.starts:
            return
        if placing.copies:
            sources, targets, lengths = zip(*placing.copies, strict=True)
            decoder.copy(sources, targets, length=max(lengths))
        decoder.start(placing.starts)
        for start in placing.starts:
            self._table.set(start.slot, list(start.tokens))
            self._counts[start.slot] = 1
        self.read_tokens += sum(len(start.tokens) - start.known for start in placing.starts)

    def _fitting_decoder(self) -> Decoder | None:
        """The decoder, made anew once no row runs if what waits needs longer slots; None until then."""
        waiting = [*self._going_on, *self._fresh] if self._decoder is None else self._too_long()
        if not waiting:
            return self._decoder
        if self._active:
            return None
        before = self._decoder
        longest = max([row.limit for row in waiting] + ([before.longest] if before else []))
        length = max([len(row.tokens) + row.limit for row in waiting] + ([before.length] if before else []))
        self._decoder = before = None
        length = -(-length // _LENGTHS) * _LENGTHS
        self._decoder = Decoder(self._model, slots=self._slots, length=length, longest=longest, ends=self._ends)
        self._table = SlotTable(self._slots)
        self._counts = np.zeros(self._slots, dtype=np.int64)
        return self._decoder

    def _too_long(self) -> list[_Row]:
        decoder = self._decoder
        assert decoder is not None
        firsts = [queue[0] for queue in (self._going_on, self._fresh) if queue]
        return [r for r in firsts if len(r.tokens) + r.limit > decoder.length or r.limit > decoder.longest]

    def _place(self, row: _Row, placing: "_Placing", later: list[_Row]) -> bool:
        """Find a slot for a row, or leave it for a later round; False if there is no room for any."""
        decoder = self._decoder
        assert decoder is not None
        if len(row.tokens) + row.limit > decoder.length or row.limit > decoder.longest:
            return False
        match = self._table.find(row.tokens, row.chain)
        known = match.length if match else 0
        opening = tuple(row.tokens[: known // BLOCK * BLOCK + _SHARED])
        if opening in placing.openings:
            later.append(row)
            return True
        slot = self._slot_for(match, placing)
        if slot is None:
            return False
        placing.openings.add(opening)
        if match and match.slot != slot:
            placing.copies.append((match.slot, slot, known))
        self._active[slot] = row
        placing.starts.append(_start_of(row, slot, known))
        return True

    def _slot_for(self, match: Match | None, placing: "_Placing") -> int | None:
        if match is not None and self._can_be_taken(match):
            self._table.take(match.slot)
            return match.slot
        patience = _PATIENCE if self._active else _SHORT_PATIENCE
        return self._table.free(now=time.monotonic(), patience=patience)

    def _can_be_taken(self, match: Match) -> bool:
        """A slot at rest is taken over where it stands by what goes on from it, and copied by what merely begins so."""
        return self._table.is_resting(match.slot) and 2 * match.length > len(self._table.tokens(match.slot))

    def _write(self) -> None:
        decoder = self._decoder
        assert decoder is not None
        longest_row = max(len(row.tokens) + int(self._counts[slot]) for slot, row in self._active.items())
        with_top_p = any(row.request.decoding.top_p is not None for row in self._active.values())
        decoder.run(_STEPS[self._device], rows=max(self._active) + 1, longest_row=longest_row, with_top_p=with_top_p)
        self._counts, is_active = decoder.progress()
        ended = [slot for slot in self._active if not is_active[slot]]
        if not ended:
            return
        now = time.monotonic()
        for slot, written in zip(ended, decoder.written(ended), strict=True):
            row = self._active.pop(slot)
            tokens = written[: self._counts[slot]].tolist()
            # The last token was written but never read, so the slot does not know it.
            self._table.rest(slot, [*row.tokens, *tokens[:-1]], now=now)
            self._done(row.request, self._reply(row, tokens))

    def _reply(self, row: _Row, tokens: list[int]) -> Reply:
        has_ended = tokens[-1] in self._ends
        return Reply(
            text=self._renderer.text(tokens[:-1] if has_ended else tokens),
            finish="stop" if has_ended else "length",
            input_tokens=len(row.tokens),
            output_tokens=len(tokens),
        )


class _Placing:
    """What one round starts."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.copies: list[tuple[int, int, int]] = []
        self.openings: set[tuple[int, ...]] = set()


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
