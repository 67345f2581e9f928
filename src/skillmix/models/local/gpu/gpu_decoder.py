"""Generation on a GPU: rows read their prompts, then generate one token per step, each at its own position.

Steps are captured CUDA graphs, and the processor works one round of steps ahead of the device. Prompts are read in flat
rows of tokens, into which they are packed one after the other. A prompt that does not fit into the rest of a row
continues in the next row.

`fuse` replaces a model's small operations with kernels, and matrix products that share an input with a single product.
Only modules of a known form are replaced, and only if the replacement computes the same numbers as the module on random
inputs. A model with other modules still works, but more slowly.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import linear

from skillmix.errors import UserError
from skillmix.models.local.attention import CacheShape
from skillmix.models.local.gpu.graph_pool import GraphPool, NotCaptured
from skillmix.models.local.gpu.kernels import (
    QUERIES,
    PackedStore,
    copy_slots,
    packed_attention,
    rms_norm,
    rotate,
    silu_and_multiply,
    step_attention,
    store_packed,
)
from skillmix.models.local.sampling import Rows, Start

_MARK: Final = "is_fused_by_skillmix"
_TOLERANCE: Final = 0.02
"""The largest relative difference between a module and its replacement; bfloat16 rounds by 0.004."""
_TRIED_ROWS: Final = 3


@torch.no_grad()
def fuse(model: Any) -> None:
    """Replace the known modules of a model, once.

    THIS PATCHES TRANSFORMERS FOR THE WHOLE PROCESS. Attention layers call `apply_rotary_pos_emb` as a global function
    of the model's module, so the kernel replaces that name. Calls with gradients, on a CPU or with other arguments
    still use the original function.
    """
    if getattr(model, _MARK, False):
        return
    setattr(model, _MARK, True)
    _fuse_rotary(model)
    is_right: dict[type, bool] = {}
    for module in model.modules():
        kind = type(module)
        replacement = _replacement(module)
        if replacement is None:
            continue
        if kind not in is_right:
            weight = next(module.parameters())
            generator = torch.Generator().manual_seed(0)
            hidden = torch.randn(_TRIED_ROWS, 1, weight.shape[-1], generator=generator).to(weight.device, weight.dtype)
            is_right[kind] = _is_close(replacement(hidden), module.forward(hidden))
        if is_right[kind]:
            module.forward = replacement
    for module in model.modules():
        _share_product(module, ("q_proj", "k_proj", "v_proj"))


def _replacement(module: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    name = type(module).__name__
    if name.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
        return lambda hidden: rms_norm(hidden, module.weight, module.variance_epsilon)
    if name.endswith("MLP") and all(_is_plain(getattr(module, part, None)) for part in ("gate_proj", "up_proj")):
        both = _joined([module.gate_proj, module.up_proj])
        return lambda hidden: module.down_proj(silu_and_multiply(linear(hidden, both)))
    return None


def _is_plain(module: Any) -> bool:
    return type(module) is nn.Linear and module.bias is None


def _joined(modules: list[Any]) -> torch.Tensor:
    """Concatenate the weights of several products; the modules' weights become views of the result to save memory."""
    joined = torch.cat([module.weight.data for module in modules])
    first = 0
    for module in modules:
        module.weight.data = joined[first : first + len(module.weight)]
        first += len(module.weight)
    return joined


def _is_close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    difference = (found.float() - wanted.float()).norm() / wanted.float().norm()
    return found.shape == wanted.shape and bool(difference < _TOLERANCE)


def _share_product(module: Any, names: tuple[str, ...]) -> None:
    """Compute several products of one input together when the first is called; the other modules take their parts."""
    parts: list[Any] = [getattr(module, name, None) for name in names]
    if not all(_is_plain(part) for part in parts) or len({part.weight.shape[1] for part in parts}) > 1:
        return
    joined = _joined(parts)
    sizes = [len(part.weight) for part in parts]
    taken: dict[int, Any] = {}

    def first(hidden: torch.Tensor) -> torch.Tensor:
        results = linear(hidden, joined).split(sizes, dim=-1)
        # A part is dropped as soon as a module has taken it, because a kept tensor would keep the memory of a captured
        # graph in use.
        taken.update({index: (hidden, results[index]) for index in range(1, len(results))})
        return results[0]

    def other(index: int, hidden: torch.Tensor) -> torch.Tensor:
        given, result = taken.pop(index, (None, None))
        if given is hidden:
            return result
        return linear(hidden, parts[index].weight)

    parts[0].forward = first
    for index in range(1, len(parts)):
        parts[index].forward = lambda hidden, index=index: other(index, hidden)


def _fuse_rotary(model: Any) -> None:
    modeling: Any = sys.modules[type(model).__module__]
    plain = getattr(modeling, "apply_rotary_pos_emb", None)
    if plain is None or getattr(plain, _MARK, False):
        return

    def rotated(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **options: Any) -> Any:
        is_known = query.is_cuda and not options and not torch.is_grad_enabled() and cos.shape[-1] == query.shape[-1]
        return rotate(query, key, cos, sin) if is_known else plain(query, key, cos, sin, **options)

    generator = torch.Generator().manual_seed(0)
    # The sizes are fixed for a model, so the kernel is compiled once.
    shape = CacheShape(model)
    heads = shape.heads * shape.groups, shape.heads
    query, key = (
        torch.randn(2, n, 3, shape.head_size, generator=generator).to(shape.device, shape.dtype) for n in heads
    )
    angles = torch.rand(2, 3, shape.head_size // 2, generator=generator).repeat(1, 1, 2).to(shape.device)
    inputs = query, key, angles.cos().to(model.dtype), angles.sin().to(model.dtype)
    if all(_is_close(found, wanted) for found, wanted in zip(rotate(*inputs), plain(*inputs), strict=True)):
        setattr(rotated, _MARK, True)
        modeling.apply_rotary_pos_emb = rotated


_MOST_TOKENS: Final = 32768
"""The largest number of tokens in a flat row."""


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
        """Store the new keys and values of a layer, and return the keys and values that the layer attends to."""
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
        """Return 0; only models that number positions themselves use it, and the decoder always passes positions."""
        return 0


class PackedRow(NamedTuple):
    """A flat row: the unread tokens of several prompts, one prompt after the other."""

    tokens: np.ndarray
    positions: np.ndarray
    blocks: np.ndarray
    """The table of query blocks, which `kernels.py` describes."""
    ending: np.ndarray
    """The slots of the prompts that end in the row."""
    last: np.ndarray
    """For each prompt that ends in the row, the index of its last token."""


def packed_rows(starts: Sequence[Start], most: int = _MOST_TOKENS) -> Iterator[PackedRow]:
    """Lay out the unread tokens of prompts one after the other, in flat rows of at most `most` tokens."""
    counts = np.array([len(s.tokens) - s.known for s in starts], dtype=np.int64)
    ends = counts.cumsum()
    total = int(counts.sum())
    offsets = np.arange(total) - np.repeat(ends - counts, counts)
    positions = offsets + np.repeat(np.array([s.known for s in starts], dtype=np.int64), counts)
    slots = np.array([s.slot for s in starts], dtype=np.int64)
    slot_of_token = np.repeat(slots, counts)
    tokens = np.fromiter(chain.from_iterable(s.tokens[s.known :] for s in starts), dtype=np.int64, count=total)
    for begin in range(0, total, most):
        row = slice(begin, begin + most)
        is_first = offsets[row] % QUERIES == 0
        is_first[0] = True
        firsts = np.flatnonzero(is_first)
        sizes = np.diff(firsts, append=len(is_first))
        blocks = np.stack((firsts, sizes, slot_of_token[row][firsts], positions[row][firsts]), axis=1)
        ends_here = (begin < ends) & (ends <= begin + most)
        last = ends[ends_here] - 1 - begin
        yield PackedRow(tokens[row], positions[row], blocks.astype(np.int32), slots[ends_here], last)


class Snapshots:
    """Copies of the state of all rows after each of the last two rounds."""

    def __init__(self, make_event: Callable[[], Any], state: Sequence[torch.Tensor]) -> None:
        """Prepare copies of the device tensors in `state`, whose first dimension is the slot."""
        self._state = list(state)
        self._events = [make_event() for _ in range(2)]
        self._copies = [
            [torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda) for tensor in state]
            for _ in range(2)
        ]
        self._rounds = 0
        self._started = np.zeros(len(state[0]), dtype=np.int64)
        """The round after which a snapshot first shows the row of a slot."""
        self.newest_shown: list[np.ndarray] = []
        """The state that `newest` last returned; the next `take` may overwrite it."""

    def note_started(self, slots: Sequence[int]) -> None:
        """Record that rows start in the given slots before the next round."""
        self._started[list(slots)] = self._rounds

    def take(self) -> None:
        """Copy the state once the device has completed the steps of a round."""
        for copy, tensor in zip(self._copies[self._rounds % 2], self._state, strict=True):
            copy.copy_(tensor, non_blocking=True)
        self._events[self._rounds % 2].record()
        self._rounds += 1

    def newest(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the newest state that is available without waiting, or else the state of the round before the last.

        The second item, an array, states for each slot whether the state describes the slot's current row.
        """
        index = self._rounds - 1
        if index > 0 and not self._events[index % 2].query():
            index -= 1
        self._events[index % 2].synchronize()
        self.newest_shown = [copy.numpy() for copy in self._copies[index % 2]]
        return self.newest_shown, self._started <= index


class GpuDecoder:
    """The slots of one model on a GPU, and the steps that fill them."""

    def __init__(self, model: Any, *, slots: int, length: int, longest: int, ends: Sequence[int]) -> None:
        """Create slots of `length` positions for rows that generate at most `longest` tokens."""
        self.slots, self.length, self.longest = slots, length, longest
        shape = CacheShape(model)
        self.cache = SlotCache(shape, slots=slots, length=length)
        self._model = model
        device = shape.device
        self.rows = Rows(slots, longest=longest, ends=ends, device=device)
        self._all_rows = torch.arange(slots, device=device)
        self._graphs: dict[tuple[int, bool], Any] = {}
        fuse(model)
        self._pool = GraphPool()
        self._snapshots = Snapshots(torch.cuda.Event, (self.rows.count, self.rows.is_active, self.rows.written))

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy the beginnings of slots; each copy consists of a source, a target and a number of positions."""
        for group in independent_copies(copies):
            self.cache.copy(self._sent(np.array(group)), longest=max(length for _, _, length in group))

    @torch.inference_mode()
    def start(self, starts: Sequence[Start]) -> None:
        """Read the rest of each prompt, and choose each row's first token."""
        self._snapshots.note_started([s.slot for s in starts])
        self.rows.begin(starts, self._sent)
        # If only the last token of a prompt is unread, the next step reads it.
        unread = [s for s in starts if s.known < len(s.tokens) - 1]
        with_top_p = any(s.top_p is not None for s in unread)
        for packed in packed_rows(unread):
            self.cache.packed_tokens(self._sent(packed.blocks))
            hidden = self._forward(self._sent(packed.tokens)[None], self._sent(packed.positions)[None])
            if len(packed.ending):
                logits = self._logits(hidden[0, self._sent(packed.last)])
                self.rows.accept(self._sent(packed.ending), logits, with_top_p)

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
        return np.where(is_shown, count, 1), is_active | ~is_shown

    def written(self, slots: Sequence[int]) -> np.ndarray:
        """Return the tokens that the given slots had generated at the last `progress`."""
        rows: np.ndarray = self._snapshots.newest_shown[2][list(slots)]
        return rows

    def _sent(self, array: np.ndarray) -> torch.Tensor:
        """Copy numbers to the device; from pinned memory, a copy need not wait for pending work."""
        tensor = torch.from_numpy(array)
        if self._all_rows.is_cuda:
            tensor = tensor.pin_memory()
        return tensor.to(self._all_rows.device, non_blocking=True)

    def _step(self, rows: int, with_top_p: bool) -> None:
        positions = self.rows.position[:rows]
        self.cache.one_token_each(positions, self.rows.is_active[:rows])
        hidden = self._forward(self.rows.token[:rows, None], positions[:, None])
        self.rows.accept(self._all_rows[:rows], self._logits(hidden[:, 0]), with_top_p)

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

    def _captured(self, work: Callable[[], None]) -> Any:
        """Capture `work` as a CUDA graph, which can be replayed at little cost to the CPU."""
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
