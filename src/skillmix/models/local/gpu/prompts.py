"""Prefill on a GPU by captured CUDA graphs of a few fixed shapes.

The tokens to read are cut into pieces, and the pieces are packed consecutively into a flat row of tokens. A prompt that
does not fit into the rest of a row continues in the next row, because its first piece is in its slot by then.
`packed_batches` packs the pieces, `fill` writes the tables of one row, and `PromptReader` captures and replays the
graphs.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from skillmix.models.local.gpu.host_memory import Staging
from skillmix.models.local.gpu.kernels import FIELDS, QUERIES
from skillmix.models.local.sampling import Start

_MAX_ROWS: Final = 768
"""The largest number of prompts that end in one batch."""


class BatchShape(NamedTuple):
    """The fixed size of a batch."""

    tokens: int
    pieces: int

    @property
    def blocks(self) -> int:
        """The largest number of query blocks."""
        return self.tokens // QUERIES + self.pieces


SHAPES: Final = (
    BatchShape(0, _MAX_ROWS),
    *(BatchShape(tokens, min(_MAX_ROWS, tokens // 4)) for tokens in (1024, 2048, 4096, 8192, 16384, 32768)),
)
"""Shapes from smallest to largest; the shape without tokens only sets up rows."""


class PackedPiece(NamedTuple):
    """Consecutive tokens of one prompt; empty if only the last token is unread, which the next step reads."""

    start: Start
    first: int
    end: int

    @property
    def is_last(self) -> bool:
        """Whether the prompt ends with this piece."""
        return self.end == len(self.start.tokens)


class PromptBatch(NamedTuple):
    """The pieces that are read in one batch."""

    shape: BatchShape
    pieces: list[PackedPiece]


def packed_batches(starts: Sequence[Start], shapes: Sequence[BatchShape] = SHAPES) -> Iterator[PromptBatch]:
    """Pack the unread tokens of prompts into as few batches as possible, in the smallest sufficient shapes."""
    waiting = []
    for start in reversed(starts):
        length = len(start.tokens)
        waiting.append(PackedPiece(start, start.known if start.known < length - 1 else length, length))
    tokens = sum(piece.end - piece.first for piece in waiting)
    while waiting:
        fitting = (shape for shape in shapes if shape.tokens >= tokens and shape.pieces >= len(waiting))
        shape = next(fitting, shapes[-1])
        batch = PromptBatch(shape, _take(waiting, shape))
        tokens -= sum(piece.end - piece.first for piece in batch.pieces)
        yield batch


def _take(waiting: list[PackedPiece], shape: BatchShape) -> list[PackedPiece]:
    """Take pieces from the end of a list until a shape is full; a prompt is cut where the shape ends."""
    pieces: list[PackedPiece] = []
    room = shape.tokens
    while waiting and len(pieces) < shape.pieces:
        piece = waiting.pop()
        if not room and piece.first < piece.end:
            waiting.append(piece)
            break
        cut = min(piece.end, piece.first + room)
        if cut < piece.end:
            waiting.append(piece._replace(first=cut))
        pieces.append(piece._replace(end=cut))
        room -= cut - piece.first
    return pieces


class PromptInputs(NamedTuple):
    """The inputs of a batch, as tensors on the device or as arrays on the host."""

    numbers: Any
    """For each row, one uniform number for each token that the row may generate."""
    tokens: Any
    positions: Any
    blocks: Any
    """The table of query blocks."""
    slots: Any
    """The slot of each prompt that ends in the batch; unused rows use a spare slot."""
    is_read: Any
    """Whether the batch contains each prompt's last token."""
    is_ready: Any
    """Whether the next step reads each prompt's last token."""
    last: Any
    """The index of each prompt's last token."""
    last_token: Any
    last_position: Any
    limit: Any
    temperature: Any
    top_p: Any


def input_sizes(shape: BatchShape, *, longest: int) -> PromptInputs:
    """Return the type and shape of every input; `longest` is the most tokens that a row may generate."""
    token, row = (torch.int64, (shape.tokens,)), (torch.int64, (shape.pieces,))
    truth, number = (torch.bool, (shape.pieces,)), (torch.float32, (shape.pieces,))
    numbers, blocks = (torch.float32, (shape.pieces, longest)), (torch.int32, (shape.blocks, FIELDS))
    return PromptInputs(numbers, token, token, blocks, row, truth, truth, row, row, row, row, number, number)


def inputs_in(memory: torch.Tensor, sizes: PromptInputs) -> PromptInputs:
    """Return one view per input of a block of memory."""
    views, used = [], 0
    for dtype, size in sizes:
        end = used + prod(size) * dtype.itemsize
        views.append(memory[used:end].view(dtype).view(size))
        used = _aligned(end)
    return PromptInputs(*views)


def bytes_of(sizes: PromptInputs) -> int:
    """Return the total number of bytes in all inputs."""
    return sum(_aligned(prod(size) * dtype.itemsize) for dtype, size in sizes)


def _aligned(size: int) -> int:
    return -(-size // 16) * 16


def fill(inputs: PromptInputs, pieces: Sequence[PackedPiece], *, spare: int) -> None:
    """Write the inputs of a batch into arrays; tokens after the last piece are padding, which no block covers."""
    slots = np.array([piece.start.slot for piece in pieces])
    firsts = np.array([piece.first for piece in pieces])
    counts = np.array([piece.end - piece.first for piece in pieces])
    ends = counts.cumsum()
    used = int(ends[-1])
    parts = (piece.start.tokens[piece.first : piece.end] for piece in pieces)
    inputs.tokens[:used] = np.fromiter(chain.from_iterable(parts), dtype=np.int64, count=used)
    inputs.tokens[used:] = 0
    inputs.positions[:used] = np.arange(used) + np.repeat(firsts - ends + counts, counts)
    inputs.positions[used:] = 0

    each = -(-counts // QUERIES)
    used = int(each.sum())
    offset = QUERIES * (np.arange(used) - np.repeat(each.cumsum() - each, each))
    inputs.blocks[:used, 0] = offset + np.repeat(ends - counts, each)
    inputs.blocks[:used, 1] = np.minimum(QUERIES, np.repeat(counts, each) - offset)
    inputs.blocks[:used, 2] = np.repeat(slots, each)
    inputs.blocks[:used, 3] = offset + np.repeat(firsts, each)
    inputs.blocks[used:] = 0

    ending = np.array([index for index, piece in enumerate(pieces) if piece.is_last], dtype=np.int64)
    starts = [pieces[index].start for index in ending]
    used, is_read = len(starts), counts[ending] > 0
    for array, values, unused in (
        (inputs.slots, [s.slot for s in starts], spare),
        (inputs.is_read, is_read, False),
        (inputs.is_ready, ~is_read, False),
        (inputs.last, np.where(is_read, ends[ending] - 1, 0), 0),
        (inputs.last_token, [s.tokens[-1] for s in starts], 0),
        (inputs.last_position, [len(s.tokens) - 1 for s in starts], 0),
        (inputs.limit, [s.limit for s in starts], 1),
        (inputs.temperature, [s.temperature for s in starts], 1.0),
        (inputs.top_p, [1.0 if s.top_p is None else s.top_p for s in starts], 1.0),
    ):
        array[:used] = values
        array[used:] = unused
    for row, start in zip(inputs.numbers, starts, strict=False):
        row[: start.limit] = start.numbers[: start.limit]


class PromptReader:
    """Captures the graph for a batch of each shape when it is first needed, and replays it."""

    def __init__(self, staging: Staging, *, spare: int, longest: int) -> None:
        """Read prompts of rows that generate at most `longest` tokens; unused rows of a batch use the slot `spare`."""
        self._staging = staging
        self._spare, self._longest = spare, longest
        self._memory: dict[BatchShape, torch.Tensor] = {}
        self._graphs: dict[tuple[BatchShape, bool], Any] = {}

    def start(self, starts: Sequence[Start], capture: Callable[[PromptInputs, bool], Any]) -> None:
        """Read the rest of each prompt, and choose each row's first token.

        `capture` creates the graph that reads inputs on the device; its second argument states whether any row has a
        top_p.
        """
        for shape, pieces in packed_batches(starts):
            sizes = input_sizes(shape, longest=self._longest)
            memory = self._memory.get(shape)
            if memory is None:
                memory = torch.empty(bytes_of(sizes), dtype=torch.uint8, device=self._staging.device)
                self._memory[shape] = memory
            key = shape, any(piece.start.top_p is not None for piece in pieces)
            if key not in self._graphs:
                # A batch without pieces changes only the spare slot, so it is safe to try first.
                memory.zero_()
                inputs = inputs_in(memory, sizes)
                inputs.slots.fill_(self._spare)
                inputs.temperature.fill_(1.0)
                self._graphs[key] = capture(inputs, key[1])
            staged = self._staging.take(len(memory))
            fill(PromptInputs(*(view.numpy() for view in inputs_in(staged, sizes))), pieces, spare=self._spare)
            memory.copy_(staged, non_blocking=True)
            self._graphs[key].replay()
