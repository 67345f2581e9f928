"""Recorded passes: a pass that comes again becomes a CUDA graph, which is launched at once instead of kernel by kernel.

A step of a small model is thousands of short kernels, and launching them takes longer than running them. A graph reads
the same memory each time, so each shape of a micro-batch has its own, and micro-batches are padded to few shapes.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch

from skillmix.models.local.gpu.graph_pool import GraphPool, NotCaptured
from skillmix.runs.progress import say
from skillmix.training.data.batches import MicroBatch
from skillmix.training.step.optimizer import Optimizer
from skillmix.training.step.packed_model import Inputs, Shape

_LEAST_STEP: Final = 512
Work = Callable[[], None]
"""Launches device work that reads and writes the same memory each time."""


def ladder_step(number: int, *, per_octave: int = 8) -> int:
    """The distance of rungs on a ladder with some rungs between powers of two; multiples of it are few numbers.

    >>> [ladder_step(number, per_octave=8) for number in (100, 4096, 9000, 17000)]
    [512, 512, 1024, 2048]
    """
    octave = 1 << max(0, (max(1, number) - 1).bit_length() - 1)
    return max(_LEAST_STEP, octave // per_octave)


def padded_shape(batch: MicroBatch) -> Shape:
    """One of few shapes that hold a micro-batch, so that similar micro-batches have the same shape.

    Target rows are rounded up more coarsely than tokens, because a row costs far less than a token.
    """
    tokens, segments, rows = len(batch.tokens), len(batch.bounds) - 1, max(1, len(batch.rows))
    step = ladder_step(rows, per_octave=2)
    return Shape(tokens, 1 << segments.bit_length(), max(rows, min(tokens, -(-rows // step) * step)))


class _Recording(NamedTuple):
    replay: Work
    touched: frozenset[str]
    """Names of the parameters that get a gradient."""


class Recordings:
    """Replays of device work by key; work with a new key runs, and is recorded when it comes again."""

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
        """Copy the inputs of a pass to the device, into the memory that passes of this shape read."""
        inputs = host.sent(self.device, longest=longest, memory=self._inputs.get(host.shape))
        return self._inputs.setdefault(host.shape, inputs)._replace(longest=longest)

    def run(self, key: Hashable, work: Work, optimizer: Optimizer) -> None:
        """Replay the work if it is recorded; run it otherwise."""
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
        """The replay of a graph, which has not run yet; None if memory runs out or an operation cannot be recorded."""
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
