"""Estimate how much of a run is done and how long the rest will take, from the units of work timed so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Bound = Literal["about", "at least", "at most"]
ENOUGH: Final = 2
"""Timed units that a measurement needs."""
_ENOUGH_SECONDS: Final = 10.0
_ENOUGH_SHARE: Final = 0.1
"""A measurement takes so long, or has this share of the units of its step."""


@dataclass(frozen=True, slots=True)
class Work:
    """One step of a run: calls of models, steps of a training, or a report."""

    name: str
    kind: str
    """Units of one kind take about the same time, so a step can be judged by an earlier one of its kind."""
    total: int | None = None
    """All units; None if not known yet."""
    bound: Bound = "about"
    """Whether the total is an estimate or a bound."""
    done: int = 0
    """Units made by this process or found in the journal."""
    timed: int = 0
    """Units made while they were timed, lately."""
    seconds: float = 0.0
    """Time of all timed units together."""
    is_over: bool = False
    weight: float = 1.0
    """Assumed size of a unit; only the length of the bar depends on it, until the kind is measured."""

    @property
    def left(self) -> int | None:
        """Units still to do; None if not known yet."""
        if self.is_over:
            return 0
        return None if self.total is None else max(0, self.total - self.done)


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """An estimate from measurements alone."""

    seconds: float
    unmeasured: tuple[str, ...] = ()
    """Steps that the estimate leaves out."""


def pace_of(work: Work, works: Sequence[Work]) -> float | None:
    """Seconds for one unit: the step's own pace, else that of all steps of its kind, else None.

    >>> pace_of(Work("a", "calls", timed=4, seconds=2.0), [])
    0.5
    """
    measured = [work] if _is_measured(work) else [w for w in works if w.kind == work.kind and _is_measured(w)]
    timed = sum(w.timed for w in measured)
    return sum(w.seconds for w in measured) / timed if timed else None


def time_left(works: Sequence[Work]) -> TimeLeft | None:
    """The time that the steps of a run still take; None if nothing is measured yet."""
    seconds = 0.0
    unmeasured: list[str] = []
    for work in works:
        if work.left == 0:
            continue
        pace = pace_of(work, works)
        if work.left is None or pace is None:
            unmeasured.append(work.name)
            continue
        seconds += work.left * pace
    return TimeLeft(seconds, tuple(unmeasured)) if seconds else None


def share_done(works: Sequence[Work]) -> float:
    """The share of all work that is done, from 0 to 1; steps weigh as much as they are known to take."""
    sizes = [(work, _unit_size(work, works)) for work in works if work.total]
    everything = sum(max(work.total or 0, work.done) * size for work, size in sizes)
    done = sum((max(work.total or 0, work.done) if work.is_over else work.done) * size for work, size in sizes)
    return done / everything if everything else 0.0


def _is_measured(work: Work) -> bool:
    is_long = work.seconds >= _ENOUGH_SECONDS or work.timed >= _ENOUGH_SHARE * (work.total or 0)
    return work.timed >= ENOUGH and work.seconds > 0 and is_long


def _unit_size(work: Work, works: Sequence[Work]) -> float:
    """Seconds per unit; an unmeasured step is scaled by its weight from the measured ones."""
    pace = pace_of(work, works)
    if pace is not None:
        return pace
    measured = [w for w in works if _is_measured(w)]
    weighted = sum(w.timed * w.weight for w in measured)
    return work.weight * (sum(w.seconds for w in measured) / weighted if weighted else 1.0)
