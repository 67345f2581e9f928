"""Making calls: each outcome is journaled before it is used, and only what is missing is asked.

A task whose key is in the journal is not called; its stored outcome releases what depends on it just the same, so
resuming is running again.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, NamedTuple, Protocol

from skillmix.core.calls import CallKey, CallProblem, GenerateKey, Model, Outcome, Reply, Request
from skillmix.core.errors import UserError
from skillmix.core.hashing import digest
from skillmix.core.prices import Price
from skillmix.engine.journal import JournalWriter

TRIES: Final = 12
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 60.0
_GATHERING: Final = 0.01
"""Seconds in which outcomes gather for one transaction; that takes a fifth off the CPU time of a call."""


class Task(NamedTuple):
    """A request for one of the models by name."""

    model: str
    request: Request


Follow = Callable[[Request, Outcome], Iterable[Task]]
"""What an outcome releases: the second turn after the first, gradings after the second."""


class Purse(Protocol):
    """Decides whether a call may start, and learns what it cost."""

    def may_start(self, task: Task) -> bool:
        """Whether the limit holds even if all calls in flight and this one cost their worst."""
        ...

    def may_repeat(self) -> bool:
        """Whether one more try of a call in flight is within the limit."""
        ...

    def settle(self, task: Task, outcome: Outcome) -> Outcome:
        """The outcome with its price, now that the call is over."""
        ...


@dataclass(slots=True)
class Tally:
    """How a run is going."""

    started: int = 0
    """Calls that were given to a model."""
    called: int = 0
    found: int = 0
    """Outcomes that the journal already had."""
    failed: dict[CallKey, str] = field(default_factory=dict)
    """Calls given up after all tries, and why."""
    retried: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    """Of this invocation, as far as providers say."""
    left_out: int = 0
    """Calls to models that were not open, and so not made."""
    stopped: str | None = None
    """Why no more calls were started, if so."""


class Scheduler:
    """Runs tasks and what follows from them, with a bounded number open at a time.

    A model may go by several names; it is served once, and they share its queue.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        journal: JournalWriter,
        *,
        purse: Purse,
        most_open: int = 512,
        tries: int = TRIES,
        first_wait: float | None = None,
    ) -> None:
        self._models = models
        self._journal = journal
        self._purse = purse
        self._most_open = most_open
        self._tries = tries
        self._first_wait = _FIRST_WAIT if first_wait is None else first_wait
        self._queues: dict[str, asyncio.PriorityQueue[_Place]] = {}
        self._places = count()
        self._open = 0
        self._attempts: dict[CallKey, int] = {}
        self._started: dict[CallKey, float] = {}
        self._tasks: dict[CallKey, Task] = {}
        self._room = asyncio.Event()
        self._held: deque[Task] = deque()
        self._arrived: list[_Arrival] = []
        self._arrival = asyncio.Event()
        self._is_over = False
        self.tally = Tally()

    async def run(self, source: Iterator[Task | None], follow: Follow) -> Tally:
        """Work until the source is empty and nothing is open, or the run must stop.

        A None in the source waits for everything before it to be over, so that what comes next can depend on it.
        """
        queues: dict[Model, asyncio.PriorityQueue[_Place]] = {m: asyncio.PriorityQueue() for m in self._models.values()}
        self._queues = {name: queues[model] for name, model in self._models.items()}
        tasks = [asyncio.create_task(self._serve(model, queue)) for model, queue in queues.items()]
        tasks += [asyncio.create_task(self._fill(source, follow)), asyncio.create_task(self._settle(follow))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._journal_arrived()  # what came before an interruption is paid for
        return self.tally

    async def _fill(self, source: Iterator[Task | None], follow: Follow) -> None:
        """Start tasks while there is room, then wait for the open ones."""
        for task in source:
            if task is None:
                await self._all_over()
                if self.tally.stopped:
                    break
                continue
            while (self._open >= self._most_open or self._held) and not self.tally.stopped:
                self._room.clear()
                await self._room.wait()
            if self.tally.stopped:
                break
            self._submit(task, follow)
            await asyncio.sleep(0)
        await self._all_over()
        for queue in set(self._queues.values()):
            queue.put_nowait((_LAST, next(self._places), None))
        self._is_over = True
        self._arrival.set()

    async def _all_over(self) -> None:
        while self._open:
            self._room.clear()
            await self._room.wait()

    def _submit(self, task: Task, follow: Follow) -> None:
        """Queue what must be called; walk through what the journal has."""
        waiting = deque([task])
        while waiting:
            task = waiting.popleft()
            outcome = self._journal.find(task.request)
            if outcome is not None:
                self.tally.found += 1
                waiting.extend(follow(task.request, outcome))
            elif task.model not in self._models:
                self.tally.left_out += 1
            elif not self.tally.stopped:
                self._held.append(task)
        self._start_held()

    def stop(self, reason: str) -> None:
        """Start no more calls; those in flight are waited for and journaled."""
        self.tally.stopped = self.tally.stopped or reason
        self._held.clear()
        for queue in self._queues.values():
            while not queue.empty():
                self._forget(queue.get_nowait()[-1])

    def _forget(self, task: Task | None) -> None:
        if task is not None:
            self._open -= 1
            self._tasks.pop(task.request.key, None)
            self._room.set()

    @property
    def in_flight(self) -> int:
        """Calls that are not over."""
        return self._open

    def _start_held(self) -> None:
        """Start what the purse allows; what it does not must wait for calls in flight to cost less than their worst."""
        while self._held and self._purse.may_start(self._held[0]):
            task = self._held.popleft()
            self._open += 1
            self.tally.started += 1
            self._tasks[task.request.key] = task
            self._queue(task)
        if self._held and not self._open:
            self.tally.stopped = "the budget is spent"
            self._held.clear()

    def _queue(self, task: Task) -> None:
        """Later parts of a conversation go first: finished texts early, and work for all models at all times."""
        if self.tally.stopped:
            return self._forget(task)
        key = task.request.key
        is_first = isinstance(key, GenerateKey) and key.turn == 1
        self._queues[task.model].put_nowait((_FIRST_TURN if is_first else _LATER, next(self._places), task))

    async def _serve(self, model: Model, queue: "asyncio.PriorityQueue[_Place]") -> None:
        async for request, outcome in model.serve(self._requests(queue)):
            seconds = time.monotonic() - self._started.pop(request.key)
            self._arrived.append(_Arrival(self._tasks[request.key], outcome, seconds))
            self._arrival.set()

    async def _settle(self, follow: Follow) -> None:
        """Journal what has arrived, then release what depends on it."""
        while not self._is_over:
            await self._arrival.wait()
            await asyncio.sleep(_GATHERING)
            self._arrival.clear()
            for arrival in self._journal_arrived():
                self._release(arrival, follow)

    def _journal_arrived(self) -> list["_Arrival"]:
        """What is settled now, and written; one transaction for all costs hardly more than for one."""
        arrived, self._arrived = self._arrived, []
        settled: list[_Arrival] = []
        fatal: tuple[Task, CallProblem] | None = None
        with self._journal.transaction():
            for task, outcome, seconds in arrived:
                self.tally.called += 1
                self._journal.record_try(task.request, outcome, seconds)
                if isinstance(outcome, CallProblem) and outcome.kind == "fatal":
                    fatal = fatal or (task, outcome)
                elif not (isinstance(outcome, CallProblem) and self._tries_again(task, outcome)):
                    priced = self._purse.settle(task, outcome)
                    self._journal.record(task.request, priced)
                    settled.append(_Arrival(task, priced, seconds))
        if fatal:
            raise _unusable(*fatal)
        return settled

    async def _requests(self, queue: "asyncio.PriorityQueue[_Place]") -> AsyncIterator[Request]:
        while (task := (await queue.get())[-1]) is not None:
            self._started[task.request.key] = time.monotonic()
            yield task.request

    def _tries_again(self, task: Task, problem: CallProblem) -> bool:
        if problem.kind != "passing":
            return False
        key = task.request.key
        attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        if attempt >= self._tries or self.tally.stopped:
            return False
        if not self._purse.may_repeat():
            self.tally.stopped = "the budget is spent"
            return False
        self.tally.retried += 1
        wait = max(self._wait(key, attempt), problem.retry_after or 0.0)
        asyncio.get_running_loop().call_later(wait, self._queue, task)
        return True

    def _wait(self, key: CallKey, attempt: int) -> float:
        """Doubling, with jitter that is a function of the key, so that a crowd does not return together."""
        jitter = int.from_bytes(digest("wait", str(key), attempt, size=2)) / 2**16
        doubled = self._first_wait * float(2 ** (attempt - 1))
        return min(_LONGEST_WAIT, doubled) * (0.5 + jitter)

    def _release(self, arrival: "_Arrival", follow: Follow) -> None:
        task, outcome, _ = arrival
        key = task.request.key
        self._attempts.pop(key, None)
        self._tasks.pop(key, None)
        if isinstance(outcome, Reply):
            self.tally.tokens += (outcome.input_tokens or 0) + (outcome.output_tokens or 0)
            self.tally.cost_usd += outcome.cost_usd or 0.0
        if isinstance(outcome, CallProblem) and outcome.kind == "passing":
            self.tally.failed[key] = outcome.reason
        else:
            for released in follow(task.request, outcome):
                self._submit(released, follow)
        self._open -= 1
        self._start_held()
        self._room.set()


_Place = tuple[int, int, Task | None]
"""How urgent, which came first, and what; None is the end of the queue."""
_LATER, _FIRST_TURN, _LAST = range(3)


class _Arrival(NamedTuple):
    """An outcome on its way into the journal."""

    task: Task
    outcome: Outcome
    seconds: float


def _unusable(task: Task, problem: CallProblem) -> UserError:
    return UserError(
        f"{task.request.model} cannot be used: {problem.reason}. {problem.detail}".rstrip(),
        hint="Check its name, its address and the key in the environment; what is done is kept.",
    )


class LimitedPurse:
    """Holds a run to its budget over all its resumes."""

    def __init__(
        self,
        prices: Mapping[str, Price | None],
        *,
        spent: tuple[int, float],
        max_calls: int | None,
        max_usd: float | None,
    ) -> None:
        self._prices = prices
        self.calls, self.usd = spent
        self._max_calls = max_calls
        self._max_usd = max_usd
        self._flying: dict[CallKey, float] = {}

    def may_start(self, task: Task) -> bool:
        """Whether the limits hold even if all calls in flight and this one cost their worst."""
        price = self._prices[task.model]
        worst = price.worst(task.request) if price else 0.0
        committed = self.usd + sum(self._flying.values()) + worst
        if (self._max_usd is not None and committed > self._max_usd) or not self.may_repeat():
            return False
        self._flying[task.request.key] = worst
        return True

    def may_repeat(self) -> bool:
        """A try is a call whatever comes of it; its worst case is held back already."""
        if self._max_calls is not None and self.calls + 1 > self._max_calls:
            return False
        self.calls += 1
        return True

    def settle(self, task: Task, outcome: Outcome) -> Outcome:
        """The outcome with its price; tokens that nobody counted cost what they could have."""
        worst = self._flying.pop(task.request.key, 0.0)
        price = self._prices[task.model]
        if not isinstance(outcome, Reply) or price is None:
            return outcome
        counted = outcome.input_tokens is not None and outcome.output_tokens is not None
        cost = price.of(outcome.input_tokens or 0, outcome.output_tokens or 0) if counted else worst
        self.usd += cost
        return replace(outcome, cost_usd=cost)
