"""What the owner of a journal and its workers write to each other about leases.

A lease lends conversations to one worker: those of some buckets of combinations. Its epoch is a number that no other
lease has, so rows of a lease that was revoked are told apart from those of the lease that came after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from skillmix.calls import CallKey, Outcome
from skillmix.catalog.combinations import Combination
from skillmix.runs.budget import Task
from skillmix.runs.journal.buckets import bucket_of as bucket_of
from skillmix.runs.scheduler import StopReason


class LentConversation(NamedTuple):
    """A conversation that lacks calls."""

    student: str
    combination: Combination
    generation: int


class KnownOutcome(NamedTuple):
    """An outcome that a worker must not ask for."""

    request_hash: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Lease:
    """Conversations that one worker has, with the outcomes that are known of them."""

    epoch: int
    buckets: frozenset[int]
    conversations: tuple[LentConversation, ...]
    known: Mapping[CallKey, KnownOutcome]


# Letters of the owner


@dataclass(frozen=True, slots=True)
class LeaseGiven:
    """The worker may work on a lease."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class LeaveGiven:
    """The worker may send these calls."""

    keys: tuple[CallKey, ...]


@dataclass(frozen=True, slots=True)
class TriesStored:
    """The tries of a letter are durable."""

    batch: int


@dataclass(frozen=True, slots=True)
class StopCalls:
    """The worker must send no more calls."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class NoMoreLeases:
    """All conversations are over."""


OwnerLetter = LeaseGiven | LeaveGiven | TriesStored | StopCalls | NoMoreLeases


# Letters of a worker


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The worker wants to send these calls."""

    epoch: int
    tasks: tuple[Task, ...]


class LentTry(NamedTuple):
    """One call that a worker sent under a lease, with its outcome."""

    epoch: int
    key: CallKey
    outcome: Outcome
    seconds: float
    is_over: bool
    """Whether the call will not be tried again."""


@dataclass(frozen=True, slots=True)
class TriesMade:
    """Calls that were sent; the worker uses their outcomes when they are stored."""

    batch: int
    tries: tuple[LentTry, ...]


@dataclass(frozen=True, slots=True)
class LeaseReturned:
    """The worker has no open call of a lease any more."""

    epoch: int
    found: int
    """Outcomes that were known and were used."""
    left_out: int
    """Calls that were not made because their models are not part of the step."""


@dataclass(frozen=True, slots=True)
class LineSaid:
    """A line for the user."""

    line: str


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The worker does nothing any more; a problem ends the step."""

    problem: str | None = None
    hint: str | None = None


WorkerLetter = LeaveAsked | TriesMade | LeaseReturned | LineSaid | WorkerEnded
