"""Base classes for models: one for any provider, here and in other packages, and one for replies computed by code."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import ClassVar

from skillmix.calls import CallProblem, Limits, Model, Outcome, Request
from skillmix.models.servers.pool import CONCURRENCY, Pool
from skillmix.models.specs import ModelOptions, ModelSpec


class SimpleModel(Model):
    """A model that answers one request at a time; a subclass must define only `answer`.

    The base class keeps up to `concurrency` calls in flight, gives each `timeout` seconds, and halves the number of
    calls in flight while many fail with the reason `HTTP 429`, `HTTP 503` or `HTTP 529`.
    """

    is_free: ClassVar[bool] = False
    """Whether calls are free; if not, their price is unknown unless the price file has it."""
    is_in_process: ClassVar[bool] = False
    """Whether the model uses this machine's memory; only one such model is open at a time."""
    stays_here: ClassVar[bool] = False
    """Whether the model runs in the process of the command even with `--on ray`."""

    def __init__(self, spec: ModelSpec, options: ModelOptions) -> None:
        self.spec = spec
        self.options = options

    @property
    def limits(self) -> Limits:
        """The limits that the class and the experiment file declare."""
        return Limits(in_process=self.is_in_process, in_flight=self.options.concurrency or CONCURRENCY)

    @abstractmethod
    async def answer(self, request: Request) -> Outcome:
        """Return the reply to one request, or the reason why there is none."""

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer many requests at once."""
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


class CodeModel(Model):
    """A model whose replies are computed by code; a subclass must define only `answer`."""

    @abstractmethod
    def answer(self, request: Request) -> Outcome:
        """Return the reply to one request."""

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests in order."""
        async for request in requests:
            yield request, self.answer(request)
