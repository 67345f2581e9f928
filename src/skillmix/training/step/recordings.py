"""Micro-batches as tensors, and recorded passes; a pass that is repeated becomes a CUDA graph, which one launch runs.

A small model's step consists of thousands of short kernels, which take longer to launch than to run. A graph reads the
same memory each time, so each shape of a micro-batch needs a separate graph, and micro-batches are padded to a few
shapes.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np
import torch

from skillmix.models.local.gpu.graph_pool import GraphPool, NotCaptured
from skillmix.runs.progress import say
from skillmix.training.data.batches import MicroBatch
from skillmix.training.step.optimizer import Optimizer

_LEAST_STEP: Final = 512
Work = Callable[[], None]
"""Launches device work that reads and writes the same memory each time."""


class Shape(NamedTuple):
    """The sizes of a micro-batch on the device, including padding."""

    tokens: int
    segments: int
    """The number of examples, including the padding and empty examples."""
    rows: int
    """The number of targets, including targets of weight 0."""


class Inputs(NamedTuple):
    """A micro-batch as tensors, in host memory or on the device."""

    tokens: torch.Tensor
    positions: torch.Tensor
    bounds: torch.Tensor
    rows: torch.Tensor
    targets: torch.Tensor
    shares: torch.Tensor
    is_replay: torch.Tensor
    is_target: torch.Tensor
    """Whether each row counts; rows that are only padding do not."""
    longest: int

    @property
    def shape(self) -> Shape:
        """The sizes of the tensors."""
        return Shape(len(self.tokens), len(self.bounds) - 1, len(self.rows))

    def sent(self, device: torch.device, *, longest: int, memory: "Inputs | None" = None) -> "Inputs":
        """Return a copy on the device, in the memory of an earlier copy of the same shape if that copy is given."""
        *tensors, _ = self
        if device.type == "cuda":  # from pinned memory, a copy need not wait for pending work on the device
            tensors = [tensor.pin_memory() for tensor in tensors]
        if memory is None:
            copies = [tensor.to(device, non_blocking=True) for tensor in tensors]
        else:
            copies = [own.copy_(new, non_blocking=True) for own, new in zip(memory, tensors, strict=False)]
        return Inputs._make([*copies, longest])


def inputs_of(batch: MicroBatch, *, shares: np.ndarray, shape: Shape | None = None) -> Inputs:
    """Convert a micro-batch to tensors in host memory, padded to a shape with empty segments and rows of weight 0.

    A batch without targets has one row of weight 0.
    """
    count = len(batch.rows)
    shape = shape or Shape(len(batch.tokens), len(batch.bounds) - 1, max(1, count))
    # Padding rows use different tokens, because many additions to the gradient of a single token would wait for each
    # other.
    spread = np.arange(shape.rows - count) % shape.tokens
    zeros = np.zeros(shape.rows - count, dtype=np.int64)
    empty = np.full(shape.segments + 1 - len(batch.bounds), batch.bounds[-1])
    return Inputs(
        tokens=torch.tensor(batch.tokens),
        positions=torch.tensor(batch.positions),
        bounds=torch.tensor(np.concatenate((batch.bounds, empty)), dtype=torch.int32),
        rows=torch.tensor(np.concatenate((batch.rows, spread))),
        targets=torch.tensor(np.concatenate((batch.targets, zeros))),
        shares=torch.tensor(np.concatenate((shares, zeros)), dtype=torch.float32),
        is_replay=torch.tensor(np.concatenate((batch.is_replay, zeros)), dtype=torch.bool),
        is_target=torch.arange(shape.rows) < count,
        longest=batch.longest,
    )


def ladder_step(number: int, *, per_octave: int = 8) -> int:
    """Return the step by which sizes near a number are rounded up, so that they take few values per octave.

    >>> [ladder_step(number, per_octave=8) for number in (100, 4096, 9000, 17000)]
    [512, 512, 1024, 2048]
    """
    octave = 1 << max(0, (max(1, number) - 1).bit_length() - 1)
    return max(_LEAST_STEP, octave // per_octave)


def padded_shape(batch: MicroBatch) -> Shape:
    """Round up a micro-batch's shape, so that similar micro-batches have the same shape.

    The number of target rows is rounded up more coarsely than the number of tokens, because a row costs far less than a
    token.
    """
    tokens, segments, rows = len(batch.tokens), len(batch.bounds) - 1, max(1, len(batch.rows))
    step = ladder_step(rows, per_octave=2)
    return Shape(tokens, 1 << segments.bit_length(), max(rows, min(tokens, -(-rows // step) * step)))


class _Recording(NamedTuple):
    replay: Work
    touched: frozenset[str]
    """The names of the parameters that receive a gradient."""


class Recordings:
    """Records device work by key and replays it; work with a new key is run, and recorded when the key repeats."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.recorded: dict[Hashable, _Recording] = {}
        self.failed: set[Hashable] = set()
        """Keys of work that could not be recorded."""
        self._runs: Counter[Hashable] = Counter()
        self._inputs: dict[Shape, Inputs] = {}
        """Device memory for the inputs of recorded passes."""
        self._pool: GraphPool | None = None

    def inputs(self, host: Inputs, *, longest: int) -> Inputs:
        """Copy the inputs of a pass to the device, into the memory that recorded passes of this shape read."""
        inputs = host.sent(self.device, longest=longest, memory=self._inputs.get(host.shape))
        return self._inputs.setdefault(host.shape, inputs)._replace(longest=longest)

    def run(self, key: Hashable, work: Work, optimizer: Optimizer) -> None:
        """Replay the work if it is recorded, otherwise run it."""
        self._runs[key] += 1
        if self._runs[key] > 1 and key not in self.recorded and key not in self.failed:
            before = set(optimizer.untouched)
            replay = self.capture(work)
            touched, optimizer.untouched = frozenset(before - optimizer.untouched), before
            if replay is None:
                optimizer.drop_gradients()
                self.failed.add(key)
            else:
                self.recorded[key] = _Recording(replay, touched)
        if key in self.recorded:
            self.recorded[key].replay()
            optimizer.untouched -= self.recorded[key].touched
        else:
            work()

    def capture(self, work: Work) -> Work | None:
        """Record work as a graph without running it, and return its replay function; None if that is impossible."""
        try:
            replay: Work = self._graphs.capture(work).replay
        except (NotCaptured, torch.OutOfMemoryError) as error:
            if not self.failed:
                say(f"a pass of this training cannot be recorded as a CUDA graph, and stays slower: {error}")
            return None
        return replay

    def clear(self) -> None:
        """Release all recordings and their memory."""
        self.recorded.clear()
        self._graphs.renew()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run on the stream of the recordings, so that libraries allocate their workspaces before a recording."""
        outer, stream = torch.cuda.current_stream(), self._graphs.stream
        stream.wait_stream(outer)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            outer.wait_stream(stream)

    @property
    def _graphs(self) -> GraphPool:
        """The memory pool that all graphs share, because they never run at the same time."""
        if self._pool is None:
            self._pool = GraphPool(torch.cuda.Stream(self.device))
        return self._pool
