"""Generation on a GPU: rows read their prompts, then write one token per step, each at its own position.

`Decoder` runs the steps; `uniforms` and `choose` pick the tokens.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import shake_128
from typing import Any, Final

import numpy as np
import torch

from skillmix.errors import UserError
from skillmix.models.local.gpu.captured_prompts import PromptInputs, PromptReader
from skillmix.models.local.gpu.fusing import fuse
from skillmix.models.local.gpu.graph_pool import GraphPool, NotCaptured
from skillmix.models.local.gpu.host_memory import Snapshots, Staging
from skillmix.models.local.gpu.sample_kernel import RowSettings, RowState, accept_tokens
from skillmix.models.local.kv_cache import CacheShape, SlotCache, mask_of
from skillmix.models.local.starts import Start

_LENGTH_STEP: Final = 128
"""Captured steps attend to a multiple of this many positions."""
_PREFILL_TOKENS: Final = 1 << 18
"""Tokens, padding included, that a GPU reads in one batch."""


class Decoder:
    """The slots of one model, and the steps that fill them."""

    def __init__(self, model: Any, *, slots: int, length: int, longest: int, ends: Sequence[int]) -> None:
        """Make slots of `length` positions for rows that write at most `longest` tokens."""
        self.shape = CacheShape(model)
        self.slots, self.length, self.longest = slots, length, longest
        self.cache = SlotCache(self.shape, slots=slots, length=length)
        self._model = model
        device = self.shape.device
        # One more row takes what the unused rows of a batch of prompts write.
        rows = slots + 1
        self._ends = torch.tensor(list(ends), device=device)
        self._rows = torch.arange(rows, device=device)
        self._token = torch.zeros(rows, dtype=torch.long, device=device)
        self._position = torch.zeros(rows, dtype=torch.long, device=device)
        self._count = torch.zeros(rows, dtype=torch.long, device=device)
        self._limit = torch.ones(rows, dtype=torch.long, device=device)
        self._temperature = torch.ones(rows, device=device)
        self._top_p = torch.ones(rows, device=device)
        self._numbers = torch.zeros(rows, longest, device=device)
        self._written = torch.zeros(rows, longest, dtype=torch.long, device=device)
        self._is_active = torch.zeros(rows, dtype=torch.bool, device=device)
        self._graphs: dict[tuple[int, int, bool], Any] = {}
        self.chances: torch.Tensor | None = None
        """The log-probability of every written token; None unless `note_chances` was called."""
        self._reader: PromptReader | None = None
        fuse(model)
        self._pool = GraphPool()
        self._staging = Staging(self.shape.device)
        self._snapshots = Snapshots(torch.cuda.Event, (self._count, self._is_active, self._written))
        if self.shape.has_kernel:
            self._reader = PromptReader(self._staging, spare=self.slots, longest=self.longest)

    def clear(self) -> None:
        """Return to the state of a new decoder, after the model got other weights; captured graphs stay valid."""
        if self.shape.device.type == "cuda":  # tests rehearse this class on a CPU
            torch.cuda.synchronize()
        self._staging.next_round()
        # Old keys and values must go: attention multiplies those after the end of a row by zero, and 0 * NaN is NaN.
        for tensor in (*self._state(), self._numbers, *self.cache.keys, *self.cache.values):
            tensor.zero_()

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def start(self, starts: Sequence[Start]) -> None:
        """Read the rest of each prompt, and choose each row's first token."""
        self._snapshots.note_started([s.slot for s in starts])
        if self._reader is not None:
            # The reader must not keep a method of this decoder: a cycle would hold the cache until a collection.
            self._reader.start(starts, lambda *inputs: self._captured(lambda: self._read_packed(*inputs)))
            return
        for batch in _batches(starts, limit=_PREFILL_TOKENS):
            batch = self._with_useful_prefixes(batch)
            self._set_up(batch)
            self._accept(self._slots_of(batch), self._read(batch), any(s.top_p is not None for s in batch))

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def run(self, steps: int, *, rows: int, longest_row: int, with_top_p: bool) -> None:
        """Write up to `steps` tokens in each active row of the first slots; a row that ends writes no more."""
        seen = min(self.length, longest_row + steps)
        quarter = -(-self.slots // 4)
        rows = min(self.slots, -(-rows // quarter) * quarter)
        # The kernel uses each row's own length, so one captured step serves all lengths.
        seen = self.length if self.shape.has_kernel else min(self.length, -(-seen // _LENGTH_STEP) * _LENGTH_STEP)
        key = (rows, seen, with_top_p)
        if key not in self._graphs:
            self._graphs[key] = self._captured(lambda: self._step(*key))
        for _ in range(steps):
            self._graphs[key].replay()
        self._snapshots.take()

    def progress(self) -> tuple[np.ndarray, np.ndarray]:
        """The number of tokens that each slot has written, and whether it is still writing.

        This may be the state before the last `run`, so that the device never waits for the processor.
        """
        (count, is_active, _), is_shown = self._snapshots.newest()
        self._staging.next_round()
        return np.where(is_shown, count, 1), is_active | ~is_shown

    def note_chances(self) -> None:
        """Note log-probabilities from now on; slow, for tests."""
        self.chances = torch.zeros(len(self._rows), self.longest, device=self.shape.device)
        self._graphs.clear()
        self._pool.renew()
        if self._reader is not None:
            self._reader.forget()

    def written(self, slots: Sequence[int]) -> np.ndarray:
        """The tokens that some slots had written at the last `progress`."""
        rows: np.ndarray = self._snapshots.newest_shown[2][list(slots)]
        return rows

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def copy(self, sources: Sequence[int], targets: Sequence[int], *, lengths: Sequence[int]) -> None:
        """Copy the beginning of some slots to others."""
        if self._reader is None:
            self.cache.copy(self._to_device(sources), self._to_device(targets), length=max(lengths))
            return
        for copies in independent_copies(list(zip(sources, targets, lengths, strict=True))):
            self.cache.copy_exactly(self._to_device(copies), longest=max(length for _, _, length in copies))

    def _with_useful_prefixes(self, starts: list[Start]) -> list[Start]:
        """Ignore short cached prefixes: a GPU reads whole prompts faster than the rest of prompts by a mask."""
        if any(2 * s.known > len(s.tokens) for s in starts):
            return starts
        return [replace(s, known=0) for s in starts]

    def _set_up(self, starts: Sequence[Start]) -> None:
        slots = self._slots_of(starts)
        numbers = np.zeros((len(starts), self.longest), dtype=np.float32)
        for row, start in enumerate(starts):
            numbers[row, : start.limit] = start.numbers[: start.limit]
        self._numbers[slots] = self._to_device(numbers)
        self._limit[slots] = self._to_device([s.limit for s in starts])
        self._temperature[slots] = self._to_device(np.array([s.temperature for s in starts], dtype=np.float32))
        top_p = np.array([1.0 if s.top_p is None else s.top_p for s in starts], dtype=np.float32)
        self._top_p[slots] = self._to_device(top_p)
        self._position[slots] = self._to_device([len(s.tokens) - 1 for s in starts])
        # Not `tensor[slots] = 0`, which waits for the device.
        self._count.index_fill_(0, slots, 0)
        self._is_active.index_fill_(0, slots, True)

    def _slots_of(self, starts: Sequence[Start]) -> torch.Tensor:
        return self._to_device([s.slot for s in starts])

    def _to_device(self, values: Sequence[int] | Sequence[Sequence[int]] | np.ndarray) -> torch.Tensor:
        """Copy numbers to the device through pinned memory, without waiting for work in progress there."""
        array = np.ascontiguousarray(values)
        return self._staging.to_device(array)

    def _read(self, starts: Sequence[Start]) -> torch.Tensor:
        """Read prompts together; the logits after the last token of each."""
        longest = max(len(s.tokens) - s.known for s in starts)
        tokens = np.zeros((len(starts), longest), dtype=np.int64)
        # Padding is written to the extra position of a slot, and attends to real tokens so that it is never NaN.
        positions = np.full((len(starts), longest), self.length, dtype=np.int64)
        for row, start in enumerate(starts):
            new = len(start.tokens) - start.known
            tokens[row, :new] = start.tokens[start.known :]
            positions[row, :new] = np.arange(start.known, len(start.tokens))
        device_positions = self._to_device(positions)
        seen, mask = None, None
        if any(s.known for s in starts):
            seen = min(self.length, -(-max(len(s.tokens) for s in starts) // 8) * 8)
            mask = mask_of(device_positions, seen=seen, shape=self.shape)
        self.cache.tokens_of(self._slots_of(starts), device_positions, seen=seen)
        hidden = self._forward(self._to_device(tokens), device_positions, mask)
        last = self._to_device([len(s.tokens) - s.known - 1 for s in starts])
        return self._logits(hidden[self._rows[: len(starts)], last])

    def _read_packed(self, inputs: PromptInputs, with_top_p: bool) -> None:
        """Set up the rows that a batch starts, read its tokens, and choose each row's first token."""
        slots = inputs.slots
        self._numbers[slots] = inputs.numbers
        self._limit[slots] = inputs.limit
        self._temperature[slots] = inputs.temperature
        self._top_p[slots] = inputs.top_p
        self._position[slots] = inputs.last_position
        self._token[slots] = inputs.last_token
        self._count.index_fill_(0, slots, 0)
        self._is_active[slots] = inputs.is_read
        if len(inputs.tokens):
            self.cache.packed_tokens(inputs.blocks)
            hidden = self._forward(inputs.tokens[None], inputs.positions[None], None)
            self._accept(slots, self._logits(hidden[0, inputs.last]), with_top_p)
        self._is_active[slots] = self._is_active[slots] | inputs.is_ready

    def _step(self, rows: int, seen: int, with_top_p: bool) -> None:
        positions = self._position[:rows]
        self.cache.one_token_each(positions, self._is_active[:rows], seen=seen)
        mask = None if self.shape.has_kernel else mask_of(positions[:, None], seen=seen, shape=self.shape)
        hidden = self._forward(self._token[:rows, None], positions[:, None], mask)
        self._accept(self._rows[:rows], self._logits(hidden[:, 0]), with_top_p)

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        decoder = self._model.get_decoder()
        hidden: torch.Tensor = decoder(
            input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=self.cache, use_cache=True
        ).last_hidden_state
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits in float32: bfloat16 would shift probabilities by several percent."""
        head = self._model.get_output_embeddings()
        if hidden.device.type == "cuda" and getattr(head, "bias", None) is None:
            return torch.mm(hidden, head.weight.t(), out_dtype=torch.float32)
        logits: torch.Tensor = head(hidden)
        return logits

    def _accept(self, rows: torch.Tensor, logits: torch.Tensor, with_top_p: bool) -> None:
        """Choose each row's next token; an end token, or the last token within the limit, ends the row."""
        if self.shape.has_kernel and not with_top_p and self.chances is None:
            settings = RowSettings(self._numbers, self._temperature, self._limit, self._ends)
            accept_tokens(rows, logits, RowState(*self._state()), settings)
            return
        active, count = self._is_active[rows], self._count[rows]
        index = count.clamp(max=self.longest - 1)
        top_p = self._top_p[rows] if with_top_p else None
        token = choose(logits, self._numbers[rows, index], self._temperature[rows], top_p)
        if self.chances is not None:
            scaled = torch.log_softmax(logits.float() / self._temperature[rows, None], dim=-1)
            self.chances[rows, index] = torch.where(
                active, scaled.gather(-1, token[:, None])[:, 0], self.chances[rows, index]
            )
        self._written[rows, index] = torch.where(active, token, self._written[rows, index])
        count = count + active
        self._count[rows] = count
        self._token[rows] = torch.where(active, token, self._token[rows])
        self._position[rows] = torch.where(active, self._position[rows] + 1, self._position[rows])
        is_end = (token[:, None] == self._ends).any(-1)
        self._is_active[rows] = active & ~is_end & (count < self._limit[rows])

    def _captured(self, work: Callable[[], None]) -> Any:
        """Capture some work as a CUDA graph, which is replayed without any work for the processor."""
        before = [tensor.clone() for tensor in self._state()]
        stream = self._pool.stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        # Graphs are replayed one after the other, so they can share the memory of their intermediate results.
        graph = captured_at_second_try(self._pool, work)
        for tensor, saved in zip(self._state(), before, strict=True):
            tensor.copy_(saved)
        return graph

    def _state(self) -> list[torch.Tensor]:
        return [self._token, self._position, self._count, self._written, self._is_active]


def captured_at_second_try(pool: GraphPool, work: Callable[[], None]) -> Any:
    """Capture some work; the first try may have been spoilt by another thread."""
    with suppress(NotCaptured):
        return pool.capture(work)
    try:
        return pool.capture(work)
    except NotCaptured as error:
        raise UserError(
            f"The steps of this model cannot be captured as CUDA graphs: {error}",
            hint="Serve it with vLLM and use openai:NAME@URL, or set SKILLMIX_DEVICE=cpu.",
        ) from error


def independent_copies(copies: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Group copies in their order, such that no slot is both a source and a target of a group."""
    groups: list[list[tuple[int, int, int]]] = []
    sources: set[int] = set()
    targets: set[int] = set()
    for source, target, length in copies:
        if not groups or target in sources or source in targets:
            groups.append([])
            sources, targets = set(), set()
        groups[-1].append((source, target, length))
        sources.add(source)
        targets.add(target)
    return groups


def _batches(starts: Sequence[Start], *, limit: int) -> list[list[Start]]:
    """Group rows of similar length, so that there is little padding."""
    batches: list[list[Start]] = []
    longest = 0
    for start in sorted(starts, key=lambda s: len(s.tokens) - s.known):
        longest = max(longest, len(start.tokens) - start.known)
        if not batches or longest * (len(batches[-1]) + 1) > limit:
            batches.append([])
            longest = len(start.tokens) - start.known
        batches[-1].append(start)
    return batches


def uniforms(seed: int, count: int) -> np.ndarray:
    """The random numbers in [0, 1) of one call; they depend on its seed alone, and are the same on every machine."""
    raw = shake_128(f"skillmix tokens {seed}".encode()).digest(4 * count)
    # 24 bits: a 32-bit float holds them without rounding up to 1.
    numbers: np.ndarray = (np.frombuffer(raw, dtype="<u4") >> 8).astype(np.float32) / np.float32(1 << 24)
    return numbers


def choose(
    logits: torch.Tensor, numbers: torch.Tensor, temperatures: torch.Tensor, top_p: torch.Tensor | None
) -> torch.Tensor:
    """Choose a token for each row by inverse transform sampling; at temperature 0 the likeliest token."""
    logits = logits.float()
    likeliest = logits.argmax(-1)
    is_greedy = temperatures <= 0
    scaled = logits / torch.where(is_greedy, 1.0, temperatures)[:, None]
    chances = torch.softmax(scaled, dim=-1)
    if top_p is not None:
        # A row without top_p keeps its exact probabilities, whatever other rows have.
        chances = torch.where((top_p < 1)[:, None], _nucleus(chances, top_p), chances)
    cumulative = chances.cumsum(-1)
    targets = numbers[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    return torch.where(is_greedy, likeliest, drawn)


def _nucleus(chances: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The probabilities of the likeliest tokens that together reach top_p; all others are zero."""
    ordered, order = chances.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p[:, None], ordered, 0.0)
    return torch.zeros_like(chances).scatter_(-1, order, kept)
