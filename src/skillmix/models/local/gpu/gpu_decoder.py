"""Generation on a GPU: rows read their prompts, then generate one token per step, each at its own position.

Everything that the device does is a captured CUDA graph, and the processor works one round of steps ahead of it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from skillmix.errors import UserError
from skillmix.models.local.attention import CacheShape
from skillmix.models.local.gpu.fusing import fuse
from skillmix.models.local.gpu.graph_pool import GraphPool, NotCaptured
from skillmix.models.local.gpu.host_memory import Snapshots, Staging
from skillmix.models.local.gpu.kernels import (
    PackedStore,
    RowSettings,
    RowState,
    accept_tokens,
    copy_slots,
    packed_attention,
    step_attention,
    store_packed,
)
from skillmix.models.local.gpu.prompts import PromptInputs, PromptReader
from skillmix.models.local.sampling import Rows, Start


class _StepKeys(NamedTuple):
    """The stored keys and values of a layer, and the positions at which the kernel of a step adds new ones."""

    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    is_active: torch.Tensor

    def attend(self, query: torch.Tensor, key: Any, *, scaling: float) -> torch.Tensor:
        """Compute attention for one token of each slot."""
        return step_attention(query, key, self, scaling=scaling)


class _PackedKeys(PackedStore):
    """The stored keys and values of a layer, and the table that assigns a flat row's tokens to slots."""

    def attend(self, query: torch.Tensor, key: Any, *, scaling: float) -> torch.Tensor:
        """Compute attention for the tokens of a flat row."""
        return packed_attention(query, self, scaling=scaling)


class SlotCache:
    """A cache with the interface of transformers, in which rows come and go while the tensors stay in place."""

    is_compileable = False

    def __init__(self, shape: CacheShape, *, slots: int, length: int) -> None:
        # No row uses the last position, but all measurements were made with this position included.
        size = (2 * shape.layers, slots, shape.heads, length + 1, shape.head_size)
        self._whole = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        self._keys, self._values = self._whole[: shape.layers], self._whole[shape.layers :]
        self._step: tuple[torch.Tensor, torch.Tensor] | None = None
        self._blocks: torch.Tensor | None = None

    def one_token_each(self, positions: torch.Tensor, is_active: torch.Tensor) -> None:
        """Announce that the next update consists of one token for each of the first slots, at these positions."""
        self._step, self._blocks = (positions, is_active), None

    def packed_tokens(self, blocks: torch.Tensor) -> None:
        """Announce that the next update contains a flat row of tokens, which a table assigns to slots."""
        self._step, self._blocks = None, blocks

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Store the new keys and values of a layer, and return what the layer attends to."""
        stored = self._keys[layer_idx], self._values[layer_idx]
        if self._step is not None:
            return (keys, values), _StepKeys(*stored, *self._step)
        assert self._blocks is not None
        store = _PackedKeys(*stored, self._blocks)
        store_packed(keys, values, store)
        return keys, store

    def copy(self, copies: torch.Tensor, *, longest: int) -> None:
        """Copy the beginnings of slots; each row of `copies` contains a source, a target and a number of positions."""
        copy_slots(self._whole, copies, longest=longest)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Return 0, which only models that number positions themselves use; the decoder always passes positions."""
        return 0


class GpuDecoder:
    """The slots of one model, and the steps that fill them."""

    def __init__(self, model: Any, *, slots: int, length: int, longest: int, ends: Sequence[int]) -> None:
        """Create slots of `length` positions for rows that generate at most `longest` tokens."""
        self.slots, self.length, self.longest = slots, length, longest
        shape = CacheShape(model)
        self.cache = SlotCache(shape, slots=slots, length=length)
        self._model = model
        device = shape.device
        # An extra row receives the output of unused rows in a batch of prompts.
        self.rows = Rows(slots + 1, longest=longest, ends=ends, device=device)
        self._all_rows = torch.arange(slots + 1, device=device)
        self._graphs: dict[tuple[int, bool], Any] = {}
        fuse(model)
        self._pool = GraphPool()
        self._staging = Staging(device)
        self._snapshots = Snapshots(torch.cuda.Event, (self.rows.count, self.rows.is_active, self.rows.written))
        self._reader = PromptReader(self._staging, spare=slots, longest=longest)

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy the beginnings of slots; each copy consists of a source, a target and a number of positions."""
        for group in independent_copies(copies):
            table = self._staging.to_device(np.array(group))
            self.cache.copy(table, longest=max(length for _, _, length in group))

    @torch.inference_mode()
    def start(self, starts: Sequence[Start]) -> None:
        """Read the rest of each prompt, and choose each row's first token."""
        self._snapshots.note_started([s.slot for s in starts])
        # The reader must not store a method of this decoder, because the cycle would keep the cache alive until a
        # garbage collection.
        self._reader.start(starts, lambda *inputs: self._captured(lambda: self._read(*inputs)))

    @torch.inference_mode()
    def run(self, steps: int, *, rows: int, with_top_p: bool) -> None:
        """Generate up to `steps` tokens in each active row of the first slots; a row that ends generates no more."""
        quarter = -(-self.slots // 4)
        key = min(self.slots, -(-rows // quarter) * quarter), with_top_p
        if key not in self._graphs:
            self._graphs[key] = self._captured(lambda: self._step(*key))
        for _ in range(steps):
            self._graphs[key].replay()
        self._snapshots.take()

    def progress(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of tokens that each slot has generated, and whether it is still generating.

        This may be the state before the last `run`, so that the device never waits for the processor.
        """
        (count, is_active, _), is_shown = self._snapshots.newest()
        self._staging.next_round()
        return np.where(is_shown, count, 1), is_active | ~is_shown

    def written(self, slots: Sequence[int]) -> np.ndarray:
        """Return the tokens that some slots had generated at the last `progress`."""
        rows: np.ndarray = self._snapshots.newest_shown[2][list(slots)]
        return rows

    def _read(self, inputs: PromptInputs, with_top_p: bool) -> None:
        """Set up the rows that a batch starts, read its tokens, and choose each row's first token."""
        slots, rows = inputs.slots, self.rows
        rows.numbers[slots] = inputs.numbers
        rows.limit[slots] = inputs.limit
        rows.temperature[slots] = inputs.temperature
        rows.top_p[slots] = inputs.top_p
        rows.position[slots] = inputs.last_position
        rows.token[slots] = inputs.last_token
        # Avoid `tensor[slots] = 0`, which waits for the device.
        rows.count.index_fill_(0, slots, 0)
        rows.is_active[slots] = inputs.is_read
        if len(inputs.tokens):
            self.cache.packed_tokens(inputs.blocks)
            hidden = self._forward(inputs.tokens[None], inputs.positions[None])
            self._accept(slots, self._logits(hidden[0, inputs.last]), with_top_p)
        rows.is_active[slots] = rows.is_active[slots] | inputs.is_ready

    def _step(self, rows: int, with_top_p: bool) -> None:
        positions = self.rows.position[:rows]
        self.cache.one_token_each(positions, self.rows.is_active[:rows])
        hidden = self._forward(self.rows.token[:rows, None], positions[:, None])
        self._accept(self._all_rows[:rows], self._logits(hidden[:, 0]), with_top_p)

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        decoder = self._model.get_decoder()
        hidden: torch.Tensor = decoder(
            input_ids=tokens, position_ids=positions, past_key_values=self.cache, use_cache=True
        ).last_hidden_state
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits in float32, because bfloat16 would shift probabilities by several percent."""
        head = self._model.get_output_embeddings()
        if hidden.device.type == "cuda" and getattr(head, "bias", None) is None:
            return torch.mm(hidden, head.weight.t(), out_dtype=torch.float32)
        logits: torch.Tensor = head(hidden)
        return logits

    def _accept(self, slots: torch.Tensor, logits: torch.Tensor, with_top_p: bool) -> None:
        rows = self.rows
        if with_top_p or rows.chances is not None:
            rows.accept(slots, logits, with_top_p)
            return
        settings = RowSettings(rows.numbers, rows.temperature, rows.limit, rows.ends)
        accept_tokens(slots, logits, RowState(*rows.changing), settings)

    def _captured(self, work: Callable[[], None]) -> Any:
        """Capture some work as a CUDA graph, which can be replayed with hardly any work for the processor."""
        before = [tensor.clone() for tensor in self.rows.changing]
        stream = self._pool.stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        # Graphs are replayed one after the other, so they can share the memory of their intermediate results.
        try:
            graph = self._pool.capture(work)
        except NotCaptured as error:
            raise UserError(
                f"The steps of this model cannot be captured as CUDA graphs: {error}",
                hint="Use vllm:MODEL, or set SKILLMIX_DEVICE=cpu.",
            ) from error
        for tensor, saved in zip(self.rows.changing, before, strict=True):
            tensor.copy_(saved)
        return graph


def independent_copies(copies: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Group copies in their order, so that no slot is both a source and a target within a group."""
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
