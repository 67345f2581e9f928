"""The data of the next step, prepared in a thread while the GPU works on the present one."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from skillmix.training.data.examples import Data, Example
from skillmix.training.step.engine import Engine, PreparedStep


class StepData(NamedTuple):
    """The examples of a step, and their micro-batches if these were packed already."""

    examples: Sequence[Example]
    prepared: PreparedStep | None


class UpcomingSteps:
    """Hands out the data of each step, and prepares those of the next one in a thread.

    On a CPU there is no thread: it would only take time from the step.
    """

    def __init__(self, data: Data, engine: Engine, *, steps: int, is_ahead: bool | None = None) -> None:
        self._data, self._engine, self._steps = data, engine, steps
        self._is_ahead = engine.device.type == "cuda" if is_ahead is None else is_ahead
        self._thread: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[StepData]] | None = None

    def __enter__(self) -> "UpcomingSteps":
        if self._is_ahead:
            self._thread = ThreadPoolExecutor(1, "next-step", initializer=_use_device, initargs=(self._engine.device,))
        return self

    def __exit__(self, *_: Any) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def take(self, number: int) -> StepData:
        """The data of a step; an error in the data of a step is raised when the step is taken."""
        if self._next is not None and self._next[0] == number:
            data = self._next[1].result()
        else:
            data = StepData(self._data.step(number), prepared=None)
        if self._thread is not None and number + 1 < self._steps:
            self._next = number + 1, self._thread.submit(self._prepared, number + 1)
        return data

    def _prepared(self, number: int) -> StepData:
        examples = self._data.step(number)
        # The first step decides on the device how steps are packed, which is not for this thread.
        prepared = self._engine.prepare(examples) if self._engine.is_ready else None
        return StepData(examples, prepared)


def _use_device(device: torch.device) -> None:
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
