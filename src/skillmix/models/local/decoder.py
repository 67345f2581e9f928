"""The device's part of generation: rows that read their prompt and then write, each at its own place."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import shake_128
from typing import Any, Final

import numpy as np
import torch

from skillmix.models.local.kernels import fuse
from skillmix.models.local.kv_cache import BLOCK, CacheShape, SlotCache, mask_of

_LENGTH_STEP: Final = 128
"""Captured steps look at a multiple of this many places."""
_STAGE: Final = 64 << 20
"""Bytes of pinned memory for what is sent between two looks."""
_DTYPES: Final = {"int64": torch.int64, "float32": torch.float32}
_TRIED_LENGTH: Final = 160
"""Places of a row in the trial of a product: more than one block, and a part of another."""
_LIMIT_OF_PREFILL: Final = 1 << 18
"""Padded tokens that a GPU reads in one go."""


@dataclass(frozen=True, slots=True)
class Start:
    """A row to be started: what it has still to read, and how it writes."""

    slot: int
    tokens: Sequence[int]
    """The whole prompt."""
    known: int
    """How many of them the slot has already."""
    numbers: np.ndarray
    """One uniform for each token it may write."""
    temperature: float
    top_p: float | None
    limit: int


class Decoder:
    """Slots of one model, and the steps that fill them."""

    def __init__(
        self, model: Any, *, slots: int, length: int, longest: int, ends: Sequence[int], width: int | None = None
    ) -> None:
        """On a CPU, `width` is the number of rows in a matrix product: the slots, filled up to a multiple of it."""
        self.shape = CacheShape(model)
        self.slots, self.length, self.longest = slots, length, longest
        self.width = width or slots
        self.cache = SlotCache(self.shape, slots=slots, length=length)
        self.is_captured = self.shape.device.type == "cuda"
        self._model = model
        device = self.shape.device
        rows = -(-slots // self.width) * self.width
        self._ends = torch.tensor(list(ends), device=device)
        self._rows = torch.arange(rows, device=device)
        self._token = torch.zeros(rows, dtype=torch.long, device=device)
        self._place = torch.zeros(rows, dtype=torch.long, device=device)
        self._count = torch.zeros(rows, dtype=torch.long, device=device)
        self._limit = torch.ones(rows, dtype=torch.long, device=device)
        self._temperature = torch.ones(rows, device=device)
        self._top_p = torch.ones(rows, device=device)
        self._numbers = torch.zeros(rows, longest, device=device)
        self._written = torch.zeros(rows, longest, dtype=torch.long, device=device)
        self._is_active = torch.zeros(rows, dtype=torch.bool, device=device)
        if self.is_captured:
            fuse(model)
        self._stage = torch.empty(_STAGE, dtype=torch.uint8, pin_memory=True) if self.is_captured else None
        self._staged = 0
        self._graphs: dict[tuple[int, int, bool], Any] = {}
        self.chances: torch.Tensor | None = None
        """Where the log-probability of every written token is noted, if anybody wants to know."""

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def start(self, starts: Sequence[Start]) -> None:
        """Read the rest of each prompt, and write each row's first token."""
        if not self.is_captured:
            for start in starts:
                self._set_up([start])
                self._accept(self._slots_of([start]), self._read_by_blocks(start), start.top_p is not None)
            return
        for batch in _batches(starts, most=_LIMIT_OF_PREFILL):
            batch = self._worth_knowing(batch)
            self._set_up(batch)
            self._accept(self._slots_of(batch), self._read(batch), any(s.top_p is not None for s in batch))

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def run(self, steps: int, *, rows: int, longest_row: int, with_top_p: bool) -> None:
        """Write that many tokens in each active row of the first slots; rows that end stop by themselves."""
        seen = min(self.length, longest_row + steps)
        if not self.is_captured:
            for _ in range(steps):
                for first in range(0, len(self._rows), self.width):
                    self._step_of_width(first, with_top_p)
            return
        quarter = -(-self.slots // 4)
        rows = min(self.slots, -(-rows // quarter) * quarter)
        # The kernel looks at each row's own length, so that one recording serves all.
        seen = self.length if self.shape.has_kernel else min(self.length, -(-seen // _LENGTH_STEP) * _LENGTH_STEP)
        key = (rows, seen, with_top_p)
        if key not in self._graphs:
            self._graphs[key] = self._capture(*key)
        for _ in range(steps):
            self._graphs[key].replay()

    def progress(self) -> tuple[np.ndarray, np.ndarray]:
        """How many tokens each slot has written, and which are still writing."""
        both = torch.stack((self._count, self._is_active.long())).cpu().numpy()
        self._staged = 0  # the device has come this far, and has read what was sent
        return both[0], both[1].astype(bool)

    def note_chances(self) -> None:
        """Note log-probabilities from now on; for tests, as it takes time. Not before a captured step."""
        self.chances = torch.zeros(len(self._rows), self.longest, device=self.shape.device)
        self._graphs.clear()

    def written(self, slots: Sequence[int]) -> np.ndarray:
        """The tokens of some slots."""
        rows: np.ndarray = self._written[self._sent(slots)].cpu().numpy()
        return rows

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def copy(self, sources: Sequence[int], targets: Sequence[int], *, length: int) -> None:
        """Give slots the beginning of others."""
        self.cache.copy(self._sent(sources), self._sent(targets), length=length)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def rows_agree(self) -> bool:
        """Whether this processor gives equal rows of a step equal logits, to the last bit. Spoils the decoder."""
        generator = torch.Generator().manual_seed(0)
        for store in (*self.cache.keys, *self.cache.values):
            store.copy_(torch.randn(store.shape[1:], generator=generator))
        self._place.fill_(self.length - 1)
        self._token.fill_(self._model.get_input_embeddings().weight.shape[0] // 2)
        logits = self._logits_of_width(0)
        return bool((logits == logits[0]).all())

    def _worth_knowing(self, starts: list[Start]) -> list[Start]:
        """On a GPU whole prompts are read faster than most of one with an eye on the rest."""
        if any(2 * s.known > len(s.tokens) for s in starts):
            return starts
        return [replace(s, known=0) for s in starts]

    def _set_up(self, starts: Sequence[Start]) -> None:
        slots = self._slots_of(starts)
        numbers = np.zeros((len(starts), self.longest), dtype=np.float32)
        for row, start in enumerate(starts):
            numbers[row, : start.limit] = start.numbers[: start.limit]
        self._numbers[slots] = self._sent(numbers)
        self._limit[slots] = self._sent([s.limit for s in starts])
        self._temperature[slots] = self._sent(np.array([s.temperature for s in starts], dtype=np.float32))
        top_p = np.array([1.0 if s.top_p is None else s.top_p for s in starts], dtype=np.float32)
        self._top_p[slots] = self._sent(top_p)
        self._place[slots] = self._sent([len(s.tokens) - 1 for s in starts])
        # Not `tensor[slots] = 0`, which waits for the device.
        self._count.index_fill_(0, slots, 0)
        self._is_active.index_fill_(0, slots, True)

    def _slots_of(self, starts: Sequence[Start]) -> torch.Tensor:
        return self._sent([s.slot for s in starts])

    def _sent(self, values: Sequence[int] | Sequence[Sequence[int]] | np.ndarray) -> torch.Tensor:
        """Numbers on the device; through pinned memory, so that nobody waits for what the device has still to do."""
        array = np.ascontiguousarray(values)
        if self._stage is not None and self._staged + array.nbytes <= len(self._stage):
            place = self._stage[self._staged : self._staged + array.nbytes]
            self._staged += -(-array.nbytes // 16) * 16
            place.copy_(torch.from_numpy(array.reshape(-1).view(np.uint8)))
            sent = place.to(self.shape.device, non_blocking=True)
            return sent.view(_DTYPES[array.dtype.name]).view(array.shape)
        return torch.from_numpy(array).to(self.shape.device)

    def _read(self, starts: Sequence[Start]) -> torch.Tensor:
        """Logits after the last token of each prompt."""
        longest = max(len(s.tokens) - s.known for s in starts)
        tokens = np.zeros((len(starts), longest), dtype=np.int64)
        # Padding is written where nobody looks, and looks at what is there so that it stays a number.
        places = np.full((len(starts), longest), self.length, dtype=np.int64)
        for row, start in enumerate(starts):
            new = len(start.tokens) - start.known
            tokens[row, :new] = start.tokens[start.known :]
            places[row, :new] = np.arange(start.known, len(start.tokens))
        where = self._sent(places)
        seen, mask = None, None
        if any(s.known for s in starts):
            seen = min(self.length, -(-max(len(s.tokens) for s in starts) // 8) * 8)
            mask = mask_of(where, seen=seen, shape=self.shape)
        self.cache.tokens_of(self._slots_of(starts), where, seen=seen)
        hidden = self._forward(self._sent(tokens), where, mask)
        last = self._sent([len(s.tokens) - s.known - 1 for s in starts])
        return self._logits(hidden[self._rows[: len(starts)], last])

    def _read_by_blocks(self, start: Start) -> torch.Tensor:
        """Logits after the last token of a prompt, read in blocks whose shapes depend on nothing but their place.

        A matrix product rounds differently with another number of rows. On a CPU each block is therefore read alone, so
        that what a slot knows of whole blocks is the same to the last bit whoever read them, and when.
        """
        hidden = torch.empty(0)
        for first in range(start.known, len(start.tokens), BLOCK):
            part = list(start.tokens[first : first + BLOCK])
            where = self._sent([list(range(first, first + len(part)))])
            seen = first + len(part)
            self.cache.tokens_of(self._slots_of([start]), where, seen=seen)
            hidden = self._forward(self._sent([part]), where, mask_of(where, seen=seen, shape=self.shape))
        return self._logits(hidden[:, -1])

    def _step_of_width(self, first: int, with_top_p: bool) -> None:
        """A step on a CPU of the rows of one product, which are always equally many, used or not."""
        rows = slice(first, first + self.width)
        if bool(self._is_active[rows].any()):
            self._accept(self._rows[rows], self._logits_of_width(first), with_top_p)

    def _logits_of_width(self, first: int) -> torch.Tensor:
        rows = slice(first, first + self.width)
        places = self._place[rows]
        self.cache.one_token_each_by_blocks(first, places)
        hidden = self._forward(self._token[rows, None], places[:, None], None)
        return self._logits(hidden[:, 0])

    def _step(self, rows: int, seen: int, with_top_p: bool) -> None:
        places = self._place[:rows]
        self.cache.one_token_each(places, self._is_active[:rows], seen=seen)
        mask = None if self.shape.has_kernel else mask_of(places[:, None], seen=seen, shape=self.shape)
        hidden = self._forward(self._token[:rows, None], places[:, None], mask)
        self._accept(self._rows[:rows], self._logits(hidden[:, 0]), with_top_p)

    def _forward(self, tokens: torch.Tensor, places: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        decoder = self._model.get_decoder()
        hidden: torch.Tensor = decoder(
            input_ids=tokens, attention_mask=mask, position_ids=places, past_key_values=self.cache, use_cache=True
        ).last_hidden_state
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """In full precision: rounding them to bfloat16 would shift probabilities by several percent."""
        head = self._model.get_output_embeddings()
        if hidden.device.type == "cuda" and getattr(head, "bias", None) is None:
            return torch.mm(hidden, head.weight.t(), out_dtype=torch.float32)
        logits: torch.Tensor = head(hidden)
        return logits

    def _accept(self, rows: torch.Tensor, logits: torch.Tensor, with_top_p: bool) -> None:
        """Choose each row's next token; one that ends, or is the last it may write, ends the row."""
        active, count = self._is_active[rows], self._count[rows]
        place = count.clamp(max=self.longest - 1)
        top_p = self._top_p[rows] if with_top_p else None
        token = choose(logits, self._numbers[rows, place], self._temperature[rows], top_p)
        if self.chances is not None:
            scaled = torch.log_softmax(logits.float() / self._temperature[rows, None], dim=-1)
            self.chances[rows, place] = torch.where(
                active, scaled.gather(-1, token[:, None])[:, 0], self.chances[rows, place]
            )
        self._written[rows, place] = torch.where(active, token, self._written[rows, place])
        count = count + active
        self._count[rows] = count
        self._token[rows] = torch.where(active, token, self._token[rows])
        self._place[rows] = torch.where(active, self._place[rows] + 1, self._place[rows])
        is_end = (token[:, None] == self._ends).any(-1)
        self._is_active[rows] = active & ~is_end & (count < self._limit[rows])

    def _capture(self, rows: int, seen: int, with_top_p: bool) -> Any:
        """Record a step once, so that the processor only has to say 'again'."""
        kept = [t.clone() for t in self._state()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step(rows, seen, with_top_p)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            self._step(rows, seen, with_top_p)
        for tensor, before in zip(self._state(), kept, strict=True):
            tensor.copy_(before)
        return graph

    def _state(self) -> list[torch.Tensor]:
        return [self._token, self._place, self._count, self._written, self._is_active]


def independent_width(model: Any, *, most: int) -> int:
    """The largest number of rows, at most so many, for which a product treats every row alike on this processor.

    Some processors compute the last rows of a product in another way than the first. A text must not depend on the
    slot it is written in, so such products are made smaller until their rows agree.
    """
    width = most
    while width > 1:
        if Decoder(model, slots=width, length=_TRIED_LENGTH, longest=1, ends=[]).rows_agree():
            return width
        width = -(-width // 2)
    return width


def _batches(starts: Sequence[Start], *, most: int) -> list[list[Start]]:
    """Rows of like length together, so that little is padding."""
    batches: list[list[Start]] = []
    longest = 0
    for start in sorted(starts, key=lambda s: len(s.tokens) - s.known):
        longest = max(longest, len(start.tokens) - start.known)
        if not batches or longest * (len(batches[-1]) + 1) > most:
            batches.append([])
            longest = len(start.tokens) - start.known
        batches[-1].append(start)
    return batches


def uniforms(seed: int, count: int) -> np.ndarray:
    """The numbers in [0, 1) of one call; a function of its seed alone, the same on every machine, for ever."""
    raw = shake_128(f"skillmix tokens {seed}".encode()).digest(4 * count)
    # 24 bits: what a 32-bit float holds without rounding up to 1.
    numbers: np.ndarray = (np.frombuffer(raw, dtype="<u4") >> 8).astype(np.float32) / np.float32(1 << 24)
    return numbers


def choose(
    logits: torch.Tensor, numbers: torch.Tensor, temperatures: torch.Tensor, top_p: torch.Tensor | None
) -> torch.Tensor:
    """A token for each row; at temperature 0 the likeliest."""
    logits = logits.float()
    likeliest = logits.argmax(-1)
    is_greedy = temperatures <= 0
    scaled = logits / torch.where(is_greedy, 1.0, temperatures)[:, None]
    chances = torch.softmax(scaled, dim=-1)
    if top_p is not None:
        # A row without a limit keeps its chances as they are, whatever limits other rows have.
        chances = torch.where((top_p < 1)[:, None], _nucleus(chances, top_p), chances)
    cumulative = chances.cumsum(-1)
    wanted = numbers[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, wanted, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    return torch.where(is_greedy, likeliest, drawn)


def _nucleus(chances: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Only the likeliest tokens that together reach top_p, the one that reaches it included."""
    ordered, order = chances.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p[:, None], ordered, 0.0)
    return torch.zeros_like(chances).scatter_(-1, order, kept)
