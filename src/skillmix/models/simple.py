"""A base class for providers of models, inside and outside this package."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import ClassVar

from skillmix.calls import CallProblem, Limits, Outcome, Request
from skillmix.models.servers.pool import CONCURRENCY, Pool
from skillmix.models.specs import ModelOptions, ModelSpec


class SimpleModel(ABC):
    """A model that answers one request at a time; a subclass only has to write `answer`.

    The base class keeps up to `concurrency` calls in flight, gives each of them `timeout` seconds, and halves their
    number while many of them are turned away with the reason `HTTP 429`, `HTTP 503` or `HTTP 529`.
    """

    is_free: ClassVar[bool] = False
    """Whether calls cost nothing; if False, their price is unknown unless the price file has it."""
    is_in_process: ClassVar[bool] = False
    """Whether the model takes this machine's memory, so that only one such model may be open at a time."""
    stays_here: ClassVar[bool] = False
    """Whether the model is called in the process of the command even with `--on ray`."""

    def __init__(self, spec: ModelSpec, options: ModelOptions) -> None:
        self.spec = spec
        self.options = options

    @property
    def limits(self) -> Limits:
        """The limits that the class and the experiment file declare."""
        return Limits(in_process=self.is_in_process, in_flight=self.options.concurrency or CONCURRENCY)

    @abstractmethod
    async def answer(self, request: Request) -> Outcome:
        """The reply to one request, or the reason why there is none."""

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests, many at once."""
        return Pool(self._answer_in_time, limit=self.options.concurrency or CONCURRENCY).serve(requests)

    async def _answer_in_time(self, request: Request) -> Outcome:
        limit = asyncio.timeout(self.options.timeout)
        try:
            async with limit:
                return await self.answer(request)
        except TimeoutError:
            if not limit.expired():
                raise
            return CallProblem("passing", "timeout", f"no reply within {self.options.timeout:g} s")

    async def probe(self) -> CallProblem | None:
        """Override this to find a wrong name or a missing key before the first call."""
        return None

    async def close(self) -> None:  # noqa: B027  # most models hold nothing
        """Override this to release connections or memory."""
