"""Device work that is recorded once and replayed: a replay costs one launch, where the work itself costs thousands.

A recorder records; `GraphRecorder` does so with CUDA graphs. `Recordings` decides what is worth recording: work that
comes again and again, on the same memory. The work runs unrecorded the first times, which compiles its kernels.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

import torch

from skillmix.models.local.gpu.graph_pool import GraphPool, NotCaptured
from skillmix.runs.progress import say
from skillmix.training.step.optimizer import Optimizer

_UNRECORDED: Final = 1
"""How often work runs before it is recorded."""
Work = Callable[[], None]
"""Launches device work that reads and writes the same memory each time."""


class Recorder(Protocol):
    """Records device work."""

    def record(self, work: Work) -> Work | None:
        """A replay of the work, which has not run yet; None if it cannot be recorded."""
        ...

    def forget(self) -> None:
        """Note that all recordings have been dropped."""
        ...

    def running(self) -> Any:
        """A context in which all work runs, recorded or not."""
        ...


class GraphRecorder:
    """Records CUDA graphs, which share one memory pool: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = GraphPool(self._stream)
        self._has_warned = False

    def record(self, work: Work) -> Work | None:
        """Record a graph; None if memory runs out, or if an operation cannot be recorded."""
        try:
            replay: Work = self._pool.capture(work).replay
        except (NotCaptured, torch.OutOfMemoryError) as error:
            if not self._has_warned:
                self._has_warned = True
                say(f"a pass of this training cannot be recorded as a CUDA graph, and stays slower: {error}")
            return None
        return replay

    def forget(self) -> None:
        """Use other memory from now on."""
        self._pool.renew()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run on the stream of the recordings, so that libraries allocate their workspaces before a recording."""
        outer = torch.cuda.current_stream()
        self._stream.wait_stream(outer)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            outer.wait_stream(self._stream)


class _Recording(NamedTuple):
    replay: Work
    touched: frozenset[str]
    """Names of the parameters that get a gradient."""


class Recordings:
    """Replays of device work by key; work with a new key runs, and is recorded when it comes again."""

    def __init__(self, recorder: Recorder, optimizer: Optimizer) -> None:
        self._recorder, self._optimizer = recorder, optimizer
        self._runs: Counter[Hashable] = Counter()
        self._recordings: dict[Hashable, _Recording] = {}
        self.failed: set[Hashable] = set()
        """Keys of work that could not be recorded."""

    @property
    def count(self) -> int:
        """How many recordings there are."""
        return len(self._recordings)

    def run(self, key: Hashable, work: Work) -> None:
        """Replay the work if it is recorded; run it otherwise."""
        self._runs[key] += 1
        if key not in self._recordings and key not in self.failed and self._runs[key] > _UNRECORDED:
            self._record(key, work)
        recording = self._recordings.get(key)
        if recording is None:
            work()
            return
        recording.replay()
        self._optimizer.untouched -= recording.touched

    def clear(self) -> None:
        """Release all recordings and their memory."""
        self._recordings.clear()
        self._recorder.forget()

    def _record(self, key: Hashable, work: Work) -> None:
        before = set(self._optimizer.untouched)
        replay = self._recorder.record(work)
        touched, self._optimizer.untouched = frozenset(before - self._optimizer.untouched), before
        if replay is None:
            self._optimizer.drop_gradients()
            self.failed.add(key)
        else:
            self._recordings[key] = _Recording(replay, touched)
