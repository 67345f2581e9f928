"""Many calls in flight for a model that answers one request at a time; their number adapts to an overloaded server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Final

from skillmix.calls import CallProblem, Outcome, Request

Answer = Callable[[Request], Awaitable[Outcome]]
_Result = tuple[Request, Outcome]

_OVERLOAD: Final = ("HTTP 429", "HTTP 503", "HTTP 529")
_SMALLEST_WINDOW: Final = 10
CONCURRENCY: Final = 64
"""Calls in flight if the experiment file does not say."""


class Room:
    """How many calls may be in flight: `limit` at most, and fewer while the server turns many of them away."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._answered = self._turned_away = 0
        self.size = limit

    def note(self, *, is_turned_away: bool) -> bool:
        """Halve the room when a fifth of a window of calls is turned away; widen it after a better window.

        True if there may be more room now. A single call that is turned away changes nothing: otherwise a server that
        drops one call in twenty at random would end up with one call at a time.
        """
        window = max(_SMALLEST_WINDOW, self.size)
        self._answered += 1
        self._turned_away += is_turned_away
        is_wider = False
        if 5 * self._turned_away >= window:
            self.size = max(1, self.size // 2)
        elif self._answered >= window:
            self.size = min(self._limit, self.size + max(1, self.size // 8))
            is_wider = True
        else:
            return False
        self._answered = self._turned_away = 0
        return is_wider


class Results(asyncio.Queue[_Result | asyncio.Task[None]]):
    """Outcomes that wait to be yielded, and the workers that have ended."""


async def results_of(working: Sequence[Coroutine[None, None, None]], results: Results) -> AsyncIterator[_Result]:
    """Yield what workers put into a queue until all of them have ended; an exception in one ends them all."""
    workers = [asyncio.create_task(one) for one in working]
    for worker in workers:
        worker.add_done_callback(results.put_nowait)
    try:
        left = len(workers)
        while left:
            result = await results.get()
            if isinstance(result, asyncio.Task):
                result.result()
                left -= 1
            else:
                yield result
    finally:
        for worker in workers:
            worker.cancel()


class Pool:
    """Keeps up to `limit` calls in flight; `room` is the present number.

    The room is halved when the server turns many calls away, and grows again with good answers. There is one worker per
    slot; `asyncio.wait` over all calls in flight would cost O(n) per reply.
    """

    def __init__(self, answer: Answer, *, limit: int) -> None:
        self._answer = answer
        self._limit = limit
        self._room = Room(limit)

    @property
    def room(self) -> int:
        """The present number of calls in flight."""
        return self._room.size

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[_Result]:
        """Answer requests, and yield outcomes in the order of their arrival."""
        results = Results()
        stream = _SharedStream(requests)
        return results_of([self._work(slot, stream, results) for slot in range(self._limit)], results)

    async def _work(self, slot: int, stream: "_SharedStream", results: Results) -> None:
        while True:
            while slot >= self._room.size and not stream.is_over:
                await stream.wait_for_change()
            request = await stream.pull()
            if request is None:
                return
            outcome = await self._answer(request)
            # A call that another address can take says nothing about the model as a whole.
            is_overload = isinstance(outcome, CallProblem) and outcome.reason in _OVERLOAD and not outcome.may_move
            if self._room.note(is_turned_away=is_overload):
                stream.wake()
            results.put_nowait((request, outcome))


class _SharedStream:
    """A stream of requests that several workers pull from, one at a time."""

    def __init__(self, requests: AsyncIterator[Request]) -> None:
        self._requests = requests
        self._turn = asyncio.Lock()
        self._change = asyncio.Event()
        self.is_over = False

    async def pull(self) -> Request | None:
        """The next request; None after the last one."""
        async with self._turn:
            if self.is_over:
                return None
            try:
                return await anext(self._requests)
            except StopAsyncIteration:
                self.is_over = True
                self.wake()
                return None

    def wake(self) -> None:
        """Wake the workers that wait for room."""
        self._change.set()

    async def wait_for_change(self) -> None:
        """Sleep until there may be room, or the stream is over."""
        self._change.clear()
        await self._change.wait()
