"""A micro-batch as one block of bytes: packed in host memory, copied to the device at once, and read there as tensors.

The shape of a block decides where each tensor lies in it. Blocks of one shape can be copied into the same device memory
again and again; recorded passes (see `recordings.py`) read their inputs there.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import torch

from skillmix.training.data.batches import MicroBatch

_ALIGNMENT: Final = 64
"""Bytes; every tensor in a block starts at a multiple."""
_LEAST_STEP: Final = 512
_TOKENS_PER_OCTAVE: Final = 8
_ROWS_PER_OCTAVE: Final = 2
"""Target rows are rounded up more coarsely than tokens, because a row costs far less than a token."""


class Shape(NamedTuple):
    """The sizes of a micro-batch on the device, padding included."""

    tokens: int
    segments: int
    """Examples, among them the filling and empty ones."""
    rows: int
    """Targets, among them some of weight 0."""


class HostInputs(NamedTuple):
    """A micro-batch in host memory."""

    shape: Shape
    longest: int
    block: torch.Tensor


class Inputs(NamedTuple):
    """A micro-batch on the device."""

    tokens: torch.Tensor
    positions: torch.Tensor
    bounds: torch.Tensor
    longest: int
    rows: torch.Tensor
    targets: torch.Tensor
    shares: torch.Tensor
    is_replay: torch.Tensor
    is_target: torch.Tensor
    """Whether a row counts; rows that only pad do not."""


def ladder_step(number: int, *, per_octave: int, least: int) -> int:
    """The distance of rungs on a ladder with some rungs between powers of two; multiples of it are few numbers.

    >>> [ladder_step(number, per_octave=8, least=512) for number in (100, 4096, 9000, 17000)]
    [512, 512, 1024, 2048]
    """
    octave = 1 << max(0, (max(1, number) - 1).bit_length() - 1)
    return max(least, octave // per_octave)


def tokens_multiple(tokens: int) -> int:
    """The multiple to which the tokens of a recorded micro-batch are filled."""
    return ladder_step(tokens, per_octave=_TOKENS_PER_OCTAVE, least=_LEAST_STEP)


def exact_shape(batch: MicroBatch) -> Shape:
    """The shape of a micro-batch without padding; a batch without targets has one row of weight 0."""
    return Shape(len(batch.tokens), len(batch.bounds) - 1, max(1, len(batch.rows)))


def padded_shape(batch: MicroBatch) -> Shape:
    """One of few shapes that hold a micro-batch, so that similar micro-batches have the same shape."""
    exact = exact_shape(batch)
    step = ladder_step(exact.rows, per_octave=_ROWS_PER_OCTAVE, least=_LEAST_STEP)
    rows = min(exact.tokens, -(-exact.rows // step) * step)
    return Shape(exact.tokens, 1 << exact.segments.bit_length(), max(exact.rows, rows))


def host_inputs(batch: MicroBatch, shape: Shape, *, shares: np.ndarray, is_pinned: bool) -> HostInputs:
    """Write a micro-batch into a block of a shape: empty segments and rows of weight 0 fill it up."""
    block = torch.empty(_layout(shape).size, dtype=torch.uint8, pin_memory=is_pinned)
    tensors, count = _tensors(block, shape), len(batch.rows)
    tensors["tokens"].numpy()[:] = batch.tokens
    tensors["positions"].numpy()[:] = batch.positions
    _fill(tensors["bounds"], batch.bounds, batch.bounds[-1])
    # Padding rows are spread: many additions to the gradient of one and the same token would wait for each other.
    _fill(tensors["rows"], batch.rows, np.arange(shape.rows - count) % shape.tokens)
    _fill(tensors["targets"], batch.targets, 0)
    _fill(tensors["shares"], shares, 0)
    _fill(tensors["is_replay"], batch.is_replay, False)
    _fill(tensors["is_target"], np.ones(count, dtype=bool), False)
    return HostInputs(shape, batch.longest, block)


def device_inputs(block: torch.Tensor, shape: Shape, *, longest: int) -> Inputs:
    """The tensors in a block on the device."""
    return Inputs(longest=longest, **_tensors(block, shape))


def inputs_of(batch: MicroBatch, *, shares: np.ndarray, longest: int | None, device: torch.device) -> Inputs:
    """Copy a micro-batch to the device as it is; a batch without targets gets a dummy target of weight 0."""
    host = host_inputs(batch, exact_shape(batch), shares=shares, is_pinned=device.type == "cuda")
    return device_inputs(host.block.to(device, non_blocking=True), host.shape, longest=longest or host.longest)


class _Field(NamedTuple):
    start: int
    end: int
    dtype: torch.dtype


class _Layout(NamedTuple):
    size: int
    fields: dict[str, _Field]


def _layout(shape: Shape) -> _Layout:
    counts: dict[str, tuple[int, torch.dtype]] = {
        "tokens": (shape.tokens, torch.int64),
        "positions": (shape.tokens, torch.int64),
        "rows": (shape.rows, torch.int64),
        "targets": (shape.rows, torch.int64),
        "shares": (shape.rows, torch.float32),
        "bounds": (shape.segments + 1, torch.int32),
        "is_replay": (shape.rows, torch.bool),
        "is_target": (shape.rows, torch.bool),
    }
    fields, start = {}, 0
    for name, (count, dtype) in counts.items():
        end = start + count * dtype.itemsize
        fields[name] = _Field(start, end, dtype)
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
    return _Layout(start, fields)


def _tensors(block: torch.Tensor, shape: Shape) -> dict[str, Any]:
    fields = _layout(shape).fields
    return {name: block[field.start : field.end].view(field.dtype) for name, field in fields.items()}


def _fill(tensor: torch.Tensor, values: np.ndarray, padding: Any) -> None:
    array = tensor.numpy()
    array[: len(values)] = values
    array[len(values) :] = padding
