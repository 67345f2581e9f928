"""`local:PATH` and `bundled:NAME`: a model that works in a thread of this process, or in a process of its own."""

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

from skillmix.calls import CallProblem, Limits, Message, Outcome, Request
from skillmix.models.checkpoints import checkpoint_of
from skillmix.models.local.apart.model_process import RemoteWork
from skillmix.models.local.gpu_share import gpu_memory
from skillmix.models.local.importing import before_torch
from skillmix.models.local.resident import MODELS
from skillmix.models.specs import ModelOptions, ModelSpec, require_packages

if TYPE_CHECKING:
    from skillmix.models.local.generator import Generator

_CPU_SLOTS: Final = (8, 32)
"""Conversations at once on a CPU, at least and at most; more make better use of it, and take more memory."""
_CPU_CACHE_BYTES: Final = 2 << 30
_SHARE_OF_MEMORY: Final = 0.6
_MAX_SLOTS: Final = 2048
_TYPICAL_LENGTH: Final = 1024
_QUICKLY_HASHED: Final = 2 << 30
"""Bytes of weights that a probe hashes; the hash of a larger model is checked when it is loaded."""

_SOON: Final = 1.0
"""Seconds in which the first requests arrive; a model with free slots after that is running out of requests."""

_TURN: Final = 0.0002
"""Seconds after which another thread of the process may go on."""

_Result = tuple[Request, Outcome]


class _Results:
    """Items on their way from the model's thread to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: deque[_Result | BaseException | None] = deque()
        self.waiting: asyncio.Queue[_Result | BaseException | None] = asyncio.Queue()

    def put(self, item: "_Result | BaseException | None") -> None:
        """Hand over an item; one wake-up of the loop serves all items until the loop takes them."""
        self._ready.append(item)
        if len(self._ready) == 1:
            with suppress(RuntimeError):  # the loop is closed, and no one waits for the item
                self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        while self._ready:
            self.waiting.put_nowait(self._ready.popleft())


class _Work(Protocol):
    """A model that answers requests somewhere."""

    def add(self, request: Request) -> None: ...

    def end(self) -> None: ...

    def stop(self) -> None: ...

    def join(self) -> None: ...


class _ThreadWork:
    """A model that answers requests in a thread of this process."""

    def __init__(self, model: "LocalModel", put: Any) -> None:
        self._incoming: SimpleQueue[Request] = SimpleQueue()
        self._is_over = threading.Event()
        self.stop, self.end, self.add = model.stop, self._is_over.set, self._incoming.put
        self._thread = threading.Thread(target=model.work, args=(self._incoming, self._is_over, put), daemon=True)
        self.join = self._thread.join
        self._thread.start()


class LocalModel:
    """Loads the checkpoint at the first request, and batches all requests that wait."""

    def __init__(self, spec: ModelSpec, options: ModelOptions) -> None:
        self._spec = spec
        self._concurrency = options.concurrency
        self._slots = options.concurrency
        self._stop = threading.Event()
        self._work: _Work | None = None
        self._remote: RemoteWork | None = None

    @property
    def limits(self) -> Limits:
        """The number of conversations at once is known when the model is loaded, if the device decides it."""
        slots = self._slots if self._remote is None else self._remote.slots or self._slots
        return Limits(in_process=True, in_flight=slots)

    async def probe(self) -> CallProblem | None:
        """Check that the checkpoint and its adapters exist and belong together; fetch a bundled model."""
        await asyncio.to_thread(_check_checkpoint, self._spec)
        return None

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[_Result]:
        """Answer requests, and yield outcomes in the order in which rows end."""
        results = _Results(asyncio.get_running_loop())
        work = self._work = self._opened(results.put)

        async def feed() -> None:
            async for request in requests:
                work.add(request)
            work.end()

        feeding = asyncio.create_task(feed())
        try:
            while (item := await results.waiting.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            work.stop()
            feeding.cancel()

    def _opened(self, put: Any) -> _Work:
        process = MODELS.process()
        if process is None:
            return _ThreadWork(self, put)
        self._remote = process.open(self._spec, self._concurrency, put)
        return self._remote

    async def close(self) -> None:
        """Wait for the end of the present round; the memory is free unless a run keeps it for the next model."""
        self.stop()
        if self._work is not None:
            self._work.stop()
            await asyncio.to_thread(self._work.join)
            self._work = None

    def stop(self) -> None:
        """End the work after the present round."""
        self._stop.set()

    def work(self, incoming: "SimpleQueue[Request]", is_over: threading.Event, put: Any) -> None:
        """Answer requests in this thread until there are no more."""
        try:
            first = _wait_for_one(incoming, is_over, self._stop)
            if first is not None:
                self._generate(first, incoming, is_over, put)
        except BaseException as error:  # noqa: BLE001  # `serve` raises it
            put(error)
        finally:
            put(None)

    def _generate(self, first: Request, incoming: "SimpleQueue[Request]", is_over: threading.Event, put: Any) -> None:
        def done(request: Request, outcome: Outcome) -> None:
            put((request, outcome))

        with MODELS.borrowed(self._spec) as resident:
            generator = resident.generator_with(self._concurrency, slots_for, done=done)
            self._slots = resident.slots
            generator.add([first])
            with _quick_turns():
                self._answer(generator, incoming, is_over)

    def _answer(self, generator: "Generator", incoming: "SimpleQueue[Request]", is_over: threading.Event) -> None:
        begun = time.monotonic()
        while not self._stop.is_set():
            if generator.is_running_out and time.monotonic() - begun > _SOON:
                MODELS.read_announced()
            new = _all_of(incoming)
            if new:
                generator.add(new)
            if not generator.is_idle:
                generator.work()
                continue
            request = _wait_for_one(incoming, is_over, self._stop)
            if request is None:
                return
            generator.add([request])


@contextmanager
def _quick_turns() -> Iterator[None]:
    """Let threads take turns often.

    The model's thread releases the interpreter's lock at every launch. With Python's default of 5 ms, each launch could
    then wait 5 ms for the event loop, and a GPU would do nothing in most of that time.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _TURN))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def check_chat_template(spec: ModelSpec, system: str | None, extra: str | None) -> None:
    """Render a conversation with a system text and template options, and raise an error if the template cannot."""
    await asyncio.to_thread(_render_once, spec, system, extra)


def _render_once(spec: ModelSpec, system: str | None, extra: str | None) -> None:
    require_packages(spec)
    before_torch()
    from skillmix.models.local.chat import Renderer
    from skillmix.models.local.loading import read_tokenizer

    turns = (Message("user", "First."), Message("assistant", "Reply."), Message("user", "Second."))
    conversation = turns if system is None else (Message("system", system), *turns)
    Renderer(read_tokenizer(checkpoint_of(spec))[0], name=str(spec)).tokens([conversation], [extra])


def slots_for(model: Any) -> int:
    """The number of conversations at once: on a GPU as many as fit into its memory, on a CPU a few."""
    from skillmix.models.local.kv_cache import CacheShape

    bytes_per_slot = CacheShape(model).bytes_per_token * _TYPICAL_LENGTH
    if model.device.type != "cuda":
        least, most = _CPU_SLOTS
        return max(least, min(most, _CPU_CACHE_BYTES // bytes_per_slot))
    free, _ = gpu_memory()
    return max(1, min(_MAX_SLOTS, int(_SHARE_OF_MEMORY * free / bytes_per_slot)))


def _wait_for_one(incoming: "SimpleQueue[Request]", is_over: threading.Event, stop: threading.Event) -> Request | None:
    """The next request; None after the last one."""
    while not stop.is_set():
        was_over = is_over.is_set()
        try:
            return incoming.get(timeout=0.02)
        except Empty:
            if was_over:
                return None
    return None


def _all_of(incoming: "SimpleQueue[Request]") -> list[Request]:
    requests = []
    with suppress(Empty):
        while True:
            requests.append(incoming.get_nowait())
    return requests


def _check_checkpoint(spec: ModelSpec) -> None:
    checkpoint = checkpoint_of(spec)
    if checkpoint.bytes() <= _QUICKLY_HASHED:
        checkpoint.check_adapters()
