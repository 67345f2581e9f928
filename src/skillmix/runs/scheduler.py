"""Call models. Each outcome is journaled before it is used, and only missing calls are made.

If the key of a task is in the journal, no call is made, and the stored outcome triggers the tasks that depend on it.
Resuming a run therefore means running it again.
"""

import asyncio
import signal
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Final

from skillmix.calls import CallKey, CallProblem, GenerateKey, Model, Outcome, Reply, Request
from skillmix.errors import UserError
from skillmix.hashing import digest
from skillmix.render import plural
from skillmix.runs.budget import Budget, Task
from skillmix.runs.journal import Attempt, JournalWriter

if TYPE_CHECKING:
    from skillmix.runs.batches.batched import Batched

TRIES: Final = 12
FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 60.0
LONGEST_ASKED_WAIT: Final = 600.0
"""The longest wait in seconds that a server can request; a longer requested wait is shortened."""
_FIRST_CALLS: Final = 10
"""A model that refuses this many of its first calls, without ever replying, counts as unusable."""
_ABOUT_THE_PROMPT: Final = ("prompt too long", "prompt filtered", "refusal", "content filter")
"""Reasons for refusals that concern the prompt, so that they do not show that the model is unusable."""
_GATHERING: Final = 0.01
"""Seconds to collect outcomes for a single transaction, which saves a fifth of the CPU time per call."""
_ASK_AGAIN_S: Final = 0.05
"""Seconds to wait before checking a source again that had no task."""
_IN_A_ROW: Final = 64
"""The number of tasks to start before yielding to the event loop, because yielding takes as long as starting one."""


Follow = Callable[[Request, Outcome], Iterable[Task]]
"""Returns the tasks that an outcome triggers: the second turn after the first, and gradings after the second turn."""


class StopReason(Enum):
    """Why a run starts no more calls. The value is the description that users see."""

    BUDGET = "the budget is spent"
    UNUSABLE_MODEL = "a model cannot be used"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    HUNG_UP = "hung up"
    BATCHES = "batches are unfinished"


@dataclass(slots=True)
class CallCounts:
    """Counts of the calls of a step."""

    started: int = 0
    """Calls that were passed to a model."""
    called: int = 0
    found: int = 0
    """Outcomes that were already in the journal."""
    failed: dict[CallKey, CallProblem] = field(default_factory=dict)
    """Calls without an outcome, because they were refused or abandoned after all attempts, with their problems."""
    retried: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    """The cost of this invocation, based on the providers' token counts or else on the worst case."""
    left_out: int = 0
    """Calls skipped because their models were not open."""
    stopped: StopReason | None = None
    """The reason why no more calls were started, if there is one."""


class Retries:
    """Counts the attempts at each call, and determines how long to wait before the next attempt."""

    def __init__(self, *, tries: int | None = None, first_wait: float | None = None) -> None:
        self._most = TRIES if tries is None else tries
        self._first_wait = FIRST_WAIT if first_wait is None else first_wait
        self._tries: dict[CallKey, tuple[int, int]] = {}
        """The numbers of attempts, and of attempts that moved to another server, for each call."""
        self._announced: set[str] = set()

    def wait_after(self, request: Request, problem: CallProblem) -> float | None:
        """Return the seconds to wait before the next attempt; None if the call has used all its attempts.

        If another server can accept the call, the call does not wait, and its later waits do not become longer.
        """
        tries, moves = self._tries.get(request.key, (0, 0))
        tries, moves = tries + 1, moves + problem.may_move
        self._tries[request.key] = tries, moves
        if tries >= self._most:
            return None
        if problem.may_move:
            return 0.0
        waits = tries - moves
        # The wait doubles each time, with a jitter that depends on the key, so that calls are not all retried at once.
        jitter = int.from_bytes(digest("wait", str(request.key), waits, size=2)) / 2**16
        own = min(LONGEST_WAIT, self._first_wait * 2.0 ** (waits - 1)) * (0.5 + jitter)
        return max(own, min(problem.retry_after or 0.0, LONGEST_ASKED_WAIT))

    def announcement(self, request: Request, problem: CallProblem) -> str | None:
        """Return a line for the user when a server first requests a wait above the maximum; None otherwise."""
        asked = problem.retry_after or 0.0
        if asked <= LONGEST_ASKED_WAIT or problem.may_move or request.model in self._announced:
            return None
        self._announced.add(request.model)
        wait = f"requests a wait of {asked:.3g} s ({problem.reason})"
        return f"{request.model} {wait}; it is called again after {LONGEST_ASKED_WAIT:g} s"

    def forget(self, key: CallKey) -> None:
        """Drop the attempt count of a finished call."""
        self._tries.pop(key, None)


class Scheduler:
    """Runs tasks and the tasks that they trigger, with a limit on how many run at a time.

    A model with several names is served once, and its names share one queue.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        journal: JournalWriter,
        *,
        budget: Budget,
        max_open: int = 512,
        batched: "Mapping[str, Batched] | None" = None,
        retries: Retries | None = None,
    ) -> None:
        self._models = models
        self._batched = batched or {}
        self._journal = journal
        self._budget = budget
        self._max_open = max_open
        self._retries = retries or Retries()
        self._queues: dict[str, asyncio.PriorityQueue[_QueueEntry]] = {}
        self._order = count()
        self._open = 0
        self._started: dict[CallKey, float] = {}
        self._tasks: dict[CallKey, Task] = {}
        self._room = asyncio.Event()
        self._held: deque[Task] = deque()
        self._waiting: dict[CallKey, tuple[Task, asyncio.TimerHandle]] = {}
        self._fatal: tuple[Task, CallProblem] | None = None
        self._has_replied: set[str] = set()
        self._first_calls: dict[str, set[CallKey]] = defaultdict(set)
        self._first_refused = Counter[str]()
        self._arrived: list[tuple[Task, Outcome, float]] = []
        """Outcomes that are not in the journal yet, with the seconds that their calls took."""
        self.source_rests = False
        """Whether the source has no task until a call has finished."""
        self._arrival = asyncio.Event()
        self._is_over = False
        self.counts = CallCounts()
        self.say: Callable[[str], None] = lambda line: None
        """Shows a line to the user."""

    async def run(self, source: Iterator[Task | None], follow: Follow, counts: CallCounts | None = None) -> CallCounts:
        """Work until the source is empty and no task is open, or until the run must stop; add to `counts`.

        A None from the source means that it has no task now, so the source is checked again when a call has finished,
        or soon after.
        """
        self.counts = counts or self.counts
        queues: dict[Model, asyncio.PriorityQueue[_QueueEntry]] = {
            m: asyncio.PriorityQueue() for m in self._models.values()
        }
        self._queues = {name: queues[model] for name, model in self._models.items()}
        tasks = [
            *(asyncio.create_task(self._serve(model, queue)) for model, queue in queues.items()),
            asyncio.create_task(self._fill(source, follow)),
            asyncio.create_task(self._settle(follow)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._record_left()
        if self._fatal:
            failed, problem = self._fatal
            raise UserError(
                f"{failed.request.model} cannot be used: {problem.reason}. {problem.detail}".rstrip(),
                hint="Check its name, its URL and the key in the environment; finished calls are kept.",
            )
        return self.counts

    async def _fill(self, source: Iterator[Task | None], follow: Follow) -> None:
        """Start tasks while the limit allows it, and then wait for the open tasks."""
        for index, task in enumerate(source):
            if task is None:
                if self.counts.stopped:
                    break
                self.source_rests = True
                self._room.clear()
                with suppress(TimeoutError):  # the source may also be waiting for work outside the scheduler
                    async with asyncio.timeout(_ASK_AGAIN_S if self._open else _ASK_AGAIN_S / 10):
                        await self._room.wait()
                self.source_rests = False
                continue
            while (self._open >= self._max_open or self._held) and not self.counts.stopped:
                self._room.clear()
                self.source_rests = True
                await self._room.wait()
            self.source_rests = False
            if self.counts.stopped:
                break
            self._submit(task, follow)
            if index % _IN_A_ROW == 0:
                await asyncio.sleep(0)
        self.source_rests = True
        while self._open > 0:
            self._room.clear()
            await self._room.wait()
        for queue in set(self._queues.values()):
            queue.put_nowait((_LAST, next(self._order), None))
        self._is_over = True
        self._arrival.set()

    def _submit(self, task: Task, follow: Follow) -> None:
        """Queue a task whose call must be made. If its outcome is in the journal, start the tasks that depend on it."""
        waiting = deque([task])
        while waiting:
            task = waiting.popleft()
            outcome = self._journal.find(task.request)
            if outcome is not None:
                self.counts.found += 1
                if isinstance(outcome, Reply):
                    self._has_replied.add(task.model)
                waiting.extend(follow(task.request, outcome))
            elif task.model not in self._models:
                self.counts.left_out += 1
            elif not self.counts.stopped:
                self._held.append(task)
        self._start_held()

    def stop(self, reason: StopReason) -> None:
        """Start no more calls, and drop calls that wait for a retry. Calls in flight finish and are journaled."""
        self.counts.stopped = self.counts.stopped or reason
        self._drop_held()
        for queue in set(self._queues.values()):
            for entry in [queue.get_nowait() for _ in range(queue.qsize())]:
                self._forget(entry[-1])
                if entry[-1] is None:
                    queue.put_nowait(entry)  # without an end marker in its queue, the model would wait forever
        for model in self._batched.values():
            model.leave()

    def _drop_held(self) -> None:
        """Drop calls that wait for the budget, and calls that wait for a retry."""
        self._held.clear()
        for task, timer in self._waiting.values():
            timer.cancel()
            self._forget(task)
        self._waiting.clear()
        self._room.set()

    def _forget(self, task: Task | None) -> None:
        if task is not None:
            self._open -= 1
            self._tasks.pop(task.request.key, None)
            self._retries.forget(task.request.key)
            self._room.set()

    @property
    def in_flight(self) -> int:
        """Count unfinished calls."""
        return self._open

    @property
    def awaited(self) -> int:
        """Count unfinished calls, excluding calls in batches."""
        return self._open - sum(model.resting for model in self._batched.values())

    def _start_held(self) -> None:
        """Start the calls that the budget allows. Other calls wait until finished calls cost less than was reserved.

        Later parts of a conversation start first, so that texts are finished early and all models have work.
        """
        while self._held and not self.counts.stopped and self._budget.reserve(self._held[0]):
            task = self._held.popleft()
            key = task.request.key
            self._open += 1
            self.counts.started += 1
            self._tasks[key] = task
            is_first = isinstance(key, GenerateKey) and key.turn <= 1
            self._queues[task.model].put_nowait((_FIRST_TURN if is_first else _LATER, next(self._order), task))
        if self._held and not self._open:
            self.counts.stopped = self.counts.stopped or StopReason.BUDGET
            self._drop_held()

    async def _serve(self, model: Model, queue: "asyncio.PriorityQueue[_QueueEntry]") -> None:
        async for request, outcome in model.serve(self._requests(queue)):
            seconds = time.monotonic() - self._started.pop(request.key)
            if isinstance(outcome, CallProblem) and outcome.kind == "waiting":
                self.counts.stopped = self.counts.stopped or StopReason.BATCHES
                self._forget(self._tasks.get(request.key))
            else:
                self._arrived.append((self._tasks[request.key], outcome, seconds))
                self._arrival.set()

    async def _settle(self, follow: Follow) -> None:
        """Journal the outcomes that have arrived, and then start the tasks that depend on them."""
        while not self._is_over:
            await self._arrival.wait()
            await asyncio.sleep(_GATHERING)
            self._arrival.clear()
            attempts = self._settle_arrived()
            # One transaction for all outcomes costs hardly more than a transaction for a single outcome.
            self._journal.record_attempts(attempts)
            for attempt in attempts:
                self._release(attempt, follow)

    def _settle_arrived(self) -> list[Attempt]:
        """Determine the consequence and the cost of each outcome that has arrived."""
        arrived, self._arrived = self._arrived, []
        return [self._settle_one(*one) for one in arrived]

    def _settle_one(self, task: Task, outcome: Outcome, seconds: float) -> Attempt:
        self.counts.called += 1
        if isinstance(outcome, Reply):
            self._has_replied.add(task.model)
            return Attempt(task.request, outcome, seconds, stored=self._budget.settle(task, outcome))
        if outcome.kind == "final" and not isinstance(task.request.key, GenerateKey):
            outcome = replace(outcome, kind="failed")  # if a grader refuses, only its vote is missing
        attempt = self._charged(task, outcome, seconds)
        # Count refusals among the calls that were sent first, not among those that returned first, because a refusal
        # returns faster than a reply.
        is_refusal = outcome.kind == "failed" and outcome.reason not in _ABOUT_THE_PROMPT
        if is_refusal and task.model not in self._has_replied:
            self._first_refused[task.model] += task.request.key in self._first_calls[task.model]
        refuses_everything = is_refusal and self._first_refused[task.model] == _FIRST_CALLS
        if outcome.kind == "fatal" or refuses_everything:
            self._budget.settle(task, outcome)
            self._forget(task)
            if self._fatal is None:
                self._fatal = task, outcome
                self.stop(StopReason.UNUSABLE_MODEL)
                if self._open:
                    waiting = f"waiting for {plural(self._open, 'call')} in flight"
                    self.say(f"{task.request.model} cannot be used: {outcome.reason}; {waiting}")
            return attempt
        if outcome.kind == "passing" and not self.counts.stopped:
            wait = self._retries.wait_after(task.request, outcome)
            if wait is not None:
                self.counts.retried += 1
                if line := self._retries.announcement(task.request, outcome):
                    self.say(line)
                return attempt._replace(wait=wait)
        return attempt._replace(stored=self._budget.settle(task, outcome))

    def _charged(self, task: Task, problem: CallProblem, seconds: float) -> Attempt:
        """Return an attempt without a reply together with the amount that it may have cost."""
        cost = self._budget.charge(task, problem)
        self.counts.cost_usd += cost or 0.0
        return Attempt(task.request, problem, seconds, cost)

    def _record_left(self) -> None:
        """Record outcomes that arrived before an interruption and calls still in flight. Providers may bill both."""
        attempts = self._settle_arrived()
        for key in list(self._started):
            seconds = time.monotonic() - self._started.pop(key)
            task = self._tasks.get(key)
            if task is not None and not self._is_in_batch(task):
                attempts.append(self._charged(task, CallProblem("passing", "left before its reply"), seconds))
        self._journal.record_attempts(attempts)

    async def _requests(self, queue: "asyncio.PriorityQueue[_QueueEntry]") -> AsyncIterator[Request]:
        while (task := (await queue.get())[-1]) is not None:
            self._started[task.request.key] = time.monotonic()
            first = self._first_calls[task.model]
            if len(first) < _FIRST_CALLS:
                first.add(task.request.key)
            cost = self._budget.at_risk(task)
            if cost is not None and not self._is_in_batch(task):
                self._journal.record_sent(task.request, cost)
            yield task.request

    def _is_in_batch(self, task: Task) -> bool:
        """Whether the model itself records the call in the journal as part of a batch."""
        batched = self._batched.get(task.model)
        return batched is not None and batched.keeps(task.request)

    def _release(self, attempt: Attempt, follow: Follow) -> None:
        """Once an attempt is stored, schedule its retry, or start the tasks that depend on its outcome."""
        key, outcome = attempt.request.key, attempt.stored
        if attempt.wait is not None:
            task = self._tasks[key]

            def try_again() -> None:
                self._waiting.pop(key, None)
                self._budget.release(task)
                self._open -= 1
                self._held.appendleft(task)
                self._start_held()

            if self.counts.stopped:  # the run was stopped while the attempt was written
                self._forget(task)
            else:
                self._waiting[key] = task, asyncio.get_running_loop().call_later(attempt.wait, try_again)
            return
        if outcome is None:
            return  # the model cannot be used
        self._retries.forget(key)
        self._tasks.pop(key, None)
        if isinstance(outcome, Reply):
            self.counts.tokens += (outcome.input_tokens or 0) + (outcome.output_tokens or 0)
            self.counts.cost_usd += outcome.cost_usd or 0.0
        if isinstance(outcome, CallProblem) and outcome.kind != "final":
            self.counts.failed[key] = outcome
        else:
            for one in list(follow(attempt.request, outcome)):
                self._submit(one, follow)
        self._open -= 1
        self._start_held()
        self._room.set()


_QueueEntry = tuple[int, int, Task | None]
"""Priority, order of arrival and task; None marks the end of the queue."""
_LATER, _FIRST_TURN, _LAST = range(3)


_SIGNALS: Final[dict[StopReason, signal.Signals]] = {
    reason: getattr(signal, name)
    for reason, name in (
        (StopReason.INTERRUPTED, "SIGINT"),
        (StopReason.TERMINATED, "SIGTERM"),
        (StopReason.HUNG_UP, "SIGHUP"),
    )
    if hasattr(signal, name)  # Windows has no SIGHUP
}


def signal_of(stopped: StopReason | None) -> int | None:
    """Return the signal that stopped a step; None if the step stopped for another reason or did not stop."""
    return _SIGNALS.get(stopped) if stopped else None


@contextmanager
def stopping_on_interrupt(scheduler: Scheduler) -> Iterator[None]:
    """Stop a scheduler on the first signal, and abandon its calls on the second signal."""
    working = asyncio.current_task()
    is_asked = False

    def stop(reason: StopReason) -> None:
        nonlocal is_asked
        if is_asked and working is not None:
            working.cancel()
            return
        is_asked = True
        scheduler.stop(reason)
        scheduler.say(
            f"\nstopping: waiting for {plural(scheduler.awaited, 'call')} in flight; press Ctrl-C again to abandon them"
        )

    with reacting_to_signals(stop):
        yield


@contextmanager
def reacting_to_signals(react: Callable[[StopReason], None]) -> Iterator[None]:
    """Call a function in the event loop for each signal, so that signals do not interrupt other work.

    Outside the main thread, for example in a notebook's thread, signals are left unchanged.
    """
    loop = asyncio.get_running_loop()
    before = {}
    for reason, number in _SIGNALS.items():
        handler = signal.getsignal(number)
        if number != signal.SIGINT and handler == signal.SIG_IGN:
            continue  # an ignored signal stays ignored, as under nohup
        try:
            loop.add_signal_handler(number, react, reason)
        except (NotImplementedError, RuntimeError, ValueError):
            break
        before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)
