"""The owner of a journal lends conversations to workers and stores what they send.

Only the owner writes, and it stores a row only for a call that it gave leave for, under the lease that has it. A worker
goes on with a conversation when its rows are durable. So a call is asked twice only if it was under way on a worker
that was lost, and a worker that was given up and lives on can add nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple

from skillmix.calls import CallKey, CallProblem, Outcome, Reply
from skillmix.errors import UserError
from skillmix.runs.budget import Budget, Task
from skillmix.runs.journal.call_journal import RunJournal, TryThread
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
from skillmix.runs.leases.worker_figures import TeamFigures
from skillmix.runs.scheduler import CallCounts, StopReason

_SHARE: Final = 32
_FEWEST: Final = 64
_MOST: Final = 256
"""A lease has a 32nd of the conversations of its step, but not fewer than 64 and not many more than 256."""
_FOR_SLOTS: Final = 3072
"""Conversations of a worker with a local model: one and a half for each of the 2,048 slots that a GPU may have."""


@dataclass(slots=True)
class _Lent:
    """A lease that a worker has."""

    lease: Lease
    worker: str
    made_before: int
    """Outcomes of its buckets that earlier leases of this step added: they were counted as calls."""
    under_way: dict[CallKey, Task] = field(default_factory=dict)
    """Calls with leave and without an outcome."""


class _Storing(NamedTuple):
    """Tries of one letter that a thread stores."""

    batch: int
    tries: list[Try]
    future: "Future[None]"


class LeaseOwner:
    """Lends the conversations of one step, and keeps its budget; one thread uses it."""

    def __init__(
        self,
        conversations: Iterable[LentConversation],
        journal: RunJournal,
        budget: Budget,
        counts: CallCounts,
        has_calls: Callable[[str, str, int], bool],
        *,
        leases: int = 2,
    ) -> None:
        self._journal = journal
        self._budget = budget
        self._has_calls = has_calls
        self._most_leases = self._leases = leases
        self._with_slots: int | None = None
        """The number of workers, if their models have slots to fill."""
        self.counts = counts
        self._buckets: dict[int, list[LentConversation]] = {}
        """By bucket, the conversations that are lent or can be lent."""
        self._later: dict[int, list[LentConversation]] = {}
        """Conversations that came while the lease of their bucket was out."""
        self._to_lend: deque[int] = deque()
        self._size = _FEWEST
        self._made: dict[int, int] = {}
        """By bucket that was lent, the outcomes that this step has added."""
        self._failed: dict[int, dict[CallKey, KnownOutcome]] = {}
        """Calls that this step has given up; it does not ask them again, though a later run does."""
        self._lent: dict[int, _Lent] = {}
        self.expects_more = False
        """Whether conversations may be added, so that the step is not over when all have come back."""
        self.returned: Callable[[Sequence[LentConversation]], None] = lambda conversations: None
        """Is given the conversations of each lease that a worker returns."""
        self._epoch = 0
        self._mail: dict[str, Mailbox[OwnerLetter, WorkerLetter]] = {}
        self._told_end: set[str] = set()
        self._held: deque[tuple[int, Task]] = deque()
        """Calls that wait for the budget."""
        self.lost = 0
        """Calls that were under way on lost workers, which may be asked twice."""
        self.refused = 0
        """Rows and questions of leases that are not theirs any more."""
        self._thread: TryThread | None = None
        self._storing: dict[str, list[_Storing]] = {}
        """By worker, tries that are not durable yet."""
        self._figures = TeamFigures()
        self._notes_calls = False
        """Whether calls are noted before they are sent, because the budget has a limit."""
        self.problem: UserError | None = None
        self.say: Callable[[str], None] = lambda line: None
        self.add(conversations)

    def add(self, conversations: Iterable[LentConversation]) -> None:
        """Lend these conversations as well; each is added once."""
        out = {bucket for lent in self._lent.values() for bucket in lent.lease.buckets}
        new: set[int] = set()
        for conversation in conversations:
            bucket = bucket_of(conversation.combination.id)
            if bucket in out:
                self._later.setdefault(bucket, []).append(conversation)
            else:
                if bucket not in self._buckets:
                    new.add(bucket)
                self._buckets.setdefault(bucket, []).append(conversation)
        self._to_lend.extend(sorted(new))
        self._choose_size()

    def fill_slots(self, workers: int) -> None:
        """Let each worker have enough conversations for all slots of a local model, but not more than its part."""
        self._with_slots = max(1, workers)
        self._choose_size()

    def _choose_size(self) -> None:
        total = sum(map(len, self._buckets.values()))
        if self._with_slots is None:
            self._size = min(_MOST, max(_FEWEST, total // _SHARE))
            return
        self._size = max(1, min(_MOST, total // _SHARE))
        part = min(_FOR_SLOTS, total / self._with_slots)
        self._most_leases = max(self._leases, ceil(part / self._size))

    # Workers

    def join(self, worker: str) -> None:
        """Let a worker take part; a name is used once."""
        self._mail[worker] = Mailbox()
        self._figures.join(worker)
        if self.counts.stopped is not None:
            self._mail[worker].put(StopCalls(self.counts.stopped))

    def is_here(self, worker: str) -> bool:
        """Whether a worker takes part: it has neither ended nor been lost."""
        return worker in self._mail

    @property
    def is_over(self) -> bool:
        """Whether every conversation is over, and no more will come."""
        return not self.expects_more and not self.has_conversations

    @property
    def has_conversations(self) -> bool:
        """Whether conversations are lent or wait to be lent."""
        return bool(self._to_lend or self._lent)

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

    @property
    def waiting(self) -> int:
        """Conversations that wait to be lent."""
        later = sum(map(len, self._later.values()))
        return later + sum(len(self._buckets[bucket]) for bucket in self._to_lend)

    @property
    def figures(self) -> TeamFigures:
        """The figures of all workers that ever took part, as they are now."""
        for figures in self._figures:
            if figures.state == "works":
                own = [lent for lent in self._lent.values() if lent.worker == figures.name]
                figures.leases = len(own)
                figures.in_flight = sum(len(lent.under_way) for lent in own)
        return self._figures

    def packet_for(self, worker: str) -> Packet[OwnerLetter]:
        """What a worker does not know yet, new leases included."""
        mail = self._mail[worker]
        if not self.counts.stopped:
            # One lease for each packet, so that the other workers get theirs before this one gets its second.
            if self._to_lend and sum(lent.worker == worker for lent in self._lent.values()) < self._most_leases:
                mail.put(LeaseGiven(self._lend(worker)))
            if self.is_over and worker not in self._told_end:
                self._told_end.add(worker)
                mail.put(NoMoreLeases())
        return mail.packet()

    def receive(self, worker: str, packet: Packet[WorkerLetter]) -> None:
        """Store and answer what a worker sent; a worker that was lost or has ended is not heard.

        Many tries are stored in a thread; `stored` waits for them.
        """
        if worker not in self._mail:
            self.refused += len(packet.letters)
            return
        self._figures.hear(worker)
        for letter in self._mail[worker].take(packet):
            match letter:
                case LeaveAsked():
                    self._hold(worker, letter)
                case TriesMade():
                    self._store(worker, letter)
                case LeaseReturned():
                    self._await_stored(worker)
                    self._take_back(worker, letter)
                case LineSaid():
                    self.say(letter.line)
                case WorkerEnded():
                    self._await_stored(worker)
                    self._end(worker, letter)
        self._give_leave()

    async def stored(self, worker: str) -> None:
        """Wait until the tries of a worker are durable, and let it use them."""
        while storing := self._storing.get(worker):
            # Cancelling the future would drop tries that the thread has not begun to store.
            await asyncio.shield(asyncio.wrap_future(storing[0].future))
            one = storing.pop(0)
            self._confirm(worker, one.batch, one.tries)
            self._give_leave()

    def lose(self, worker: str) -> int:
        """Lend the conversations of a worker that is certainly gone to others; its calls under way are returned."""
        self._await_stored(worker)
        self._mail.pop(worker, None)
        under_way = self._revoke(
            [lent for lent in self._lent.values() if lent.worker == worker], "lost with its worker"
        )
        self.lost += under_way
        self._figures.end(worker, "lost", under_way=under_way)
        self._give_leave()
        return under_way

    def leave(self) -> None:
        """Take every lease back at once; calls under way count as sent, since providers may bill them."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        for worker in list(self._storing):
            self._await_stored(worker)
        for worker in self._mail:
            self._figures.end(worker, "ended")
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
        for bucket in sorted(lent.lease.buckets):
            del self._buckets[bucket]
            self._made.pop(bucket, None)
            self._failed.pop(bucket, None)
            if later := self._later.pop(bucket, None):
                self._buckets[bucket] = later
                self._to_lend.append(bucket)
        self.returned(lent.lease.conversations)

    def _revoke(self, revoked: Sequence[_Lent], reason: str) -> int:
        """End leases; their conversations are lent again, and their calls under way count as sent."""
        tries = []
        for lent in revoked:
            del self._lent[lent.lease.epoch]
            self._to_lend.extendleft(sorted(lent.lease.buckets, reverse=True))
            for bucket in lent.lease.buckets:
                self._buckets[bucket] += self._later.pop(bucket, ())
            for task in lent.under_way.values():
                problem = CallProblem("passing", reason)
                tries.append(Try(task.request, problem, 0.0, self._charge(task, problem)))
                self._budget.release(task)
        if tries:
            self._journal.record_tries(tries)
        return len(tries)

    def _end(self, worker: str, letter: WorkerEnded) -> None:
        del self._mail[worker]
        self._figures.end(worker, "ended")
        self._revoke([lent for lent in self._lent.values() if lent.worker == worker], "left before its reply")
        if letter.problem is not None:
            self.problem = self.problem or UserError(letter.problem, hint=letter.hint)
            self.stop(StopReason.UNUSABLE_MODEL)

    # Calls

    def _hold(self, worker: str, letter: LeaveAsked) -> None:
        lent = self._lent_to(worker, letter.epoch)
        if lent is None:
            self.refused += len(letter.tasks)
            return
        under_way, buckets = lent.under_way, lent.lease.buckets
        for task in letter.tasks:
            key = task.request.key
            if key in under_way or bucket_of(key.combination) not in buckets:
                self.refused += 1
            elif not self.counts.stopped:
                self._held.append((letter.epoch, task))

    def _give_leave(self) -> None:
        """Allow the calls that the budget allows; the others wait until calls under way cost less than reserved."""
        if not self._held:
            return
        allowed = self._allowed()
        self._note_allowed(task for tasks in allowed.values() for task in tasks)
        for epoch, tasks in allowed.items():
            self._mail[self._lent[epoch].worker].put(LeaveGiven(tuple([task.request.key for task in tasks])))
        if self._held and not self.in_flight:
            self.stop(StopReason.BUDGET)

    def _allowed(self) -> dict[int, list[Task]]:
        """Take the calls that the budget allows from those that wait, and count them as under way; by epoch."""
        held, reserve = self._held, self._budget.reserve
        allowed: dict[int, list[Task]] = {}
        while held:
            epoch, task = held[0]
            lent = self._lent.get(epoch)
            if lent is not None:
                if not reserve(task):
                    break
                lent.under_way[task.request.key] = task
                self.counts.started += 1
                allowed.setdefault(epoch, []).append(task)
            held.popleft()
        return allowed

    def _note_allowed(self, tasks: Iterable[Task]) -> None:
        """If there is a limit, note calls before they are sent, in one transaction."""
        notes = [(task.request, cost) for task in tasks if (cost := self._budget.at_risk(task)) is not None]
        if notes:
            self._notes_calls = True
            with self._journal.transaction():
                for request, cost in notes:
                    self._journal.record_sent(request, cost)

    def _store(self, worker: str, letter: TriesMade) -> None:
        """Store tries in one transaction for each file, then let the worker use them."""
        tries = []
        for one in letter.tries:
            lent = self._lent_to(worker, one.epoch)
            task = lent.under_way.pop(one.key, None) if lent is not None else None
            if task is None:
                self.refused += 1
            else:
                tries.append(self._settled(task, one))
        # With a limit, each call is noted before it is sent, and the notes would wait for the thread's transactions.
        is_small = len(tries) <= self._journal.few and not any(self._storing.values())
        if is_small or self._notes_calls:
            self._journal.record_tries(tries)
            self._confirm(worker, letter.batch, tries)
            return
        if self._thread is None:
            self._thread = self._journal.in_thread()
        storing = _Storing(letter.batch, tries, self._thread.record_tries(tries))
        self._storing.setdefault(worker, []).append(storing)

    def _await_stored(self, worker: str) -> None:
        """Wait for the tries of a worker without giving others a turn: its next letter depends on them."""
        for one in self._storing.pop(worker, ()):
            one.future.result()
            self._confirm(worker, one.batch, one.tries)

    def _confirm(self, worker: str, batch: int, tries: Sequence[Try]) -> None:
        """Count tries that are durable, and let the worker use them."""
        counts = self.counts
        counts.called += len(tries)
        for tried in tries:
            stored = tried.stored
            if stored is None:
                counts.retried += 1
                continue
            key = tried.request.key
            bucket = bucket_of(key.combination)
            self._made[bucket] += 1
            if isinstance(stored, Reply):
                counts.tokens += (stored.input_tokens or 0) + (stored.output_tokens or 0)
                counts.cost_usd += stored.cost_usd or 0.0
            elif not _is_final(stored):
                counts.failed[key] = stored
                self._failed.setdefault(bucket, {})[key] = KnownOutcome(tried.request.content_hash, stored)
        self._figures.store(worker, len(tries))
        if worker in self._mail:
            self._mail[worker].put(TriesStored(batch))

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


def _is_final(outcome: Outcome) -> bool:
    return isinstance(outcome, Reply) or outcome.kind == "final"
