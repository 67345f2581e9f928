"""Generation on a CPU: every step generates one token per row, and prefills waiting prompts as the batch allows.

A text depends only on its own request, bit for bit. A batch is one flat sequence, which consists of one token for each
row that generates and then pieces of prompts. Matrix products treat all tokens alike. Attention treats rows and pieces
separately. Each piece of a prompt is computed alone, in a shape that depends only on the piece's position and length.
Plain attention over generating rows would cover as many positions as the longest row has, and a processor rounds
differently when that number changes. So the keys of every row are cut into blocks of one size, each block is computed
alone, in a constant shape, and the blocks of a row are added from first to last. Blocks after the end of a row add
exact zeros, so their number does not matter.

A processor may round a row differently when the product has a different number of rows, or when the row is at a
different index. `make_rows_independent` tests matrix products on the current processor. If every row has the same bits
in products of every size in `SIZES` with packed weights, each product has the smallest sufficient size. Otherwise each
product is cut into pieces with a small, fixed number of rows. `fuse_layers` computes norms and MLPs in fewer passes
over memory; each fused layer is used only if a trial on random rows gives the same results. A fused MLP also has the
same bits in batches of every size, whereas with 5, 6 or 7 threads torch's SiLU rounds some numbers differently.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from skillmix.models.local.attention import CacheShape
from skillmix.models.local.sampling import Rows, Start

LARGEST: Final = 256
"""The largest number of rows in a product."""
SIZES: Final = (8, *range(16, LARGEST + 1, 16))
"""The possible numbers of rows in a product: 8, or a multiple of 16."""
_PIECE: Final = 32
"""The largest number of rows in a piece, if products must be cut into pieces."""
MOST_SLOTS: Final = 64
"""The most rows that generate at once; the rest of a batch is for prompts, and no product of the head is larger."""
_TRIED_ROWS: Final = 16
_MARK: Final = "_skillmix_rows_are_independent"

_Product = Callable[[torch.Tensor], torch.Tensor]


def size_for(rows: int) -> int:
    """Return the smallest number of rows in `SIZES` that is large enough."""
    return SIZES[0] if rows <= SIZES[0] else -(-rows // 16) * 16


@torch.inference_mode()  # type: ignore[untyped-decorator]
def make_rows_independent(model: Any) -> bool:
    """Replace a model's products with products that treat every row alike; return False if this was already done.

    The model can then only run on this CPU.
    """
    if getattr(model, _MARK, False):
        return False
    setattr(model, _MARK, True)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    one_of_each_shape = {tuple(layer.weight.shape): layer for layer in layers}.values()
    head = model.get_output_embeddings()
    try:
        can_pack = all(
            rows_agree(Packed(layer), inputs=layer.in_features, most_rows=MOST_SLOTS if layer is head else LARGEST)
            for layer in one_of_each_shape
        )
    except (RuntimeError, AttributeError):  # this build of torch has no oneDNN
        can_pack = False
    piece = _PIECE
    while piece > 1 and not can_pack and not _treats_rows_alike(one_of_each_shape, piece):
        piece //= 2
    embeddings = model.get_input_embeddings().weight
    for layer in layers:
        product: Any = Packed(layer) if can_pack else _in_pieces(layer, piece)
        layer.forward = product
        if can_pack and layer.weight is not embeddings:
            # The packed weights replace the plain weights, because both together would take twice the memory.
            layer.weight = torch.nn.Parameter(product.weight, requires_grad=False)
    return True


class Packed:
    """A product whose weights have the layout of oneDNN; it accepts any number of rows."""

    def __init__(self, layer: Any) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), LARGEST)
        self._bias = None if layer.bias is None else layer.bias.detach()

    def __call__(self, rows: torch.Tensor, activation: str = "none") -> torch.Tensor:
        """Compute the product of `rows` and the weights, followed by an activation."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self._bias, activation, [], "")
        return product

    def times(self, rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Compute the product and multiply it by factors, element by element."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, factors, self.weight, self._bias, "mul")
        return product


def rows_agree(product: _Product, *, inputs: int, most_rows: int) -> bool:
    """Return whether random rows have the same bits in products of all sizes up to a limit, at every index."""
    rows = torch.randn(most_rows, inputs, generator=torch.Generator().manual_seed(0))
    reference = product(rows)
    for size in SIZES:
        first = (most_rows - size) // 2
        if size < most_rows and not torch.equal(product(rows[first : first + size]), reference[first : first + size]):
            return False
    return bool((product(rows[:1].expand(most_rows, -1).contiguous()) == reference[0]).all())


def _treats_rows_alike(layers: Iterable[Any], count: int) -> bool:
    """Return whether equal rows have equal results in plain products."""
    for layer in layers:
        row = torch.randn(1, layer.in_features, generator=torch.Generator().manual_seed(0))
        product = functional.linear(row.expand(count, -1).contiguous(), layer.weight)
        if not (product == product[0]).all():
            return False
    return True


def _in_pieces(layer: Any, piece: int) -> _Product:
    """Return a product that is computed in pieces of a fixed number of rows, the last one padded with zeros."""

    def product(rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        padded = functional.pad(flat, (0, 0, 0, -len(flat) % piece))
        pieces = [functional.linear(part, layer.weight, layer.bias) for part in padded.split(piece)]
        return torch.cat(pieces)[: len(flat)].view(*rows.shape[:-1], -1)

    return product


@torch.inference_mode()  # type: ignore[untyped-decorator]
def fuse_layers(model: Any) -> None:
    """Replace a model's norms and MLPs with fused layers, wherever these give the same results."""
    verdicts: dict[object, bool] = {}
    for module in model.modules():
        epsilon = getattr(module, "variance_epsilon", None)
        parts = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
        gates = [getattr(part, "forward", None) for part in parts]
        layer: _Norm | _Mlp
        if type(module).__name__.endswith("RMSNorm") and isinstance(epsilon, float):
            layer = _Norm(module.weight.detach(), epsilon)
        elif all(isinstance(part, Packed) for part in gates):
            layer = _Mlp(*gates)  # type: ignore[arg-type]
        else:
            continue
        kind = type(module), layer.inputs
        if kind not in verdicts:
            rows = torch.randn(1, _TRIED_ROWS, layer.inputs, generator=torch.Generator().manual_seed(1))
            try:
                is_same = bool(torch.allclose(layer(rows), module(rows), rtol=1e-4, atol=1e-5))
            except RuntimeError:  # this build of torch has no such operation
                is_same = False
            verdicts[kind] = is_same and rows_agree(layer, inputs=layer.inputs, most_rows=LARGEST)
        if verdicts[kind]:
            module.forward = layer


class _Norm:
    """A root mean square norm that is computed in one call."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self.inputs = len(weight)
        self._weight = weight
        self._epsilon = epsilon

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(rows, (self.inputs,), self._weight, self._epsilon)


class _Mlp:
    """A gated MLP whose activation and multiplication by the gate are part of the matrix products."""

    def __init__(self, gate: Packed, up: Packed, down: Packed) -> None:
        self.inputs = int(gate.weight.shape[1])
        self._gate, self._up, self._down = gate, up, down

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._down(self._up.times(rows, self._gate(rows, "swish")))


GRAIN: Final = 16
"""Tokens per piece. Pieces start at multiples of this number, so a whole piece has the same bits for every request."""
_BLOCK: Final = 128
_GAP: Final = 8
"""The largest gap in slots between neighboring rows of a run; a separate call costs as much as a few unused slots."""


class PromptPiece(NamedTuple):
    """Up to `GRAIN` tokens of a prompt."""

    slot: int
    first: int
    """The position of the first token."""
    length: int


class BlockPlan(NamedTuple):
    """The positions of the blocks that each row attends to; made once per step and used by every layer."""

    mask: torch.Tensor
    is_beyond: torch.Tensor
    """Whether a block lies after the end of its row."""


class _Run(NamedTuple):
    """Generating rows in neighboring slots; slots between the rows are computed too, but their results are unused."""

    first_slot: int
    length: int
    row_of: torch.Tensor
    """The row of each slot, or the run's first row for a slot without a row."""
    rows: torch.Tensor
    places: torch.Tensor
    """The slot of each row, relative to the first slot."""
    plan: BlockPlan


class _Layout(NamedTuple):
    """The layout of the tokens in a batch; made once per batch and used by every layer."""

    slots: torch.Tensor
    positions: torch.Tensor
    runs: list[_Run]
    rows: int
    pieces: Sequence[PromptPiece]


class CpuCache:
    """A cache with the interface of transformers; every slot contains the tokens of one conversation."""

    is_compileable = False

    def __init__(self, shape: Any, *, slots: int, length: int) -> None:
        size = (slots, shape.heads, -(-length // _BLOCK) * _BLOCK, shape.head_size)
        # The system allocates memory for these numpy arrays only when they are written to.
        self.keys = [torch.from_numpy(np.zeros(size, dtype=np.float32)) for _ in range(shape.layers)]
        self.values = [torch.from_numpy(np.zeros(size, dtype=np.float32)) for _ in range(shape.layers)]
        self._heads = shape.heads
        self._layout: _Layout | None = None

    def lay_out(self, slots: Sequence[int], positions: Sequence[int], pieces: Sequence[PromptPiece]) -> None:
        """Announce the next batch: one token for each slot in `slots`, which must be ascending, and then `pieces`."""
        of_pieces = [(piece.slot, piece.first + n) for piece in pieces for n in range(piece.length)]
        self._layout = _Layout(
            torch.tensor([*slots, *(slot for slot, _ in of_pieces)]),
            torch.tensor([*positions, *(position for _, position in of_pieces)]),
            self._runs(slots, positions),
            len(slots),
            pieces,
        )

    def _runs(self, slots: Sequence[int], positions: Sequence[int]) -> list[_Run]:
        if not slots:
            return []
        runs = []
        bounds = [0, *(n for n in range(1, len(slots)) if slots[n] - slots[n - 1] > _GAP), len(slots)]
        for start, end in pairwise(bounds):
            rows = torch.arange(start, end)
            places = torch.tensor(slots[start:end]) - slots[start]
            row_of, position_of = places.new_full((2, int(places[-1]) + 1), start)
            position_of.zero_()
            row_of[places], position_of[places] = rows, torch.tensor(positions[start:end])
            plan = plan_blocks(position_of, key_heads=self._heads)
            runs.append(_Run(slots[start], len(row_of), row_of, rows, places, plan))
        return runs

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Store the new keys and values of a layer; padding tokens of the batch are dropped."""
        layout = self._layout
        assert layout is not None
        stored = self.keys[layer_idx], self.values[layer_idx]
        for store, new in zip(stored, (keys, values), strict=True):
            store[layout.slots, :, layout.positions] = new[0, :, : len(layout.slots)].transpose(0, 1)
        return keys, _FlatKeys(*stored, layout)

    def copy(self, source: int, target: int, *, length: int) -> None:
        """Copy the first positions from one slot to another."""
        for store in (*self.keys, *self.values):
            store[target, :, :length] = store[source, :, :length]

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Return 0; only models that number positions themselves use it, and the decoder always passes positions."""
        return 0


class _FlatKeys(NamedTuple):
    """The stored keys and values of a layer, with the layout of the batch."""

    keys: torch.Tensor
    values: torch.Tensor
    layout: _Layout

    def attend(self, query: torch.Tensor, key: Any, *, scaling: float) -> torch.Tensor:
        """Compute attention from every token of a batch to the tokens before it in its slot."""
        keys, values, layout = self
        heads, tokens, size = query.shape[1:]
        output = query.new_zeros(1, tokens, heads, size)
        for run in layout.runs:
            slots = slice(run.first_slot, run.first_slot + run.length)
            own = query[0].index_select(1, run.row_of).transpose(0, 1)[:, :, None]
            attended = block_attention(own, keys[slots], values[slots], run.plan, scaling=scaling)
            output[0, run.rows] = attended[run.places, 0]
        first = layout.rows
        for piece in layout.pieces:
            last, seen = first + piece.length, piece.first + piece.length
            grouped = query[:, :, first:last].reshape(1, keys.shape[1], -1, size)
            own_keys, own_values = (stored[piece.slot, None, :, :seen] for stored in (keys, values))
            mask = _mask(piece.first, piece.length, heads // keys.shape[1])
            attended = scaled_dot_product_attention(grouped, own_keys, own_values, attn_mask=mask, scale=scaling)
            output[0, first:last] = attended.view(heads, piece.length, size).transpose(0, 1)
            first = last
        return output


@lru_cache(maxsize=256)
def _mask(first: int, count: int, groups: int) -> torch.Tensor:
    """Return the mask that lets each token of a piece attend to everything up to its own position."""
    positions = torch.arange(first, first + count)
    is_later = torch.arange(first + count) > positions[:, None]
    mask = torch.zeros(is_later.shape).masked_fill_(is_later, float("-inf"))
    return mask.repeat(groups, 1)[None, None]


def plan_blocks(positions: torch.Tensor, *, key_heads: int) -> BlockPlan:
    """Plan the blocks of rows, each of which attends to everything up to its own position."""
    count = int(positions.max()) // _BLOCK + 1
    first = torch.arange(count) * _BLOCK
    is_beyond = first > positions[:, None]
    is_hidden = (first[:, None] + torch.arange(_BLOCK)) > positions[:, None, None]
    # A block after the end of its row has no masked positions, because attention over minus infinities alone would give
    # NaN.
    is_hidden &= ~is_beyond[:, :, None]
    mask = torch.zeros(is_hidden.shape).masked_fill_(is_hidden, float("-inf"))
    mask, is_beyond = (tensor.repeat_interleave(key_heads, 0) for tensor in (mask, is_beyond))
    return BlockPlan(mask[:, :, None], is_beyond[:, :, None])


def block_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: BlockPlan, *, scaling: float
) -> torch.Tensor:
    """Compute attention for one query per row; the query of an unused row, which has no keys, yields zeros."""
    rows, key_heads, _, size = keys.shape
    heads, count = query.shape[1], plan.mask.shape[1]
    grouped = query[:rows].reshape(rows * key_heads, 1, heads // key_heads, size).expand(-1, count, -1, -1)
    # Views of shape (row and head, block, position, channel).
    key_blocks, value_blocks = (
        stored.flatten(0, 1)[:, : count * _BLOCK].unflatten(1, (-1, _BLOCK)) for stored in (keys, values)
    )
    outputs, logs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        grouped, key_blocks, value_blocks, 0.0, False,
        attn_mask=plan.mask.expand(-1, -1, grouped.shape[2], -1), scale=scaling,
    )  # fmt: skip
    logs = logs.masked_fill(plan.is_beyond, float("-inf"))
    weights = torch.exp(logs - logs.amax(1, keepdim=True))
    # A cumulative sum adds from first to last, whereas the order in a plain sum depends on the number of blocks.
    total = (outputs * weights[..., None]).cumsum(1)[:, -1] / weights.cumsum(1)[:, -1, :, None]
    result = query.new_zeros(query.shape[0], 1, heads, size)
    result[:rows] = total.view(rows, 1, heads, size)
    return result


@dataclass(slots=True, eq=False)
class _Reading:
    """A prompt that waits to be read, with the index of its first unread token."""

    start: Start
    next: int
    source: int | None
    """The slot from which the known tokens are copied when the reading begins; None once they are copied."""


class CpuDecoder:
    """The slots of one model on a CPU, and the steps that fill them."""

    def __init__(self, model: Any, *, slots: int, length: int, longest: int, ends: Sequence[int]) -> None:
        """Create slots of `length` positions for rows that generate at most `longest` tokens."""
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
        self.rows.begin(starts)
        self._waiting += [_Reading(start, start.known, self._sources.pop(start.slot, None)) for start in starts]

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Let rows that start next copy their known tokens from other slots, even if those slots are not yet filled.

        Prompts are read in order of arrival, so a source has been read when its target begins.
        """
        self._sources.update((target, source) for source, target, _ in copies)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def run(self, steps: int, *, rows: int, with_top_p: bool) -> None:
        """Generate up to `steps` tokens per active row, and read waiting prompts; an ended row generates no more."""
        for _ in range(steps):
            self._step(with_top_p)

    def progress(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of tokens that each slot has generated, and whether it is still reading or generating."""
        return self.rows.count.numpy().copy(), self.rows.is_active.numpy().copy()

    def written(self, slots: Sequence[int]) -> np.ndarray:
        """Return the tokens that the given slots have generated."""
        rows: np.ndarray = self.rows.written[list(slots)].numpy()
        return rows

    def _step(self, with_top_p: bool) -> None:
        """Pass one batch through the model, and choose the next token of each row whose last token is in the batch."""
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
        """Return a batch's pieces, their tokens, and the index of the last token of each prompt that ends in it."""
        pieces: list[PromptPiece] = []
        tokens: list[int] = []
        ready: list[tuple[int, int]] = []
        unread: set[int] = set()
        """Slots whose prompts have not been read completely before this batch."""
        needed: set[int] = set()
        """Slots from which waiting prompts will copy; a copy must see its source as if prompts were read one by one."""
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
            # A piece can attend to other pieces of the same batch, because every layer stores all new keys first.
            while part := reading.start.tokens[reading.next : reading.next // GRAIN * GRAIN + GRAIN]:
                if len(tokens) + len(part) > room:
                    return pieces, tokens, ready
                pieces.append(PromptPiece(slot, reading.next, len(part)))
                tokens.extend(part)
                reading.next += len(part)
            ready.append((slot, len(tokens) - 1))
            self._waiting.remove(reading)
        return pieces, tokens, ready
