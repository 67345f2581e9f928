"""The generator of a model: the one of this package, or batches by `generate` of transformers.

The latter is for models that the decoders of this package cannot run: models with sliding windows, with layers other
than attention, with experts or with a special attention, and all models on devices other than CPUs and CUDA GPUs. Here
too each call has its own random numbers, but the rows of a batch are padded to one length, and rounding differs with
it: a text may depend on its batch.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from skillmix.calls import Outcome, Request
from skillmix.errors import LOG
from skillmix.models.local.attention import CacheShape
from skillmix.models.local.chat import Renderer
from skillmix.models.local.generator import Done, Generator, can_write, length_problem, replies
from skillmix.models.local.sampling import DEFAULT_LIMIT, Start, choose, start_of

_CPU_SLOTS: Final = (8, 32)
"""The fewest and most simultaneous conversations on a CPU; more use it better, but take more memory."""
_CPU_CACHE_BYTES: Final = 2 << 30
_SHARE_OF_MEMORY: Final = 0.6
_MAX_SLOTS: Final = 2048
_BATCH: Final = {"cuda": 64, "cpu": 8, "mps": 8}
"""Simultaneous conversations of a model that writes by `generate`."""
_TYPICAL_LENGTH: Final = 1024


def new_generator(
    model: Any, renderer: Renderer, concurrency: int | None, *, name: str
) -> "Generator | BatchedGenerator":
    """Make a generator for a model, with the requested number of conversations, or as many as fit its device."""

    def ignore(request: Request, outcome: Outcome) -> None:
        """Until the generator is used."""

    if can_write(model):
        bytes_per_slot = CacheShape(model).bytes_per_token * _TYPICAL_LENGTH
        if model.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info()
            slots = max(1, min(_MAX_SLOTS, int(_SHARE_OF_MEMORY * free / bytes_per_slot)))
        else:
            least, most = _CPU_SLOTS
            slots = max(least, min(most, _CPU_CACHE_BYTES // bytes_per_slot))
        return Generator(model, renderer, slots=concurrency or slots, done=ignore)
    LOG.warning(f"{name} writes by `generate` of transformers; vllm: is faster for its architecture")
    return BatchedGenerator(model, renderer, slots=concurrency or _BATCH[model.device.type], done=ignore)


class BatchedGenerator:
    """One model on one device; all methods must be called from one thread."""

    def __init__(self, model: Any, renderer: Renderer, *, slots: int, done: Done) -> None:
        self._model = model
        self._renderer = renderer
        self.slots = slots
        """Rows of a batch."""
        self.done = done
        self._ends = renderer.ends(model)
        self._longest: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._waiting: deque[Request] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether no request waits."""
        return not self._waiting

    def add(self, requests: Sequence[Request]) -> None:
        """Add requests."""
        self._waiting.extend(requests)

    def work(self) -> None:
        """Answer one batch of requests."""
        requests = [self._waiting.popleft() for _ in range(min(self.slots, len(self._waiting)))]
        prompts = self._renderer.tokens([r.messages for r in requests], [r.decoding.extra for r in requests])
        rows: list[Start] = []
        asked: list[Request] = []
        for request, tokens in zip(requests, prompts, strict=True):
            limit = request.decoding.max_tokens or DEFAULT_LIMIT
            if problem := length_problem(len(tokens), limit, longest=self._longest):
                self.done(request, problem)
                continue
            asked.append(request)
            rows.append(start_of(request, tokens, slot=len(rows)))
        if not rows:
            return
        try:
            texts = self._generated(rows)
        except torch.OutOfMemoryError:
            if self.slots == 1:
                raise
            self.slots = max(1, len(rows) // 2)
            self._waiting.extendleft(reversed(asked))
            return
        written = [(list(row.tokens), text) for row, text in zip(rows, texts, strict=True)]
        for request, reply in zip(asked, replies(self._renderer, written, self._ends), strict=True):
            self.done(request, reply)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _generated(self, rows: Sequence[Start]) -> list[list[int]]:
        """Return the tokens of some rows, each up to its end token or its limit."""
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
            do_sample=False,  # the processor below leaves only one token to choose
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
    """Leaves each row one token to choose: the one selected by the random numbers of its call."""

    def __init__(self, rows: Sequence[Start], width: int, padding: int, device: torch.device) -> None:
        self._width, self._padding = width, padding
        numbers = np.zeros((len(rows), max(row.limit for row in rows)), dtype=np.float32)
        for index, row in enumerate(rows):
            numbers[index, : row.limit] = row.numbers
        self._numbers = torch.from_numpy(numbers).to(device)
        self._limits = torch.tensor([row.limit for row in rows], device=device)
        self._temperatures = torch.tensor([row.temperature for row in rows], device=device)
        top_p = [1.0 if row.top_p is None else row.top_p for row in rows]
        self._top_p = torch.tensor(top_p, device=device) if min(top_p) < 1 else None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        count = input_ids.shape[1] - self._width
        chosen = choose(scores, self._numbers[:, count], self._temperatures, self._top_p)
        # A row that has reached its limit ends, if there is an end token; later tokens are cut off.
        chosen = torch.where(count >= self._limits, self._padding, chosen)
        return torch.full_like(scores, float("-inf")).scatter_(1, chosen[:, None], 0.0)
