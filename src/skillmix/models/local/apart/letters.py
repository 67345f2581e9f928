"""What a command and the process of its local models send each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skillmix.calls import Outcome, Request
from skillmix.models.specs import ModelSpec

Question = tuple[int, Request]
"""A request with its number, without the task behind it, which is not sent to models."""


@dataclass(frozen=True, slots=True)
class Open:
    """Begin to serve a model; all letters about it have the same `work`."""

    work: int
    spec: ModelSpec
    concurrency: int | None


@dataclass(frozen=True, slots=True)
class Ask:
    """More requests for a model."""

    work: int
    questions: Sequence[Question]


@dataclass(frozen=True, slots=True)
class NoMore:
    """The last request was sent."""

    work: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Answer no more requests."""

    work: int


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Begin to read a checkpoint."""

    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class Announce:
    """Note which model is used after the present one."""

    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class ReadAnnounced:
    """Begin to read the announced model."""


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """Free memory for training, and answer with `RoomMade`."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Outcomes of requests by their numbers, and the error that ended the work."""

    work: int
    outcomes: Sequence[tuple[int, Outcome]]
    slots: int | None
    """The number of conversations at once; None until the model is loaded."""
    is_last: bool = False
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class RoomMade:
    """Memory was freed."""


Letter = Any
"""One of the classes above."""
