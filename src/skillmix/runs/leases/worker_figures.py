"""What an owner counts of its workers; nothing depends on these figures."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

WorkerState = Literal["works", "ended", "lost"]


@dataclass(slots=True)
class WorkerFigures:
    """The figures of one worker."""

    name: str
    state: WorkerState = "works"
    leases: int = 0
    in_flight: int = 0
    """Calls that it may send or has sent; of a lost worker, those that it had under way."""
    calls: int = 0
    """Calls that it made and that are stored."""
    joined: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    """When it last answered."""


class TeamFigures:
    """The figures of all workers that ever took part in a step, in the order in which they came."""

    def __init__(self) -> None:
        self._by_name: dict[str, WorkerFigures] = {}

    def __iter__(self) -> Iterator[WorkerFigures]:
        return iter(self._by_name.values())

    def join(self, worker: str) -> None:
        """Begin to count for a worker."""
        self._by_name[worker] = WorkerFigures(worker)

    def hear(self, worker: str) -> None:
        """Note that a worker has answered."""
        self._by_name[worker].heard = time.monotonic()

    def store(self, worker: str, calls: int) -> None:
        """Count calls that are stored."""
        self._by_name[worker].calls += calls

    def end(self, worker: str, state: WorkerState, *, under_way: int = 0) -> None:
        """Note that a worker does nothing any more."""
        figures = self._by_name[worker]
        if figures.state == "works":
            figures.state, figures.leases, figures.in_flight = state, 0, under_way
