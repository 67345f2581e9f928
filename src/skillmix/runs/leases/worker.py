"""A worker: it runs the scheduler over the leases that it has, and keeps nothing that its owner does not have."""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from typing import Final

from skillmix.calls import CallKey, CallProblem, GenerateKey, Model, Outcome, Request
from skillmix.errors import UserError
from skillmix.runs.budget import Task
from skillmix.runs.conversations import Conversations
from skillmix.runs.journal.changed_settings import ways_on
from skillmix.runs.journal.row_writer import Try
from skillmix.runs.leases.lease import (
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
from skillmix.runs.retries import Retries
from skillmix.runs.scheduler import Scheduler, StartCall

_ENOUGH: Final = 256
"""Rows that are answered with at once; fewer rows wait for others, because an exchange costs as much as a dozen."""
_LOOKS: Final = 4
"""Looks at the rows while they gather."""


class _Pace:
    """How long a worker waits before it answers; the owner's time is spent on answers, and slow calls need few."""

    def __init__(self) -> None:
        self._call = 0.1
        """Seconds of a call, with more weight on later ones."""

    def note(self, seconds: float) -> None:
        """Note how long a call took."""
        self._call += 0.05 * (seconds - self._call)

    def gathering(self, *, has_calls_ahead: bool) -> float:
        """Seconds in which rows gather for an answer with few rows.

        If a model has calls with leave that wait for others to end, they last about as long as half a call, and an
        answer that comes a little later delays no call.
        """
        return min(0.25, (0.1 if has_calls_ahead else 0.02) * self._call)

    @property
    def silence(self) -> float:
        """Seconds after which a worker answers though it has no letter: the owner may have one."""
        return min(0.5, max(0.1, 0.25 * self._call))


class OwnersBudget:
    """Lets every call start: the owner's leave decides, and the owner counts costs."""

    def reserve(self, task: Task) -> bool:
        """Always: leave is asked before the call is sent."""
        return True

    def release(self, task: Task) -> None:
        """Do nothing: the owner has released the amount with the try."""

    def at_risk(self, task: Task) -> float | None:
        """None: the owner notes calls that are about to be sent."""
        return None

    def worst(self, task: Task) -> float | None:
        """Only the owner knows prices."""
        return None

    def charge(self, task: Task, problem: CallProblem) -> float | None:
        """None: the owner charges tries."""
        return None

    def settle(self, task: Task, outcome: Outcome) -> Outcome:
        """The outcome itself: the owner adds its cost."""
        return outcome


_WantedTask = tuple[bool, int, Task]
"""Whether it is a first turn, the order of arrival, and the task."""


class _OpenLease:
    """A lease with the number of its tasks that are not over."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.open = len(lease.conversations)
        self.found = 0
        self.left_out = 0


class LeaseWorker:
    """Works on leases until its owner has no more; it is the journal of its scheduler."""

    few: Final = -1
    """No try is stored at once: the owner is elsewhere."""

    def __init__(
        self,
        models: Mapping[str, Model],
        conversations: Conversations,
        *,
        max_open: int,
        leaves: Mapping[str, int] | None = None,
        retries: Retries | None = None,
    ) -> None:
        self._conversations = conversations
        self._mail: Mailbox[WorkerLetter, OwnerLetter] = Mailbox()
        self._scheduler = Scheduler(models, self, budget=OwnersBudget(), max_open=max_open, retries=retries)
        self._scheduler.ask_leave = self._ask_leave
        self._scheduler.over = self._count_over
        self._scheduler.say = self.say
        self._leases: dict[int, _OpenLease] = {}
        self._by_bucket: dict[int, _OpenLease] = {}
        self._to_begin: deque[LentConversation] = deque()
        self._has_all = False
        self._wanted: dict[str, list[_WantedTask]] = {}
        """By model, tasks for which leave will be asked; the first of each heap is asked for first."""
        self._order = count()
        self._most_leaves = leaves or {}
        """By model, the calls that may have leave at once: those that it has in flight, and as many that wait.

        Calls with leave count as sent if this process is lost, so no more have it than keep the model busy.
        """
        self._leaves: Counter[str] = Counter()
        """By model, calls that have leave or have asked for it."""
        self._model_of: dict[CallKey, str] = {}
        """The models of these calls."""
        self._without_leave: dict[CallKey, tuple[Task, StartCall]] = {}
        self._batches: dict[int, Future[None]] = {}
        """Tries on their way to the owner; the scheduler waits for them."""
        self._last_batch = 0
        self._news = asyncio.Event()
        self._pace = _Pace()
        self._rows = 0
        """Calls that the next answer is about, asked for or made."""

    def say(self, line: str) -> None:
        """Let the owner show a line to the user."""
        self._put(LineSaid(line))

    async def run(self) -> None:
        """Work until the owner has no more leases or stops the calls; a problem goes to the owner."""
        try:
            await self._scheduler.run(self._first_turns(), self._conversations.follow)
            self._return_leases()
            self._put(WorkerEnded())
        except UserError as error:
            self._return_leases()
            self._put(WorkerEnded(error.message, error.hint))
        except Exception as error:  # noqa: BLE001  # the owner must hear of it: nobody else can
            self._put(WorkerEnded(f"A worker failed: {type(error).__name__}: {error}"))

    async def exchange(self, packet: Packet[OwnerLetter]) -> Packet[WorkerLetter]:
        """Take the owner's letters, and answer as soon as there is something to say."""
        for letter in self._mail.take(packet):
            self._read(letter)
        if self._scheduler.counts.stopped:
            self._drop_without_leave()
        self._ask_for_wanted()
        if not self._mail.has_letters:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.silence):
                    await self._news.wait()
            self._ask_for_wanted()
        await self._gather()
        self._rows = 0
        return self._mail.packet()

    async def _gather(self) -> None:
        """Let more rows come for an answer that is about few."""
        if not 0 < self._rows < _ENOUGH:
            return
        ahead = any(self._leaves[model] >= 0.75 * most for model, most in self._most_leaves.items())
        seconds = self._pace.gathering(has_calls_ahead=ahead)
        for _ in range(_LOOKS):
            if self._rows < _ENOUGH:
                await asyncio.sleep(seconds / _LOOKS)
                self._ask_for_wanted()

    def _put(self, letter: WorkerLetter) -> None:
        self._mail.put(letter)
        self._news.set()

    def _read(self, letter: OwnerLetter) -> None:
        match letter:
            case LeaseGiven():
                self._begin(letter.lease)
            case LeaveGiven():
                self._start(letter.keys)
            case TriesStored():
                self._confirm(letter.batch)
            case StopCalls():
                self._scheduler.stop(letter.reason)
            case NoMoreLeases():
                self._has_all = True

    def _start(self, keys: Sequence[CallKey]) -> None:
        for key in keys:
            if key in self._without_leave:  # it is not, if the scheduler has stopped meanwhile
                task, start = self._without_leave.pop(key)
                start(task)

    def _drop_without_leave(self) -> None:
        self._wanted.clear()
        for task, start in self._without_leave.values():
            start(task)  # the scheduler has stopped and so forgets the task
        self._without_leave.clear()

    # Leases

    def _begin(self, lease: Lease) -> None:
        opened = self._leases[lease.epoch] = _OpenLease(lease)
        self._by_bucket |= dict.fromkeys(lease.buckets, opened)
        self._to_begin.extend(lease.conversations)

    def _first_turns(self) -> Iterator[Task | None]:
        while not self._has_all or self._to_begin:
            yield self._conversations.first(*self._to_begin.popleft()) if self._to_begin else None

    def _count_over(self, task: Task, released: int | None) -> None:
        """Count a task that is over and those that it released, and return a lease without open tasks."""
        opened = self._by_bucket[bucket_of(task.request.key.combination)]
        opened.open += (released or 0) - 1
        opened.left_out += released is None
        if opened.open == 0:
            self._return(opened)

    def _return(self, opened: _OpenLease) -> None:
        del self._leases[opened.lease.epoch]
        for bucket in opened.lease.buckets:
            del self._by_bucket[bucket]
        self._put(LeaseReturned(opened.lease.epoch, opened.found, opened.left_out))

    def _return_leases(self) -> None:
        for opened in list(self._leases.values()):
            self._return(opened)

    def _ask_leave(self, task: Task, start: StartCall) -> None:
        """Ask for leave as soon as the model has room; later parts of a conversation go first."""
        key = task.request.key
        self._without_leave[key] = task, start
        is_first = isinstance(key, GenerateKey) and key.turn <= 1
        heappush(self._wanted.setdefault(task.model, []), (is_first, next(self._order), task))
        self._news.set()

    def _ask_for_wanted(self) -> None:
        by_epoch: dict[int, list[Task]] = {}
        for model, wanted in self._wanted.items():
            most = self._most_leaves.get(model)
            while wanted and (most is None or self._leaves[model] < most):
                task = heappop(wanted)[-1]
                self._leaves[model] += 1
                self._model_of[task.request.key] = model
                epoch = self._by_bucket[bucket_of(task.request.key.combination)].lease.epoch
                by_epoch.setdefault(epoch, []).append(Task(task.model, task.request.without_subject()))
        for epoch, tasks in by_epoch.items():
            self._rows += len(tasks)
            self._mail.put(LeaveAsked(epoch, tuple(tasks)))

    # The journal of the scheduler

    def find(self, request: Request) -> Outcome | None:
        """The outcome that came with the lease; None if the call must be made."""
        opened = self._by_bucket[bucket_of(request.key.combination)]
        known = opened.lease.known.get(request.key)
        if known is None:
            return None
        if known.request_hash != request.content_hash:
            raise UserError(
                f"The run has the call {request.key} with other settings.",
                hint=ways_on("student" if isinstance(request.key, GenerateKey) else "grader"),
            )
        opened.found += 1
        return known.outcome

    def record_tries(self, tries: Sequence[Try]) -> None:
        """Send tries to the owner without waiting for its answer, because the worker ends."""
        self.send(tries)

    def record_sent(self, request: Request, cost_usd: float) -> None:
        """Do nothing: the owner has noted the call with its leave."""

    def in_thread(self) -> "OwnersThread":
        """The way to the owner."""
        return OwnersThread(self)

    def send(self, tries: Sequence[Try]) -> "Future[None]":
        """Send tries to the owner; they are durable when the future has its result."""
        future: Future[None] = Future()
        if not tries:
            future.set_result(None)
            return future
        self._leaves.subtract(self._model_of.pop(one.request.key) for one in tries)
        self._last_batch += 1
        self._batches[self._last_batch] = future
        self._rows += len(tries)
        for one in tries:
            self._pace.note(one.seconds)
        self._put(TriesMade(self._last_batch, tuple(map(self._lent_try, tries))))
        return future

    def _confirm(self, batch: int) -> None:
        future = self._batches.pop(batch, None)
        if future is not None:
            future.set_result(None)

    def _lent_try(self, one: Try) -> LentTry:
        epoch = self._by_bucket[bucket_of(one.request.key.combination)].lease.epoch
        return LentTry(epoch, one.request.key, one.outcome, one.seconds, one.stored is not None)

    def give_up(self) -> None:
        """Wait for no answer any more: the worker was cancelled."""
        for future in self._batches.values():
            future.cancel()
        self._batches.clear()


class OwnersThread:
    """Sends tries to the owner, in the place of a thread that writes them."""

    def __init__(self, worker: LeaseWorker) -> None:
        self._worker = worker

    def record_tries(self, tries: Sequence[Try]) -> "Future[None]":
        """Send tries; they are durable when the future has its result."""
        return self._worker.send(tries)

    def close(self) -> None:
        """Wait for no answer: the scheduler ends, and has all answers unless it was cancelled."""
        self._worker.give_up()
