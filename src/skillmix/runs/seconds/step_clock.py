"""Divide the wall time of a step into parts that add up to it.

At each moment a step is in exactly one part: of the parts that go on, the first in the order of `PARTS` counts.

- writing: a student has calls that are not over.
- grading: a grader has calls that are not over, or code decides which texts have full marks; no student writes.
- saving: files are written: a data set, a checkpoint, a trained model, a report.
- validating: the loss on texts held back from training is computed.
- training: optimiser steps, with the preparation of their data.
- compiling: a local model or a training compiles kernels and captures steps, so that it cannot work yet.
- loading: packages are imported and weights are read.
- waiting: calls have begun, but none is with a model: outcomes are on their way into the journal, or a call waits
  before it is tried again.
- reading: everything else: the journal is read, combinations are drawn, conversations are tokenised.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, get_args

Part = Literal["writing", "grading", "saving", "validating", "training", "compiling", "loading", "waiting", "reading"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)


class StepClock:
    """Measures the parts of one step; only one thread may use it, apart from `seconds`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._going_on: Counter[Part] = Counter()
        self._seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self._current: tuple[Part, float] = "reading", now()
        """The part that counts now, and since when."""

    def begin(self, part: Part, at: float | None = None) -> None:
        """Note that something of a part begins; `at` saves a look at the clock."""
        self._going_on[part] += 1
        if self._going_on[part] == 1:
            self._change(at)

    def end(self, part: Part, at: float | None = None) -> None:
        """Note that something of a part ends."""
        self._going_on[part] -= 1
        if self._going_on[part] == 0:
            self._change(at)

    @contextmanager
    def measuring(self, part: Part) -> Iterator[None]:
        """Count the duration of a block as a part, unless a part of higher rank goes on as well."""
        self.begin(part)
        try:
            yield
        finally:
            self.end(part)

    def move(self, seconds: float, source: Part, target: Part) -> None:
        """Count seconds of one part as another; never more than the part has."""
        self._change(None)
        moved = max(0.0, min(seconds, self._seconds[source]))
        self._seconds[source] -= moved
        self._seconds[target] += moved

    def seconds(self) -> dict[Part, float]:
        """The seconds of each part until now; their sum is the time since the clock was made."""
        seconds = dict(self._seconds)
        part, since = self._current
        seconds[part] += self._now() - since
        return {part: value for part, value in seconds.items() if value > 0}

    def _change(self, at: float | None) -> None:
        """Give the time since the last change to the part that was current, and find the part that is current now."""
        now = self._now() if at is None else at
        part, since = self._current
        now = max(now, since)  # another thread may have read its time earlier
        self._seconds[part] += now - since
        self._current = next((p for p in PARTS if self._going_on[p] > 0), "reading"), now


def total(seconds: Mapping[Part, float]) -> float:
    """The sum of all parts."""
    return sum(seconds.values())
