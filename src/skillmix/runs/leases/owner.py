"""The owner of a journal lends conversations to workers and stores what they send.

Only the owner writes, and it stores a row only for a call that it gave leave for, under the lease that has it. A worker
goes on with a conversation when its rows are durable. So a call is asked twice only if it was under way on a worker
that was lost, and a worker that was given up and lives on can add nothing.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from skillmix.calls import CallKey, CallProblem, Outcome, Reply
from skillmix.errors import UserError
from skillmix.runs.budget import Budget, Task
from skillmix.runs.journal.journal import JournalWriter
from skillmix.runs.journal.row_writer import Try
from skillmix.runs.leases.lease import (
    KnownOutcome,
    Lease,
    LeaseGiven,
    LeaseReturned,
    LeaveAsked,
    LeaveGiven,
    LentConversation,
    LentTry,
    LineSaid,
    NoMoreLeases,
    OwnerLetter,
    StopCalls,
    TriesMade,
    TriesStored,
    WorkerEnded,
    WorkerLetter,
    bucket_of,
)
from skillmix.runs.leases.mailbox import Mailbox, Packet
from skillmix.runs.scheduler import CallCounts, StopReason

_LEASES: Final = 2
"""Leases of a worker: while the last calls of one are under way, the other has work."""
_SHARE: Final = 32
_FEWEST: Final = 64
_MOST: Final = 256
"""A lease has a 32nd of the conversations of its step, but not fewer than 64 and not many more than 256."""


@dataclass(slots=True)
class _Lent:
    """A lease that a worker has."""

    lease: Lease
    worker: str
    made_before: int
    """Outcomes of its buckets that earlier leases of this step added: they were counted as calls."""
    under_way: dict[CallKey, Task] = field(default_factory=dict)
    """Calls with leave and without an outcome."""


class LeaseOwner:
    """Lends the conversations of one step, and keeps its budget; one thread uses it."""

    def __init__(
        self,
        conversations: Iterable[LentConversation],
        journal: JournalWriter,
        budget: Budget,
        counts: CallCounts,
        has_calls: Callable[[str, str, int], bool],
    ) -> None:
        self._journal = journal
        self._budget = budget
        self._has_calls = has_calls
        self.counts = counts
        self._buckets: dict[int, list[LentConversation]] = {}
        for conversation in conversations:
            self._buckets.setdefault(bucket_of(conversation.combination.id), []).append(conversation)
        self._to_lend = deque(sorted(self._buckets))
        self._size = min(_MOST, max(_FEWEST, sum(map(len, self._buckets.values())) // _SHARE))
        self._made: dict[int, int] = {}
        """By bucket that was lent, the outcomes that this step has added."""
        self._failed: dict[int, dict[CallKey, KnownOutcome]] = {}
        """Calls that this step has given up; it does not ask them again, though a later run does."""
        self._lent: dict[int, _Lent] = {}
        self._epoch = 0
        self._mail: dict[str, Mailbox[OwnerLetter, WorkerLetter]] = {}
        self._told_end: set[str] = set()
        self._held: deque[tuple[int, Task]] = deque()
        """Calls that wait for the budget."""
        self.lost = 0
        """Calls that were under way on lost workers, which may be asked twice."""
        self.refused = 0
        """Rows and questions of leases that are not theirs any more."""
        self.problem: UserError | None = None
        self.say: Callable[[str], None] = lambda line: None

    # Workers

    def join(self, worker: str) -> None:
        """Let a worker take part; a name is used once."""
        self._mail[worker] = Mailbox()
        if self.counts.stopped is not None:
            self._mail[worker].put(StopCalls(self.counts.stopped))

    def is_here(self, worker: str) -> bool:
        """Whether a worker takes part: it has neither ended nor been lost."""
        return worker in self._mail

    @property
    def is_over(self) -> bool:
        """Whether every conversation is over."""
        return not self._to_lend and not self._lent

    @property
    def in_flight(self) -> int:
        """Calls that workers may send or have sent."""
        return sum(len(lent.under_way) for lent in self._lent.values())

    @property
    def awaited(self) -> int:
        """Calls whose replies are waited for: all that are in flight."""
        return self.in_flight

    @property
    def leases(self) -> int:
        """Leases that workers have."""
        return len(self._lent)

    def packet_for(self, worker: str) -> Packet[OwnerLetter]:
        """What a worker does not know yet, new leases included."""
        mail = self._mail[worker]
        if not self.counts.stopped:
            # One lease for each packet, so that the other workers get theirs before this one gets its second.
            if self._to_lend and sum(lent.worker == worker for lent in self._lent.values()) < _LEASES:
                mail.put(LeaseGiven(self._lend(worker)))
            if self.is_over and worker not in self._told_end:
                self._told_end.add(worker)
                mail.put(NoMoreLeases())
        return mail.packet()

    def receive(self, worker: str, packet: Packet[WorkerLetter]) -> None:
        """Store and answer what a worker sent; a worker that was lost or has ended is not heard."""
        if worker not in self._mail:
            self.refused += len(packet.letters)
            return
        for letter in self._mail[worker].take(packet):
            match letter:
                case LeaveAsked():
                    self._hold(worker, letter)
                case TriesMade():
                    self._store(worker, letter)
                case LeaseReturned():
                    self._take_back(worker, letter)
                case LineSaid():
                    self.say(letter.line)
                case WorkerEnded():
                    self._end(worker, letter)
        self._give_leave()

    def lose(self, worker: str) -> int:
        """Lend the conversations of a worker that is certainly gone to others; its calls under way are returned."""
        self._mail.pop(worker, None)
        under_way = self._revoke(
            [lent for lent in self._lent.values() if lent.worker == worker], "lost with its worker"
        )
        self.lost += under_way
        self._give_leave()
        return under_way

    def leave(self) -> None:
        """Take every lease back at once; calls under way count as sent, since providers may bill them."""
        self._mail.clear()
        self._revoke(list(self._lent.values()), "left before its reply")

    def stop(self, reason: StopReason) -> None:
        """Let workers send no more calls; calls in flight are waited for."""
        if self.counts.stopped is None:
            self.counts.stopped = reason
            self._held.clear()
            for mail in self._mail.values():
                mail.put(StopCalls(reason))

    # Leases

    def _lend(self, worker: str) -> Lease:
        buckets: list[int] = []
        conversations: list[LentConversation] = []
        while self._to_lend and len(conversations) < self._size:
            buckets.append(self._to_lend.popleft())
            conversations += self._buckets[buckets[-1]]
        self._epoch += 1
        lease = Lease(self._epoch, frozenset(buckets), tuple(conversations), self._known(buckets))
        made_before = sum(self._made.setdefault(bucket, 0) for bucket in buckets)
        self._lent[lease.epoch] = _Lent(lease, worker, made_before)
        return lease

    def _known(self, buckets: Sequence[int]) -> dict[CallKey, KnownOutcome]:
        known: dict[CallKey, KnownOutcome] = {}
        for bucket in buckets:
            known |= self._failed.get(bucket, {})
            for student, combination, generation in self._buckets[bucket]:
                if bucket in self._made or self._has_calls(student, combination.id, generation):
                    for call in self._journal.conversation(student, combination.id, generation):
                        if call.outcome is not None and _is_final(call.outcome):
                            known[call.key] = KnownOutcome(call.request_hash, call.outcome)
        return known

    def _lent_to(self, worker: str, epoch: int) -> _Lent | None:
        lent = self._lent.get(epoch)
        return lent if lent is not None and lent.worker == worker else None

    def _take_back(self, worker: str, letter: LeaseReturned) -> None:
        lent = self._lent_to(worker, letter.epoch)
        if lent is None:
            self.refused += 1
            return
        del self._lent[letter.epoch]
        for task in lent.under_way.values():  # a stop kept them from being sent
            self._budget.release(task)
        self._journal.forget_sent([task.request for task in lent.under_way.values()])
        self.counts.found += max(0, letter.found - lent.made_before)  # a stop may come before all are found
        self.counts.left_out += letter.left_out
        for bucket in lent.lease.buckets:
            del self._buckets[bucket]
            self._made.pop(bucket, None)
            self._failed.pop(bucket, None)

    def _revoke(self, revoked: Sequence[_Lent], reason: str) -> int:
        """End leases; their conversations are lent again, and their calls under way count as sent."""
        tries = []
        for lent in revoked:
            del self._lent[lent.lease.epoch]
            self._to_lend.extendleft(sorted(lent.lease.buckets, reverse=True))
            for task in lent.under_way.values():
                problem = CallProblem("passing", reason)
                tries.append(Try(task.request, problem, 0.0, self._charge(task, problem)))
                self._budget.release(task)
        if tries:
            self._journal.record_tries(tries)
        return len(tries)

    def _end(self, worker: str, letter: WorkerEnded) -> None:
        del self._mail[worker]
        self._revoke([lent for lent in self._lent.values() if lent.worker == worker], "left before its reply")
        if letter.problem is not None:
            self.problem = self.problem or UserError(letter.problem, hint=letter.hint)
            self.stop(StopReason.UNUSABLE_MODEL)

    # Calls

    def _hold(self, worker: str, letter: LeaveAsked) -> None:
        lent = self._lent_to(worker, letter.epoch)
        for task in letter.tasks:
            key = task.request.key
            if lent is None or key in lent.under_way or bucket_of(key.combination) not in lent.lease.buckets:
                self.refused += 1
            elif not self.counts.stopped:
                self._held.append((letter.epoch, task))

    def _give_leave(self) -> None:
        """Allow the calls that the budget allows; the others wait until calls under way cost less than reserved."""
        allowed: dict[int, list[CallKey]] = {}
        while self._held:
            epoch, task = self._held[0]
            lent = self._lent.get(epoch)
            if lent is not None:
                if not self._budget.may_start(task):
                    break
                lent.under_way[task.request.key] = task
                allowed.setdefault(epoch, []).append(task.request.key)
                self.counts.started += 1
                cost = self._budget.at_risk(task)
                if cost is not None:
                    self._journal.record_sent(task.request, cost)
            self._held.popleft()
        for epoch, keys in allowed.items():
            self._mail[self._lent[epoch].worker].put(LeaveGiven(tuple(keys)))
        if self._held and not self.in_flight:
            self.stop(StopReason.BUDGET)

    def _store(self, worker: str, letter: TriesMade) -> None:
        """Store tries in one transaction, then let the worker use them."""
        tries = []
        for one in letter.tries:
            lent = self._lent_to(worker, one.epoch)
            task = lent.under_way.pop(one.key, None) if lent is not None else None
            if task is None:
                self.refused += 1
            else:
                tries.append(self._settled(task, one))
        self._journal.record_tries(tries)
        for tried in tries:
            self._count(tried)
        self._mail[worker].put(TriesStored(letter.batch))

    def _settled(self, task: Task, one: LentTry) -> Try:
        cost = None if isinstance(one.outcome, Reply) else self._charge(task, one.outcome)
        if one.is_over:
            return Try(task.request, one.outcome, one.seconds, cost, self._budget.settle(task, one.outcome))
        self._budget.release(task)
        return Try(task.request, one.outcome, one.seconds, cost)

    def _charge(self, task: Task, problem: CallProblem) -> float | None:
        cost = self._budget.charge(task, problem)
        self.counts.cost_usd += cost or 0.0
        return cost

    def _count(self, tried: Try) -> None:
        self.counts.called += 1
        key, stored = tried.request.key, tried.stored
        if stored is None:
            self.counts.retried += 1
            return
        bucket = bucket_of(key.combination)
        self._made[bucket] += 1
        if isinstance(stored, Reply):
            self.counts.tokens += (stored.input_tokens or 0) + (stored.output_tokens or 0)
            self.counts.cost_usd += stored.cost_usd or 0.0
        elif not _is_final(stored):
            self.counts.failed[key] = stored
            self._failed.setdefault(bucket, {})[key] = KnownOutcome(tried.request.content_hash, stored)


def _is_final(outcome: Outcome) -> bool:
    return isinstance(outcome, Reply) or outcome.kind == "final"
