"""`local:PATH` and `bundled:NAME`: a model that runs in a thread of this process, or in a second process on a GPU.

On a GPU, a model needs the Python interpreter for a third of a millisecond per call, and a run's event loop, journal
and verdicts need it for as long; within one process, they would have to take turns. The two processes send each other
lists of messages over a connection that closes when either process ends. A message is a tuple that begins with a word:

    to the model    ("open", work, spec, concurrency), ("ask", work, request), ("end", work), ("stop", work), ("drop",)
    to the command  ("answer", work, key, outcome, slots), ("error", work, error), ("over", work), ("dropped",)

The second process runs `serve_command`.
"""

import asyncio
import gc
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from skillmix.calls import CallKey, CallProblem, Limits, Message, Outcome, Request
from skillmix.errors import UserError
from skillmix.models.checkpoints import FileStates, checkpoint_of, parameters_in
from skillmix.models.specs import ModelOptions, ModelSpec, require_packages

if TYPE_CHECKING:
    from skillmix.models.local.generator import BatchedGenerator, Generator

_QUICKLY_HASHED: Final = 2 << 30
"""The most bytes of weights that a probe hashes; a larger model's hash is checked when the model is loaded."""
_LARGE: Final = 1_000_000_000
"""Models with at least this many weights run faster on a GPU with vLLM."""
_TURN: Final = 0.0002
"""The most seconds for which a thread may hold the interpreter while another thread waits."""
_Item = tuple[Request, Outcome] | BaseException | None
"""An outcome, an error that ends the work, or None after the last item."""
Put = Callable[[_Item], None]

_GPU_FILES: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Linux has one of these files if the machine has a GPU that torch may use."""
_GATHER_S: Final = 0.004
"""Seconds for which items are collected into one message, because a message costs as much as several requests."""


def has_gpu() -> bool:
    """Return whether local models run on a GPU of this machine, as far as can be told without torch."""
    return os.environ.get("SKILLMIX_DEVICE", "cuda") == "cuda" and any(Path(file).exists() for file in _GPU_FILES)


def gathered(queue: "SimpleQueue[Any]") -> list[Any]:
    """Wait for the next item of a queue, and return it with all items that follow within a few milliseconds."""
    items = [queue.get()]
    time.sleep(_GATHER_S)
    while not queue.empty():
        items.append(queue.get())
    return items


class RemoteWork:
    """A handle through which requests are sent to a model in the other process."""

    def __init__(self, number: int, send: Callable[[Any], None], put: Put) -> None:
        self.slots: int | None = None
        self._number, self._send, self._put = number, send, put
        self._open: dict[CallKey, Request] = {}
        self._has_stopped = False
        self._is_over = threading.Event()
        self.join = self._is_over.wait

    def add(self, request: Request) -> None:
        """Send a request to the model."""
        self._open[request.key] = request
        self._send(("ask", self._number, request.without_subject()))

    def end(self) -> None:
        """Announce that no more requests will come."""
        self._send(("end", self._number))

    def stop(self) -> None:
        """Tell the process to abandon the remaining requests."""
        if not self._has_stopped:
            self._has_stopped = True
            self._send(("stop", self._number))

    def take(self, key: CallKey, outcome: Outcome, slots: int | None) -> None:
        """Deliver the outcome of a request, and record the model's number of slots."""
        self.slots = slots
        self._put((self._open.pop(key), outcome))

    def fail(self, error: BaseException) -> None:
        """Deliver the error that ends the work."""
        self._put(error)

    def finish(self) -> None:
        """Announce that no more items follow, and end the work."""
        self._put(None)
        self._is_over.set()


class ModelProcess:
    """A second process that runs models, and the threads that send messages to it and read its replies."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        paths = [str(Path(path).absolute()) for path in sys.path]
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import serve_command; serve_command({there.fileno()})"],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is meant for the command, which ends the process
                env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
            )
        self._connection = Connection(here.detach())
        self._lock = threading.Lock()
        self._works: dict[int, RemoteWork] = {}
        self._opened = 0
        self._outgoing: SimpleQueue[Any] = SimpleQueue()
        self._is_lost = threading.Event()
        self._has_dropped = threading.Event()

        def write_all() -> None:
            with suppress(OSError, ValueError):  # the process has ended, which the other thread will notice
                while None not in (letters := gathered(self._outgoing)):
                    self._connection.send_bytes(pickle.dumps(letters, pickle.HIGHEST_PROTOCOL))

        for target in (write_all, self._read_all):
            threading.Thread(target=target, name="skillmix-letters", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended."""
        return self._is_lost.is_set()

    def open(self, spec: ModelSpec, concurrency: int | None, put: Put) -> RemoteWork:
        """Tell the process to open a model, and return a handle through which work is sent to it."""
        with self._lock:
            self._opened += 1
            number = self._opened
            work = self._works[number] = RemoteWork(number, self._outgoing.put, put)
        self._outgoing.put(("open", number, spec, concurrency))
        if self.is_lost:
            self._finish_all()
        return work

    def drop(self) -> None:
        """Tell the process to free its model's memory, and wait until it has done so."""
        self._has_dropped.clear()
        self._outgoing.put(("drop",))
        while not self._has_dropped.wait(0.1) and not self.is_lost:
            pass

    def close(self) -> None:
        """Kill the process, which has no state to save."""
        self._process.kill()
        self._process.wait()
        self._is_lost.wait()
        self._outgoing.put(None)

    def _read_all(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                for letter in pickle.loads(self._connection.recv_bytes()):  # safe: this process started the sender
                    self._take(letter)
        self._is_lost.set()
        self._finish_all()
        self._connection.close()

    def _take(self, letter: tuple[Any, ...]) -> None:
        if letter == ("dropped",):
            self._has_dropped.set()
            return
        word, number, *rest = letter
        with self._lock:
            work = self._works.pop(number, None) if word == "over" else self._works.get(number)
        if work is not None:
            hands_over: dict[str, Callable[..., None]] = {"answer": work.take, "error": work.fail, "over": work.finish}
            hands_over[word](*rest)

    def _finish_all(self) -> None:
        with self._lock:
            works, self._works = list(self._works.values()), {}
        status = self._process.wait()
        ending = f"signal {-status}" if status < 0 else f"exit status {status}"
        for work in works:
            work.fail(
                UserError(
                    f"The process of the local model ended with {ending}.",
                    hint="Rerun the command to continue. Signal 9 often means that the machine ran out of memory.",
                )
            )
            work.finish()


@dataclass(slots=True)
class _LoadedModel:
    """A model in memory, with the state of its checkpoint's files."""

    files: FileStates
    concurrency: int | None
    generator: "Generator | BatchedGenerator"


class ModelKeeper:
    """Keeps a run's last model for the next step that uses it, and the process in which models run on a GPU.

    Threads share the keeper without a lock, because only one local model is open at a time.
    """

    def __init__(self) -> None:
        self._blocks = 0
        self._kept: _LoadedModel | None = None
        self._process: ModelProcess | None = None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep the last model in memory until the end of this block."""
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
            if not self._blocks:
                self.drop()
                if self._process is not None:
                    self._process.close()
                    self._process = None

    def process(self) -> ModelProcess | None:
        """Return the process in which models run; None if they run in this process."""
        if not self._blocks or not has_gpu():
            return None
        if self._process is None or self._process.is_lost:
            self._process = ModelProcess()
        return self._process

    def drop(self) -> None:
        """Free the kept model's memory, for instance before training."""
        if self._process is not None:
            self._process.drop()
        had_model, self._kept = self._kept is not None, None
        if had_model:
            free_device_memory()

    def take(self, spec: ModelSpec, concurrency: int | None) -> _LoadedModel:
        """Return the model for a spec: the kept model if it has the same files, otherwise a newly loaded model."""
        require_packages(spec)
        checkpoint = checkpoint_of(spec)
        files = checkpoint.file_states()
        kept, self._kept = self._kept, None
        if kept and (kept.files, kept.concurrency) == (files, concurrency):
            return kept
        if kept is not None:
            kept = None
            free_device_memory()
        from skillmix.models.local.generator import new_generator
        from skillmix.models.local.loading import load

        model, renderer = load(checkpoint)
        return _LoadedModel(files, concurrency, new_generator(model, renderer, concurrency, name=str(spec)))

    def keep(self, model: _LoadedModel) -> None:
        """Keep a model that is no longer in use, but only inside a `keeping` block."""
        self._kept = model if self._blocks else None


def free_device_memory() -> None:
    """Make unused GPU memory available to other processes."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


MODELS: Final = ModelKeeper()
"""The model keeper that all code in this process shares."""


class ThreadWork:
    """A thread of this process in which a model answers the requests in a queue."""

    def __init__(self, model: "LocalModel", put: Put) -> None:
        self._stop_model = model.stop
        self._incoming: SimpleQueue[Request | None] = SimpleQueue()
        self._is_over = False
        self.add = self._incoming.put
        self._thread = threading.Thread(target=model.work, args=(self, put), daemon=True)
        self.join = self._thread.join
        self._thread.start()

    def end(self) -> None:
        """Record that no more requests will come."""
        self._incoming.put(None)

    def stop(self) -> None:
        """Stop after the current round of generation."""
        self._stop_model()
        self._incoming.put(None)

    def taken(self, *, waits: bool) -> list[Request]:
        """Return the requests that have arrived so far, for the model's thread.

        With `waits`, wait for at least one request unless no more will come.
        """
        found: list[Request] = []
        while not self._is_over and ((waits and not found) or not self._incoming.empty()):
            request = self._incoming.get()
            if request is None:
                self._is_over = True
            else:
                found.append(request)
        return found


class LocalModel:
    """A model whose checkpoint is loaded at the first request; all waiting requests are batched."""

    def __init__(self, spec: ModelSpec, options: ModelOptions) -> None:
        self._spec = spec
        self._concurrency = options.concurrency
        self._say = options.say
        self._slots = options.concurrency
        self._stop = threading.Event()
        self._work: ThreadWork | RemoteWork | None = None
        self._remote: RemoteWork | None = None

    @property
    def limits(self) -> Limits:
        """The limits of the model.

        If the number of slots depends on the device, it is known only after the model has been loaded.
        """
        slots = self._slots if self._remote is None else self._remote.slots or self._slots
        return Limits(in_process=True, in_flight=slots)

    async def probe(self) -> CallProblem | None:
        """Check that the checkpoint and its adapters exist and match; download a bundled model."""
        checkpoint = await asyncio.to_thread(checkpoint_of, self._spec)
        if checkpoint.bytes() <= _QUICKLY_HASHED:
            await asyncio.to_thread(checkpoint.check_adapters)
        if has_gpu() and (weights := parameters_in(checkpoint.base)) >= _LARGE:
            other = f"vllm:{self._spec.name}" if self._spec.provider == "local" else "vllm:MODEL"
            self._say(f"{self._spec} has {weights / 1e9:.1f} billion weights: {other} is faster for so large a model")
        return None

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests, and yield outcomes in the order in which they are completed."""
        results: asyncio.Queue[_Item] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(item: _Item) -> None:
            with suppress(RuntimeError):  # the loop is closed, so nothing waits for the item
                loop.call_soon_threadsafe(results.put_nowait, item)

        process = MODELS.process()
        if process is None:
            work: ThreadWork | RemoteWork = ThreadWork(self, put)
        else:
            work = self._remote = process.open(self._spec, self._concurrency, put)
        self._work = work

        async def feed() -> None:
            async for request in requests:
                work.add(request)
            work.end()

        feeding = asyncio.create_task(feed())
        try:
            while (item := await results.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            work.stop()
            feeding.cancel()

    async def close(self) -> None:
        """Wait for the end of the current round; the memory is freed unless a run keeps the model for the next step."""
        self.stop()
        if self._work is not None:
            self._work.stop()
            await asyncio.to_thread(self._work.join)
            self._work = None

    def stop(self) -> None:
        """Stop after the current round of generation."""
        self._stop.set()

    def work(self, work: ThreadWork, put: Put) -> None:
        """Answer requests in the calling thread until there are no more."""
        try:
            if (requests := work.taken(waits=True)) and not self._stop.is_set():
                self._generate(requests, work, put)
        except BaseException as error:  # noqa: BLE001  # `serve` raises the error
            put(error)
        finally:
            put(None)

    def _generate(self, requests: list[Request], work: ThreadWork, put: Put) -> None:
        model = MODELS.take(self._spec, self._concurrency)
        generator = model.generator
        generator.done = lambda request, outcome: put((request, outcome))
        self._slots = generator.slots
        # The model's thread releases the interpreter's lock whenever it launches a kernel. With Python's default switch
        # interval, each launch could then wait 5 ms for the event loop, and the GPU would be idle for most of that
        # time.
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, _TURN))
        try:
            while requests and not self._stop.is_set():
                generator.add(requests)
                while not generator.is_idle and not self._stop.is_set():
                    generator.work()
                    generator.add(work.taken(waits=False))
                requests = work.taken(waits=True)
        finally:
            sys.setswitchinterval(before)
        if generator.is_idle:
            MODELS.keep(model)


def serve_command(file: int) -> None:
    """Serve local models until the parent command closes the connection with this file descriptor."""
    connection = Connection(file)
    works: dict[int, ThreadWork] = {}
    outgoing: SimpleQueue[Any] = SimpleQueue()

    def send() -> None:
        with suppress(OSError):  # the command has ended
            while True:
                connection.send_bytes(pickle.dumps(gathered(outgoing), pickle.HIGHEST_PROTOCOL))
        os._exit(1)

    # A separate thread sends the answers, so that the model never waits for the receiver.
    threading.Thread(target=send, daemon=True).start()
    with MODELS.keeping():
        try:
            while True:
                for letter in pickle.loads(connection.recv_bytes()):  # safe: sent by the parent command
                    match letter:
                        case "open", work, spec, concurrency:
                            model = LocalModel(spec, ModelOptions(concurrency))
                            works[work] = ThreadWork(model, _sender(outgoing, work, model))
                        case "ask", work, request:
                            works[work].add(request)
                        case "end", work:
                            works[work].end()
                        case "stop", work:  # the last message about a piece of work
                            works.pop(work).stop()
                        case ("drop",):
                            MODELS.drop()
                            outgoing.put(("dropped",))
        except (EOFError, OSError):
            os._exit(0)  # exit immediately, because threads may use a GPU that the next command needs


def _sender(outgoing: "SimpleQueue[Any]", work: int, model: LocalModel) -> Put:
    """Return a function that sends a model's outcomes and errors, and finally a message that the work is over."""

    def put(item: _Item) -> None:
        if isinstance(item, tuple):
            outgoing.put(("answer", work, item[0].key, item[1], model.limits.in_flight))
        elif item is None:
            outgoing.put(("over", work))
        else:
            try:
                pickle.loads(pickle.dumps(item))
            except Exception:  # noqa: BLE001  # an error may be impossible to pickle, but its text is not
                item = UserError(f"The local model failed: {type(item).__name__}: {item}")
            outgoing.put(("error", work, item))

    return put


async def check_chat_template(spec: ModelSpec, system: str | None, extra: str | None) -> None:
    """Raise an error if a model's chat template cannot render a conversation with this system prompt and options."""

    def render() -> None:
        require_packages(spec)
        from skillmix.models.local.chat import Renderer
        from skillmix.models.local.loading import read_tokenizer

        turns = (Message("user", "First."), Message("assistant", "Reply."), Message("user", "Second."))
        conversation = turns if system is None else (Message("system", system), *turns)
        Renderer(read_tokenizer(checkpoint_of(spec))[0], name=str(spec)).tokens([conversation], [extra])

    await asyncio.to_thread(render)
