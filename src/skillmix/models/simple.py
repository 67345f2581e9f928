"""Base classes for models, and a baseline for tuned students.

`SimpleModel` is for providers in other packages, and `CodeModel` for replies computed by code. `JoinedModel` prompts a
model for each skill separately and joins the texts. `Pool` keeps many calls in flight, but fewer with an overloaded
server.
"""

import re
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import ClassVar, Final

from skillmix.calls import CallKey, CallProblem, GenerateKey, Limits, Model, Outcome, Reply, Request, was_cut
from skillmix.catalog.combinations import single_skills
from skillmix.hashing import seed_of
from skillmix.models.specs import ModelOptions, ModelSpec

_OVERLOAD: Final = ("HTTP 429", "HTTP 503", "HTTP 529")
CONCURRENCY: Final = 64
"""The default limit of calls in flight; an experiment file can set another limit."""


class Pool:
    """Keeps up to `room` calls in flight: at most `limit`, and fewer while the server rejects many calls."""

    def __init__(self, answer: Callable[[Request], Awaitable[Outcome]], *, limit: int) -> None:
        self._answer = answer
        self._limit = limit
        self._answered = self._turned_away = 0
        self.room = limit

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests, and yield outcomes as they arrive."""
        import asyncio  # slow to import, and not needed to check a model's name

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
                while len(tasks) > self.room:  # this coroutine is one of the tasks
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
        """Halve the room if a fifth of the calls in a window are rejected; increase it after a better window.

        A single rejection has no effect; otherwise, a server that drops one call in twenty at random would end up with
        one call at a time. Calls that another server can answer are not counted.
        """
        window = max(10, self.room)
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


class SimpleModel(Model):
    """A model that answers one request at a time; a subclass must define only `answer`.

    The base class keeps up to `concurrency` calls in flight, limits each call to `timeout` seconds, and halves the
    number of calls in flight while many fail with the reason `HTTP 429`, `HTTP 503` or `HTTP 529`.
    """

    is_free: ClassVar[bool] = False
    """Whether calls are free; otherwise, their price is unknown unless the price file contains it."""
    is_in_process: ClassVar[bool] = False
    """Whether the model's weights are in this process; only one such model is open at a time."""
    stays_here: ClassVar[bool] = False
    """Whether the model runs in the command's process even with `--on ray`."""

    def __init__(self, spec: ModelSpec, options: ModelOptions) -> None:
        self.spec = spec
        self.options = options

    @property
    def limits(self) -> Limits:
        """The limits declared by the class and the experiment file."""
        return Limits(in_process=self.is_in_process, in_flight=self.options.concurrency or CONCURRENCY)

    @abstractmethod
    async def answer(self, request: Request) -> Outcome:
        """Return the reply to a request, or the problem."""

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests concurrently, and yield outcomes as they arrive."""
        import asyncio

        async def answer_in_time(request: Request) -> Outcome:
            limit = asyncio.timeout(self.options.timeout)
            try:
                async with limit:
                    return await self.answer(request)
            except TimeoutError:
                if not limit.expired():
                    raise
                return CallProblem("passing", "timeout", f"no reply within {self.options.timeout:g} s")

        return Pool(answer_in_time, limit=self.options.concurrency or CONCURRENCY).serve(requests)


class CodeModel(Model):
    """A model whose replies are computed by code; a subclass must define only `answer`."""

    @abstractmethod
    def answer(self, request: Request) -> Outcome:
        """Return the reply to a request."""

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests one after the other."""
        async for request in requests:
            yield request, self.answer(request)


_FULL_STOP: Final = re.compile(r"\.(?=[\"'”’]?$)")  # the final period of a text, even before a closing quotation mark


class JoinedModel:
    """Sends each of a request's final prompts as a separate request, and joins the replies."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def limits(self) -> Limits:
        """The limits of the underlying model."""
        return self._model.limits

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Split each request into one per skill, and yield the joined outcome once all parts have outcomes."""
        waiting: dict[CallKey, tuple[Request, int, dict[int, Outcome]]] = {}

        async def parts() -> AsyncIterator[Request]:
            async for request in requests:
                before, prompts = request.messages[: -request.prompts], request.messages[-request.prompts :]
                key, subject = request.key, request.subject
                assert isinstance(key, GenerateKey) and subject  # a student's request that was made from a combination
                outcomes: dict[int, Outcome] = {}
                skills = single_skills(subject.combination)
                for number, (prompt, skill) in enumerate(zip(prompts, skills, strict=True), 1):
                    # A local model keeps the turns of a conversation together, so each part needs its own combination.
                    part = replace(
                        request,
                        key=replace(key, combination=f"{key.combination}.{number}"),
                        messages=(*before, prompt),
                        seed=None if request.seed is None else seed_of(request.seed, "joined", number),
                        subject=replace(subject, combination=skill),
                    )
                    waiting[part.key] = request, number, outcomes
                    yield part

        async for part, outcome in self._model.serve(parts()):
            request, number, outcomes = waiting.pop(part.key)
            outcomes[number] = outcome
            if len(outcomes) == request.prompts:
                yield request, _joined([outcomes[number] for number in sorted(outcomes)])

    async def probe(self) -> CallProblem | None:
        """Check that the underlying model can be called."""
        return await self._model.probe()

    async def close(self) -> None:
        """Close the underlying model."""
        await self._model.close()


def _joined(outcomes: list[Outcome]) -> Outcome:
    """Join the texts of all parts, or return the first problem, which is free only if all parts are free."""
    problems = [outcome for outcome in outcomes if isinstance(outcome, CallProblem)]
    replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
    if problems:
        return replace(problems[0], tokens=(None, None), is_free=not replies and all(p.is_free for p in problems))
    texts = [reply.text.strip() for reply in replies if reply.text.strip()]
    counts = [reply.input_tokens for reply in replies], [reply.output_tokens for reply in replies]
    read, written = (None if None in own else sum(filter(None, own)) for own in counts)
    text = "; ".join([*(_FULL_STOP.sub("", text) for text in texts[:-1]), *texts[-1:]])
    finish = next((reply.finish for reply in replies if was_cut(reply.finish)), replies[0].finish)
    return replace(replies[0], text=text, finish=finish, input_tokens=read, output_tokens=written)
