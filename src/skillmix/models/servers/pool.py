"""Many calls in flight for a model that answers one request at a time; their number adapts to an overloaded server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from skillmix.calls import CallProblem, Outcome, Request

Answer = Callable[[Request], Awaitable[Outcome]]

_OVERLOAD: Final = ("HTTP 429", "HTTP 503", "HTTP 529")
_SMALLEST_WINDOW: Final = 10
CONCURRENCY: Final = 64
"""Calls in flight if the experiment file does not say."""


class Pool:
    """Keeps up to `limit` calls in flight; `room` is the present number.

    The room is halved when the server turns many calls away, and grows again with good answers.
    """

    def __init__(self, answer: Answer, *, limit: int) -> None:
        self._answer = answer
        self._limit = limit
        self._answered = self._turned_away = 0
        self.room = limit

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests, and yield outcomes in the order of their arrival."""
        done: asyncio.Queue[asyncio.Task[tuple[Request, Outcome] | None]] = asyncio.Queue()
        tasks: set[asyncio.Task[tuple[Request, Outcome] | None]] = set()
        has_room = asyncio.Event()

        async def call(request: Request) -> tuple[Request, Outcome]:
            return request, await self._answer(request)

        async def feed() -> None:
            async for request in requests:
                task = asyncio.create_task(call(request))
                tasks.add(task)
                task.add_done_callback(done.put_nowait)
                while len(tasks) > self.room:  # this one is a task, too
                    has_room.clear()
                    await has_room.wait()

        feeding = asyncio.create_task(feed())
        tasks.add(feeding)
        feeding.add_done_callback(done.put_nowait)
        try:
            while tasks:
                task = await done.get()
                tasks.discard(task)
                if (result := task.result()) is not None:
                    self._note(result[1])
                    has_room.set()
                    yield result
        finally:
            for task in tasks:
                task.cancel()

    def _note(self, outcome: Outcome) -> None:
        """Halve the room when a fifth of a window of calls is turned away; widen it after a better window.

        A single call that is turned away changes nothing: otherwise a server that drops one call in twenty at random
        would end up with one call at a time. A call that another address can take says nothing about the model.
        """
        window = max(_SMALLEST_WINDOW, self.room)
        self._answered += 1
        is_overload = isinstance(outcome, CallProblem) and outcome.reason in _OVERLOAD and not outcome.may_move
        self._turned_away += is_overload
        if 5 * self._turned_away >= window:
            self.room = max(1, self.room // 2)
        elif self._answered >= window:
            self.room = min(self._limit, self.room + max(1, self.room // 8))
        else:
            return
        self._answered = self._turned_away = 0
