"""Continuous batching: waiting requests become rows, and rows that end make room for new ones.

If a slot already contains the beginning of a row's prompt, the row reuses those tokens instead of reading them again.
A `SlotTable` records the tokens in each slot.

`BatchedGenerator` uses the `generate` method of transformers for models that this package's decoders cannot run. These
are models with sliding windows, with layers other than attention, with experts or with a special attention, and all
models on devices other than CPUs and CUDA GPUs. Each call has its own random numbers there too, but the rows of a batch
are padded to one length, which affects rounding. A text may therefore depend on its batch.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from skillmix.calls import CallProblem, GenerateKey, Outcome, Reply, Request
from skillmix.errors import LOG
from skillmix.models.local.attention import CacheShape, prepared
from skillmix.models.local.chat import Renderer
from skillmix.models.local.cpu.cpu_decoder import GRAIN, MOST_SLOTS, CpuCache, CpuDecoder, PromptPiece
from skillmix.models.local.gpu.gpu_decoder import GpuDecoder, SlotCache
from skillmix.models.local.gpu.kernels import can_step
from skillmix.models.local.sampling import DEFAULT_LIMIT, Start, choose, numbers_of, start_of

Done = Callable[[Request, Outcome], None]
"""A function that receives a request and its outcome."""
BLOCK: Final = 64
"""Tokens per block; the search for a matching slot compares whole blocks."""
_CANDIDATES: Final = 4
"""The most slots to compare when several contain the same blocks."""

Chain = list[int]
"""For each whole block of a prompt, a hash of the prompt up to the end of that block."""


class _Pace(NamedTuple):
    """The pace of a generator's work on one kind of device."""

    steps: int
    """Steps between two checks for rows that have ended."""
    rows: int
    """The most rows that start or are delivered in one round; a GPU works on other rows meanwhile."""
    grain: int
    """Prompts are cached in whole pieces of this many tokens."""


_PACES: Final = {"cuda": _Pace(8, 768, 1), "cpu": _Pace(1, 64, GRAIN)}
_TOKENISED: Final = 256
"""The most requests that are tokenized in one round on a GPU."""
_PATIENCE: Final = 0.2
_SHORT_PATIENCE: Final = 0.03
"""Seconds for which an ended row's slot is reserved for the next turn while other rows run, or while none does."""
_PATIENT_ROUNDS: Final = 8
"""The most rounds for which a slot is reserved, because a small model can reread a prompt within `_PATIENCE`."""
_LENGTH_STEP: Final = 128
"""The length of a slot is a multiple of this many positions."""
_LIMIT_STEP: Final = 64
"""A decoder's maximum text length is a multiple of this many tokens."""
_TYPICAL_LENGTH: Final = 1024
_SHARE_OF_MEMORY: Final = 0.6
"""The share of a GPU's memory that slots may fill."""
_CPU_SLOTS: Final = (8, 32)
"""The fewest and most simultaneous conversations on a CPU; more are faster, but need more memory."""
_CPU_CACHE_BYTES: Final = 2 << 30
_MAX_SLOTS: Final = 2048
_BATCH: Final = {"cuda": 64, "cpu": 8, "mps": 8}
"""The default number of simultaneous conversations in a `BatchedGenerator`."""


class Match(NamedTuple):
    """A slot whose tokens have a common prefix with a prompt, and the length of that prefix."""

    slot: int
    length: int


class SlotTable:
    """The tokens of every slot; an idle slot keeps its tokens until another row needs the slot."""

    def __init__(self, slots: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(slots)]
        self._chains: list[Chain] = [[] for _ in range(slots)]
        self._free = list(range(slots - 1, -1, -1))
        self.resting: dict[int, float] = {}
        """The idle slots, each with the time at which its row ended, the earliest first."""
        self._holders: dict[int, set[int]] = {}
        """Maps the hash of a block and everything before it to the slots that contain both."""

    def match(self, slot: int, prompt: Sequence[int]) -> Match:
        """Return how many of a prompt's tokens a slot contains.

        The last token never counts, because it must be read to compute the first logits.
        """
        return Match(slot, min(common_length(self.tokens[slot], prompt), len(prompt) - 1))

    def find(self, prompt: Sequence[int], chain: Chain) -> Match | None:
        """Find the slot that contains the longest prefix of a prompt; None if no slot contains its first block."""
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
        # These slots contain the same blocks and differ in the next one, so the best of a few slots is good enough.
        following = prompt[held : held + BLOCK]
        best = max(
            islice(holders, _CANDIDATES),
            key=lambda slot: common_length(self.tokens[slot][held : held + BLOCK], following),
        )
        return self.match(best, prompt)

    def free(self, *, now: float, patience: float) -> int | None:
        """Return an unused slot, or the longest-idle slot if it has been idle for `patience` seconds; else None."""
        if self._free:
            return self._free.pop()
        for slot, since in self.resting.items():
            if now - since < patience:
                return None
            del self.resting[slot]
            self.set(slot, [])
            return slot
        return None

    def set(self, slot: int, tokens: list[int], chain: Chain | None = None) -> None:
        """Record the tokens in a slot, with their chain if the caller knows it."""
        before, after = self._chains[slot], chain_of(tokens) if chain is None else chain
        same = common_length(before, after)
        for block in before[same:]:
            holders = self._holders[block]
            holders.discard(slot)
            if not holders:
                del self._holders[block]
        self.tokens[slot], self._chains[slot] = tokens, after
        for block in after[same:]:
            self._holders.setdefault(block, set()).add(slot)

    def rest(self, slot: int, tokens: list[int], chain: Chain | None = None, *, now: float) -> None:
        """Record that a slot's row has ended; a later row may reuse the tokens."""
        self.set(slot, tokens, chain)
        self.resting[slot] = now


def chain_of(tokens: Sequence[int], beginning: Chain | None = None) -> Chain:
    """Compute the chain of a list of tokens, starting with the chain of its beginning if that is known."""
    chain = list(beginning or ())
    last = chain[-1] if chain else 0
    for start in range(len(chain) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
        last = hash((last, *tokens[start : start + BLOCK]))
        chain.append(last)
    return chain


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two lists."""
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length
    low, high = 0, length  # the first `low` tokens are equal, but the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle)
    return low


@dataclass(slots=True)
class _Row:
    """A request to be generated in a slot, with its tokenized prompt and its token limit."""

    request: Request
    tokens: list[int]
    chain: Chain
    limit: int

    @property
    def conversation(self) -> tuple[object, ...]:
        """A key that is shared by all turns of a conversation."""
        key = self.request.key
        return (key.student, key.combination, key.generation) if isinstance(key, GenerateKey) else (key,)

    def opening(self, known_blocks: int) -> object:
        """Return a key that rows share if their known blocks and the next block are the same."""
        return self.chain[known_blocks] if known_blocks < len(self.chain) else tuple(self.tokens)


@dataclass(slots=True)
class _StartingRows:
    """The rows that start in one round."""

    starts: list[Start] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    openings: set[object] = field(default_factory=set)
    """Keys of the starting rows; a later row with an equal key waits, so that it can reuse the block being read."""


class _Writer:
    """One model on one device, with its waiting requests; all methods must be called from the same thread."""

    def __init__(
        self, model: Any, renderer: Renderer, *, slots: int, done: Done, ends: Sequence[int] | None = None
    ) -> None:
        self._model = model
        self._renderer = renderer
        self.slots = slots
        self.done = done
        self._ends = renderer.ends(model) if ends is None else list(ends)
        self._longest: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._new: deque[Request] = deque()

    def add(self, requests: Sequence[Request]) -> None:
        """Add requests to the queue; they are tokenized later."""
        self._new.extend(requests)

    def _tokenized(self, most: int) -> list[tuple[Request, list[int]]]:
        """Take waiting requests and tokenize their prompts; a prompt that is too long is answered immediately."""
        requests = [self._new.popleft() for _ in range(min(most, len(self._new)))]
        prompts = self._renderer.tokens([r.messages for r in requests], [r.decoding.extra for r in requests])
        found = []
        for request, tokens in zip(requests, prompts, strict=True):
            limit = request.decoding.max_tokens or DEFAULT_LIMIT
            if self._longest is None or len(tokens) + limit <= self._longest:
                found.append((request, tokens))
                continue
            detail = f"{len(tokens)} tokens and a reply of up to {limit} exceed the model's limit of {self._longest}"
            self.done(request, CallProblem("failed", "prompt too long", detail, is_free=True))
        return found

    def _answer(self, written: Sequence[tuple[Request, list[int], list[int]]]) -> None:
        """Decode generated tokens, and answer the requests; each item is a request, its prompt and its new tokens."""
        texts = self._renderer.texts([tokens[:-1] if tokens[-1] in self._ends else tokens for _, _, tokens in written])
        for (request, prompt, tokens), text in zip(written, texts, strict=True):
            reply = Reply(
                text=self._renderer.opening(prompt) + text,
                finish="stop" if tokens[-1] in self._ends else "length",
                input_tokens=len(prompt),
                output_tokens=len(tokens),
            )
            self.done(request, reply)


class Generator(_Writer):
    """Runs a model with continuous batching, at most one row per slot at a time."""

    def __init__(
        self, model: Any, renderer: Renderer, *, slots: int, done: Done, ends: Sequence[int] | None = None
    ) -> None:
        self._is_gpu = model.device.type == "cuda"
        self._pace = _PACES["cuda" if self._is_gpu else "cpu"]
        slots = slots if self._is_gpu else min(slots, MOST_SLOTS)
        super().__init__(prepared(model), renderer, slots=slots, done=done, ends=ends)
        self._ended: list[tuple[int, _Row, list[int]]] = []
        self._going_on: deque[_Row] = deque()
        self._fresh: deque[_Row] = deque()
        self._active: dict[int, _Row] = {}
        self._resting: dict[tuple[object, ...], int] = {}
        """Maps each conversation that may continue to its slot."""
        self._counts = np.zeros(0, dtype=np.int64)
        """The number of tokens that each slot has written."""
        self._decoder: GpuDecoder | CpuDecoder | None = None
        self._table = SlotTable(0)
        self.read_tokens = 0
        """The number of prompt tokens that were read because no slot contained them."""
        self._round_s = 0.0
        """The duration in seconds of the last round that generated tokens."""

    def forget(self) -> None:
        """Drop the tokens of idle slots, so that a benchmark's second run cannot reuse tokens from its first run."""
        self._table = SlotTable(self.slots)
        self._resting.clear()

    @property
    def is_idle(self) -> bool:
        """Whether no request is waiting or running."""
        return not (self._new or self._going_on or self._fresh or self._active or self._ended)

    def work(self) -> None:
        """Do one round: start waiting rows, generate some tokens, and deliver ended rows."""
        begun = time.monotonic()
        try:
            if not self._active or not self._is_gpu:
                self._deliver()
            self._queue_new()
            self._start_waiting()
            if self._active:
                self._write()
                self._round_s = time.monotonic() - begun
            elif self._fresh or self._going_on:
                time.sleep(_SHORT_PATIENCE / 10)
        except torch.OutOfMemoryError:
            if self.slots == 1:
                raise
            self._shrink()

    def _queue_new(self) -> None:
        """Tokenize new requests, and queue them as rows."""
        for request, tokens in self._tokenized(_TOKENISED if self._is_gpu else len(self._new)):
            row = _Row(request, tokens, chain_of(tokens), request.decoding.max_tokens or DEFAULT_LIMIT)
            (self._fresh if self._own_slot(row) is None else self._going_on).append(row)

    def _own_slot(self, row: _Row) -> Match | None:
        """Return the idle slot in which the row's conversation can continue."""
        slot = self._resting.get(row.conversation)
        if slot is None or slot not in self._table.resting:
            return None
        match = self._table.match(slot, row.tokens)
        return match if 2 * match.length > len(self._table.tokens[slot]) else None

    def _shrink(self) -> None:
        """Halve the number of slots.

        Rows restart and generate the same texts, because a seed determines all random numbers.
        """
        self.slots //= 2
        self._fresh.extendleft([*self._active.values(), *self._going_on])
        self._active.clear()
        self._going_on.clear()
        self._deliver_all()
        self._decoder = None
        if self._is_gpu:
            torch.cuda.empty_cache()

    def _start_waiting(self) -> None:
        decoder = self._fitting_decoder() if self._going_on or self._fresh else None
        if decoder is None:
            return
        starting = _StartingRows()
        for queue in (self._going_on, self._fresh):
            later: list[_Row] = []
            while queue and self._assign(queue[0], decoder, starting, later):
                queue.popleft()
            queue.extendleft(reversed(later))
        if not starting.starts:
            return
        if starting.copies:
            decoder.copy(starting.copies)
        decoder.start(starting.starts)
        for start in starting.starts:
            row = self._active[start.slot]
            self._table.set(start.slot, self._exact(row.tokens), row.chain)
            self._counts[start.slot] = 1
        self.read_tokens += sum(len(start.tokens) - start.known for start in starting.starts)

    def _fitting_decoder(self) -> GpuDecoder | CpuDecoder | None:
        """Return a decoder that fits the waiting rows; create a new one if the current one is too small.

        Return None while a waiting row needs a new decoder but other rows are still running.
        """
        before = self._decoder
        waiting = [*self._going_on, *self._fresh]
        if before is not None:
            firsts = [queue[0] for queue in (self._going_on, self._fresh) if queue]
            waiting = [row for row in firsts if not _fits(row, before)]
        if not waiting:
            return before
        if self._active:
            return None
        self._deliver_all()
        longest = max([row.limit for row in waiting] + ([before.longest] if before else []))
        length = max([len(row.tokens) + row.limit for row in waiting] + ([before.length] if before else []))
        self._decoder = before = None  # free its memory before the next decoder allocates some
        if self._is_gpu:
            length = self._with_room(length)
        length = -(-length // _LENGTH_STEP) * _LENGTH_STEP
        # Leave some room, so that another student with a slightly higher limit does not need a new decoder.
        longest = -(-longest // _LIMIT_STEP) * _LIMIT_STEP
        if not self._is_gpu:
            # Leave room for the next turn, because longer slots can only be created when no row runs.
            length = longest = 2 * length
        kind = GpuDecoder if self._is_gpu else CpuDecoder
        self._decoder = kind(self._model, slots=self.slots, length=length, longest=longest, ends=self._ends)
        self._counts = np.zeros(self.slots, dtype=np.int64)
        self.forget()
        return self._decoder

    def _with_room(self, length: int) -> int:
        """Increase a length for later turns and longer prompts, if the GPU has enough memory.

        Slots that become too short are expensive, because all rows must end before longer slots are created, all cached
        prompts are lost, and all graphs are captured again.
        """
        roomy = max(_TYPICAL_LENGTH, 3 * length // 2)
        if self._longest is not None:
            roomy = min(roomy, self._longest)
        size = self.slots * roomy * CacheShape(self._model).bytes_per_token
        _, memory = torch.cuda.mem_get_info()
        return max(length, roomy) if size <= _SHARE_OF_MEMORY * memory else length

    def _assign(self, row: _Row, decoder: GpuDecoder | CpuDecoder, starting: _StartingRows, later: list[_Row]) -> bool:
        """Assign a slot to a row, or postpone the row to a later round; return False if there is no free slot."""
        if not _fits(row, decoder) or len(starting.starts) >= self._pace.rows:
            return False
        match = self._own_slot(row) or self._table.find(row.tokens, row.chain)
        known = match.length if match else 0
        known -= known % self._pace.grain
        opening = row.opening(known // BLOCK)
        if opening in starting.openings and self._is_gpu:
            later.append(row)
            return True
        # A row takes over an idle slot, but if the slot and the row share only a few tokens, the row uses another slot
        # and these tokens are copied.
        if match and match.slot in self._table.resting and 2 * match.length > len(self._table.tokens[match.slot]):
            slot: int | None = match.slot
            del self._table.resting[match.slot]
        else:
            patience = min(_PATIENCE, _PATIENT_ROUNDS * self._round_s) if self._active else _SHORT_PATIENCE
            slot = self._table.free(now=time.monotonic(), patience=patience)
        if slot is None:
            return False
        starting.openings.add(opening)
        self._resting.pop(row.conversation, None)
        if match and match.slot != slot:
            starting.copies.append((match.slot, slot, known))
        self._active[slot] = row
        if not self._is_gpu:
            # A CPU reads prompts in order, so a row of this round can share the beginning of another row's prompt.
            self._table.set(slot, self._exact(row.tokens), row.chain)
        starting.starts.append(start_of(row.request, row.tokens, slot=slot, known=known))
        return True

    def _exact(self, tokens: list[int]) -> list[int]:
        """Return the tokens that other rows may reuse; on a CPU only whole pieces are the same bit for bit."""
        return tokens[: len(tokens) - len(tokens) % self._pace.grain]

    def _write(self) -> None:
        decoder = self._decoder
        assert decoder is not None
        with_top_p = any(row.request.decoding.top_p is not None for row in self._active.values())
        decoder.run(self._pace.steps, rows=max(self._active) + 1, with_top_p=with_top_p)
        # While a GPU works on these steps, deliver the rows that ended before them.
        self._deliver()
        self._queue_new()
        self._counts, is_active = decoder.progress()
        ended = [slot for slot in self._active if not is_active[slot]]
        if ended:
            for slot, written in zip(ended, decoder.written(ended), strict=True):
                self._ended.append((slot, self._active.pop(slot), written[: self._counts[slot]].tolist()))
        if not self._is_gpu:
            # On a CPU, the step has ended by now, so holding back replies would only delay the next turns of their
            # conversations.
            self._deliver()

    def _deliver_all(self) -> None:
        while self._ended:
            self._deliver()

    def _deliver(self) -> None:
        ended, self._ended = self._ended[: self._pace.rows], self._ended[self._pace.rows :]
        now = time.monotonic()
        for slot, row, tokens in ended:
            # The last token was generated but never read, so the slot does not contain its keys.
            known = [*row.tokens, *tokens[:-1]] if self._is_gpu else self._exact(row.tokens)
            self._table.rest(slot, known, chain_of(known, row.chain), now=now)
            self._resting[row.conversation] = slot
        self._answer([(row.request, row.tokens, tokens) for _, row, tokens in ended])


_TRIED_TOKENS: Final = 9
_TOLERANCE: Final = {"cuda": 0.05, "cpu": 1e-3}
"""The largest relative difference between the results with and without slots; bfloat16 rounds more coarsely."""


@torch.inference_mode()  # type: ignore[untyped-decorator]
def can_write(model: Any) -> bool:
    """Return whether a `Generator` can run a model.

    A trial run on a few tokens tests the model, because an architecture may do anything between its layers. Models with
    experts are left to transformers, because their products are not linear layers and a graph cannot capture the choice
    of experts.
    """
    device = model.device.type
    has_experts = any("expert" in name for name, _ in model.named_modules())
    if device not in _TOLERANCE or has_experts or not getattr(model, "_supports_attention_backend", False):
        return False
    before = model.config._attn_implementation
    try:
        shape = CacheShape(model)
        if device == "cuda" and not can_step(head_size=shape.head_size, groups=shape.groups):
            return False
        tokens = torch.arange(_TRIED_TOKENS, device=model.device)[None]
        decoder = model.get_decoder()
        wanted = decoder(input_ids=tokens, use_cache=False).last_hidden_state
        prepared(model)
        cache: SlotCache | CpuCache
        if device == "cuda":
            cache = SlotCache(shape, slots=1, length=_TRIED_TOKENS)
            cache.packed_tokens(torch.tensor([[0, _TRIED_TOKENS, 0, 0]], dtype=torch.int32, device=model.device))
        else:
            cache = CpuCache(shape, slots=1, length=_TRIED_TOKENS)
            cache.lay_out([], [], [PromptPiece(0, 0, _TRIED_TOKENS)])
        found = decoder(input_ids=tokens, position_ids=tokens, past_key_values=cache, use_cache=True).last_hidden_state
        difference = (found.float() - wanted.float()).norm() / wanted.float().norm()
        if difference < _TOLERANCE[device]:
            return True
    except Exception:  # noqa: BLE001  # an architecture may raise anything for a cache that it does not know
        pass
    model.set_attn_implementation(before)
    return False


def _fits(row: _Row, decoder: GpuDecoder | CpuDecoder) -> bool:
    return len(row.tokens) + row.limit <= decoder.length and row.limit <= decoder.longest


def new_generator(
    model: Any, renderer: Renderer, concurrency: int | None, *, name: str
) -> "Generator | BatchedGenerator":
    """Create a model's generator, for the given number of conversations or as many as fit on the device."""

    def ignore(request: Request, outcome: Outcome) -> None:
        """Drop an outcome; the caller sets the real receiver before the generator is used."""

    if can_write(model):
        bytes_per_slot = CacheShape(model).bytes_per_token * _TYPICAL_LENGTH
        if model.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info()
            slots = max(1, min(_MAX_SLOTS, int(_SHARE_OF_MEMORY * free / bytes_per_slot)))
        else:
            least, most = _CPU_SLOTS
            slots = max(least, min(most, _CPU_CACHE_BYTES // bytes_per_slot))
        return Generator(model, renderer, slots=concurrency or slots, done=ignore)
    LOG.warning(f"{name} runs with the `generate` method of transformers; vllm: is faster for its architecture")
    return BatchedGenerator(model, renderer, slots=concurrency or _BATCH[model.device.type], done=ignore)


class BatchedGenerator(_Writer):
    """Runs a model with the `generate` method of transformers, in batches of at most `slots` rows."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is waiting."""
        return not self._new

    def work(self) -> None:
        """Answer one batch of requests."""
        asked = self._tokenized(self.slots)
        rows = [start_of(request, tokens, slot=slot) for slot, (request, tokens) in enumerate(asked)]
        if not rows:
            return
        try:
            texts = self._generated(rows)
        except torch.OutOfMemoryError:
            if self.slots == 1:
                raise
            self.slots = max(1, len(rows) // 2)
            self._new.extendleft(request for request, _ in reversed(asked))
            return
        self._answer([(request, tokens, text) for (request, tokens), text in zip(asked, texts, strict=True)])

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _generated(self, rows: Sequence[Start]) -> list[list[int]]:
        """Generate the tokens of the given rows, each up to its end token or its limit."""
        width = max(len(row.tokens) for row in rows)
        padding = self._ends[0] if self._ends else 0
        tokens = torch.full((len(rows), width), padding, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for index, row in enumerate(rows):
            tokens[index, width - len(row.tokens) :] = torch.tensor(row.tokens)
            mask[index, width - len(row.tokens) :] = 1
        device = self._model.device
        output = self._model.generate(
            input_ids=tokens.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=max(row.limit for row in rows),
            do_sample=False,  # the processor below leaves only one token to choose from
            num_beams=1,
            eos_token_id=self._ends or None,
            pad_token_id=padding,
            logits_processor=LogitsProcessorList([_ChosenTokens(rows, width, padding, device)]),
        )
        texts = []
        for row, written in zip(rows, output[:, width:].tolist(), strict=True):
            text = written[: row.limit]
            end = next((n for n, token in enumerate(text, 1) if token in self._ends), len(text))
            texts.append(text[:end])
        return texts


class _ChosenTokens(LogitsProcessor):  # type: ignore[misc]
    """Excludes all tokens of a row except the one that its call's random numbers select."""

    def __init__(self, rows: Sequence[Start], width: int, padding: int, device: torch.device) -> None:
        self._width, self._padding = width, padding
        self._numbers = torch.from_numpy(numbers_of(rows, max(row.limit for row in rows))).to(device)
        self._limits = torch.tensor([row.limit for row in rows], device=device)
        self._temperatures = torch.tensor([row.temperature for row in rows], device=device)
        top_p = [1.0 if row.top_p is None else row.top_p for row in rows]
        self._top_p = torch.tensor(top_p, device=device) if min(top_p) < 1 else None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        count = input_ids.shape[1] - self._width
        chosen = choose(scores, self._numbers[:, count], self._temperatures, self._top_p)
        # A row that has reached its limit ends if the model has an end token; any later tokens are cut off.
        chosen = torch.where(count >= self._limits, self._padding, chosen)
        return torch.full_like(scores, float("-inf")).scatter_(1, chosen[:, None], 0.0)
