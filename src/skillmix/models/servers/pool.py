"""Many calls at once for a model that answers one at a time, with room that shrinks when the server says so."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from skillmix.calls import CallProblem, Outcome, Request

Answer = Callable[[Request], Awaitable[Outcome]]
_Result = tuple[Request, Outcome]

_OVERLOAD: Final = ("HTTP 429", "HTTP 503", "HTTP 529")
_SMALLEST_WINDOW: Final = 10
CONCURRENCY: Final = 64
"""Calls in flight at once where nobody says otherwise."""


class Pool:
    """Keeps up to `limit` calls in flight; a server that turns many away halves that, good answers raise it again.

    One worker for each place: a wait on the set of all calls in flight would cost time that grows with their number.
    """

    def __init__(self, answer: Answer, *, limit: int) -> None:
        self._answer = answer
        self._limit = limit
        self._answered = self._turned_away = 0
        self.room = limit

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[_Result]:
        """Answer requests, in the order in which the answers come."""
        results: asyncio.Queue[_Result | asyncio.Task[None]] = asyncio.Queue()
        shift = _Shift(requests)
        workers = [asyncio.create_task(self._work(place, shift, results)) for place in range(self._limit)]
        for worker in workers:
            worker.add_done_callback(results.put_nowait)
        try:
            working = len(workers)
            while working:
                result = await results.get()
                if isinstance(result, asyncio.Task):
                    result.result()  # a fault of ours ends the serving
                    working -= 1
                else:
                    yield result
        finally:
            for worker in workers:
                worker.cancel()

    async def _work(self, place: int, shift: "_Shift", results: "asyncio.Queue[_Result | asyncio.Task[None]]") -> None:
        while True:
            while place >= self.room and not shift.is_over:
                await shift.wait_for_change()
            request = await shift.pull()
            if request is None:
                return
            outcome = await self._answer(request)
            self._adapt(outcome, shift)
            results.put_nowait((request, outcome))

    def _adapt(self, outcome: Outcome, shift: "_Shift") -> None:
        """Halve the room when a fifth of a window of calls is turned away, widen it after a window with less.

        A stray 429 is no reason: a server that drops one call in twenty at random would be asked one at a time.
        """
        window = max(_SMALLEST_WINDOW, self.room)
        self._answered += 1
        self._turned_away += isinstance(outcome, CallProblem) and outcome.reason in _OVERLOAD
        if 5 * self._turned_away >= window:
            self.room = max(1, self.room // 2)
        elif self._answered >= window:
            self.room = min(self._limit, self.room + max(1, self.room // 8))
            shift.changed()
        else:
            return
        self._answered = self._turned_away = 0


class _Shift:
    """What the workers of one serving share: the stream, pulled by one at a time, and its end."""

    def __init__(self, requests: AsyncIterator[Request]) -> None:
        self._requests = requests
        self._turn = asyncio.Lock()
        self._change = asyncio.Event()
        self.is_over = False

    async def pull(self) -> Request | None:
        """The next request, or None for ever after the last."""
        async with self._turn:
            if self.is_over:
                return None
            try:
                return await anext(self._requests)
            except StopAsyncIteration:
                self.is_over = True
                self.changed()
                return None

    def changed(self) -> None:
        """Wake the workers that wait for room."""
        self._change.set()

    async def wait_for_change(self) -> None:
        """Sleep until there may be room, or nothing is left to do."""
        self._change.clear()
        await self._change.wait()
