"""One batch that a run has sent: its calls that wait for results, and what was read of it."""

import time
from dataclasses import dataclass, field

from skillmix.calls import Request
from skillmix.models.batches.batch_records import LineResult
from skillmix.runs.batches.pace import BatchPace
from skillmix.runs.journal.submissions import StoredBatch


@dataclass(slots=True)
class OpenBatch:
    """A batch without its results."""

    stored: StoredBatch
    order: list[str]
    """The ids of its calls, in the order of its lines; after a crash, of those without an outcome."""
    waiting: dict[str, Request] = field(default_factory=dict)
    """Calls that wait for their results, by their ids in the batch."""
    lines: dict[str, LineResult] = field(default_factory=dict)
    """Results that were read, by the ids of their calls."""
    is_read: bool = False
    """Whether no more results are expected."""
    ends_early: bool = False
    """Whether it expired or was cancelled."""
    next_look: float = 0.0
    wait: float = 0.0
    looks: int = 0
    handed_out: int = 0
    """Calls of the batch that were given their outcomes."""
    gone: int = 0
    """Looks in a row that did not find the batch under its id."""

    @property
    def tag(self) -> str:
        """The tag of the batch."""
        return self.stored.tag

    def plan_look(self, pace: BatchPace, asked: float | None = None) -> None:
        """Look again after a wait that grows, and not before the provider wants it."""
        self.wait = min(pace.longest_wait, self.wait * 1.5 if self.wait else pace.first_look)
        self.next_look = time.monotonic() + max(self.wait, min(asked or 0.0, 600.0))
