"""Model calls on a Ray cluster: actors open the model on the nodes, and `OnRay` distributes its calls among them.

Ray places the actors and restarts lost actors. The journal, the budget and the scheduler stay in the command's process,
which is the driver. Calls in flight on a lost actor end as temporary problems, so the scheduler charges their maximum
cost and retries them.
"""

import asyncio
import logging
import os
import pickle
import platform
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from skillmix import __version__
from skillmix.calls import CallKey, CallProblem, Limits, Model, Outcome, Request
from skillmix.errors import UserError, visible
from skillmix.hashing import digest
from skillmix.models.bundled import cache_folder
from skillmix.models.checkpoints import checkpoint_of, content_hash_of
from skillmix.models.local.model import MODELS
from skillmix.models.simple import CONCURRENCY
from skillmix.models.specs import (
    ModelOptions,
    ModelSpec,
    installed_providers,
    open_model,
    provider_of,
)
from skillmix.render import plural

VERSIONS: Final = f"skillmix {__version__} with Python {'.'.join(platform.python_version_tuple()[:2])}"
"""The versions that must be equal on all machines."""
_LOOK_S: Final = 1.0  # seconds between checks for new nodes or for a lost worker
_PATIENCE_S: Final = 300.0  # seconds for which a run without workers waits for a worker
_MOST_LOST: Final = 5
"""Consecutive losses of a worker, without an outcome in between, after which the worker is abandoned."""
_MANY: Final = 4096
"""The default limit of calls in flight; a worker with a local model accepts at least as many, to fill its slots."""
_PART: Final = 32 << 20  # the most bytes of a file in one message
_PARTS_OF_MODELS: Final = (".json", ".safetensors", ".jinja", ".txt", ".model")
"""Extensions of the files from which a checkpoint is loaded; code and weights in other formats are never loaded."""
_RAY_LOGS: Final = "See Ray's log files for the full error."


class LostWorkerError(Exception):
    """A worker does not respond, or was restarted and lost its models; the message states the reason."""


class SharedFolder(NamedTuple):
    """A folder on the driver's machine, with the name, size and hash of each file from which a model is loaded."""

    path: str
    files: tuple[tuple[str, int, str], ...]

    @classmethod
    def of(cls, folder: Path) -> "SharedFolder":
        """List the model files in a folder, with their sizes and hashes."""
        files = sorted(file for file in folder.iterdir() if file.suffix in _PARTS_OF_MODELS and file.is_file())
        return cls(str(folder.absolute()), tuple((f.name, f.stat().st_size, content_hash_of(f)) for f in files))

    @property
    def copy(self) -> Path:
        """The path of a copy in a machine's cache, named after a hash of all names and contents."""
        return cache_folder() / "sent" / digest("folder", [list(file) for file in self.files]).hex()

    def place(self) -> Path | None:
        """Return the folder on this machine that has the same files (the driver's path or the copy), or None."""
        return next((place for place in (Path(self.path), self.copy) if self._is_in(place)), None)

    def _is_in(self, place: Path) -> bool:
        try:
            return all(
                (place / name).stat().st_size == size and content_hash_of(place / name) == own
                for name, size, own in self.files
            )
        except OSError:
            return False

    def store(self, name: str | None, data: bytes) -> None:
        """Append data from the driver to a file of the copy; a name of None completes the copy."""
        partial = self.copy.with_name(f".{self.copy.name}.{os.getpid()}")
        try:
            if name is not None:
                partial.mkdir(parents=True, exist_ok=True)
                with (partial / Path(name).name).open("ab") as file:
                    file.write(data)
            elif self._is_in(partial):
                shutil.rmtree(self.copy, ignore_errors=True)  # a complete, undamaged copy would have been used
                partial.rename(self.copy)
            else:
                shutil.rmtree(partial, ignore_errors=True)
                raise UserError(f"{self.path} changed while it was being sent.", hint="Rerun the command.")
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise UserError(
                f"{self.path} cannot be stored in {self.copy.parent}: {error.strerror or error}.",
                hint="Free disk space on that machine, or set SKILLMIX_CACHE to another folder before `ray start`.",
            ) from None


class OpenOrder(NamedTuple):
    """A model that an actor must open, with the folders of its checkpoint."""

    spec: ModelSpec
    options: ModelOptions
    folders: tuple[SharedFolder, ...] = ()


class Begun(NamedTuple):
    """An actor's answer to an order: how many calls the model handles at a time, or the folders that are missing."""

    host: str
    room: int = 0
    lacking: tuple[SharedFolder, ...] = ()


_Item = tuple[CallKey, Outcome] | str | UserError
"""An actor's message to the driver about a model: an outcome, a line for the user, or the error that ends the model."""


class _Served(NamedTuple):
    """A model in an actor, with its queued requests and the messages that the driver has not fetched yet."""

    model: Model
    requests: asyncio.Queue[Request]
    news: asyncio.Queue[_Item]
    serving: asyncio.Task[None]


class ModelActor:
    """Runs models on a node and answers the driver's requests; a number identifies each open model."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to the number of CPUs that an actor reserves, perhaps 0
        os.environ.update(environment)
        self._kept = ExitStack()
        self._kept.enter_context(MODELS.keeping())
        self._open: dict[int, _Served] = {}

    async def begin(self, number: int, versions: str, pickled: bytes) -> Begun:
        """Open a model, after closing it if it is already open; if folders are missing, return them instead."""
        host = visible(platform.node())
        if versions != VERSIONS:
            raise UserError(
                f"{host} has {VERSIONS}, but the machine of the command has {versions}.",
                hint="Install the same versions on all machines.",
            )
        await self.end(number)
        order: OpenOrder = pickle.loads(pickled)  # after the check, because another version may define other classes
        spec = order.spec
        if order.folders:
            places = [await asyncio.to_thread(folder.place) for folder in order.folders]
            lacking = tuple(folder for folder, place in zip(order.folders, places, strict=True) if place is None)
            if lacking:
                return Begun(host, lacking=lacking)
            provider = "local" if provider_of(spec).is_engine else spec.provider
            spec = ModelSpec(provider, "+".join(map(str, places)))
        requests: asyncio.Queue[Request] = asyncio.Queue()
        news: asyncio.Queue[_Item] = asyncio.Queue()
        model = open_model(spec, replace(order.options, say=news.put_nowait))

        async def pulled() -> AsyncIterator[Request]:
            while True:
                yield await requests.get()

        async def serve() -> None:
            try:
                async for request, outcome in model.serve(pulled()):
                    news.put_nowait((request.key, outcome))
            except UserError as error:
                news.put_nowait(error)
            except Exception as error:  # noqa: BLE001  # the driver raises it
                words = visible(f"{type(error).__name__}: {error}".splitlines()[0])
                news.put_nowait(UserError(f"{order.spec} failed: {words}.", hint=_RAY_LOGS))

        self._open[number] = _Served(model, requests, news, asyncio.create_task(serve()))
        return Begun(host, model.limits.in_flight or CONCURRENCY)

    async def add(self, number: int, group: bytes) -> None:
        """Add a pickled group of requests to the queue of a model."""
        served = self._model(number)
        for request in pickle.loads(group):
            served.requests.put_nowait(request)

    async def take(self, number: int) -> bytes:
        """Wait for a message about a model, and return all messages since the last call."""
        news = self._model(number).news
        found = [await news.get()]
        await asyncio.sleep(0.005)  # collect several outcomes in one answer
        while not news.empty():
            found.append(news.get_nowait())
        return pickle.dumps(found, pickle.HIGHEST_PROTOCOL)

    def _model(self, number: int) -> _Served:
        if number not in self._open:
            raise LostWorkerError("it was restarted")
        return self._open[number]

    async def end(self, number: int) -> None:
        """Close a model, and abandon its calls in flight."""
        served = self._open.pop(number, None)
        if served is not None:
            served.serving.cancel()
            await asyncio.gather(served.serving, return_exceptions=True)
            await served.model.close()

    async def store(self, folder: SharedFolder, name: str | None, data: bytes) -> None:
        """Store part of a folder from the driver."""
        await asyncio.to_thread(folder.store, name, data)


class Placement(NamedTuple):
    """The resources of a worker on a node; a local model runs on at most one GPU or on a share of one."""

    cpus: float | None = None
    gpus: float | None = None

    def workers(self, nodes: Sequence[Mapping[str, Any]], *, is_local: bool) -> int:
        """Return how many workers a cluster's nodes can hold.

        A node with CPUs holds one worker or, if `cpus` is set, as many as fit. A local model has one worker per
        share of a GPU or, in a cluster without GPUs, one per node.
        """
        uses_gpus, total = self.uses_gpus(nodes, is_local=is_local), 0.0
        for node in nodes:
            cpus, gpus = float(node["Resources"].get("CPU", 0)), int(node["Resources"].get("GPU", 0) + 1e-6)
            most: float = inf if self.cpus and not is_local else bool(cpus)
            if uses_gpus:
                most = gpus * int(1 / min(1.0, self.gpus or 1.0) + 1e-6)
            total += min(most, cpus // self.cpus) if self.cpus else most
        return int(total)

    def uses_gpus(self, nodes: Sequence[Mapping[str, Any]], *, is_local: bool) -> bool:
        """Return whether workers use GPUs: local models do if a node has one and SKILLMIX_DEVICE does not forbid it."""
        has_gpus = any(node["Resources"].get("GPU", 0) >= 1 for node in nodes)
        return is_local and has_gpus and os.environ.get("SKILLMIX_DEVICE", "cuda") == "cuda"


class Worker:
    """An actor of the cluster, which Ray restarts if it is lost."""

    def __init__(self, number: int, actor: Any) -> None:
        self.number = number
        self.actor = actor
        self.host = ""  # the machine on which the actor was last seen

    def __str__(self) -> str:
        return f"worker {self.number} ({self.host})" if self.host else f"worker {self.number}"

    async def ask(self, method: str, *arguments: object) -> Any:
        """Call a method of the actor; raise a `UserError` if it fails, or a `LostWorkerError` if the actor is lost."""
        from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

        try:
            return await getattr(self.actor, method).remote(*arguments)
        except RayTaskError as error:
            if isinstance(error.cause, LostWorkerError):
                raise LostWorkerError(str(error.cause)) from None
            if isinstance(error.cause, UserError):
                raise UserError(f"{self}: {error.cause.message}", hint=error.cause.hint) from None
            raise UserError(f"{self} failed: {_last_line(error)}.", hint=_RAY_LOGS) from None
        except RayError as error:  # the worker is gone, or its answer was lost in transit and its state is unknown
            has_ended = isinstance(error, ActorUnavailableError | ActorDiedError) and "creation task" not in str(error)
            raise LostWorkerError("its process or its machine has ended" if has_ended else _last_line(error)) from None


class RayCluster:
    """The workers of a run on a Ray cluster, which the driver joins when a model first needs workers."""

    def __init__(self, placement: Placement, say: Callable[[str], None]) -> None:
        self.say = say
        self.running: list[Worker] = []  # excludes abandoned workers
        self.repeated = 0  # the number of calls that were in flight on lost workers
        self.numbers = count()  # the numbers that identify opened models
        self._placement = placement
        self._is_local = False
        self._given_up = 0
        self._started = count(1)

    def use(self, *, is_local: bool) -> None:
        """Select workers for local models or for other models; end running workers of the wrong kind."""
        if is_local != self._is_local:
            self.end_workers()
        self._is_local = is_local

    async def workers(self) -> list[Worker]:
        """Start new workers if the cluster has grown, and return all workers."""
        nodes = await self._alive_nodes()
        wanted = self._placement.workers(nodes, is_local=self._is_local)
        if nodes and not wanted and not self.running:
            amount = f"{self._placement.cpus:g} CPUs" if self._placement.cpus else "CPU"
            raise UserError(
                f"No node of the cluster has the {amount} that a worker needs.",
                hint="Lower workers.cpus, or give Ray more CPUs: ray start --num-cpus N.",
            )
        uses_gpus = self._placement.uses_gpus(nodes, is_local=self._is_local)
        new = [self._start(uses_gpus=uses_gpus) for _ in range(wanted - len(self.running) - self._given_up)]
        if new and not self.running:
            self.say(f"{plural(len(new), 'worker')} on Ray")
        self.running += new
        return list(self.running)

    def give_up(self, worker: Worker, why: str) -> None:
        """Stop using a worker, and end its process; raise an error if no other worker is left."""
        if worker not in self.running:
            return
        self.say(f"{worker} gets no more calls: {why.rstrip('.')}")
        self.running.remove(worker)
        self._given_up += 1
        self._kill(worker)
        if not self.running:
            raise UserError(
                f"All workers of the cluster were lost {_MOST_LOST} times in a row.",
                hint="Check the memory of the nodes and Ray's log files, and rerun the command; finished calls are "
                "stored.",
            )

    def end_workers(self) -> None:
        """End all workers, to free their memory and their share of the nodes."""
        for worker in self.running:
            self._kill(worker)
        self.running.clear()
        self._given_up = 0

    async def _alive_nodes(self) -> list[Mapping[str, Any]]:
        """Join the cluster if necessary, and return its live nodes; the list is empty if the head does not answer."""
        import ray

        if not ray.is_initialized():
            _join(ray)
        try:
            return [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"]]
        except (ray.exceptions.RayError, OSError, RuntimeError):  # the head is busy or unreachable, so try again later
            return []

    def _start(self, *, uses_gpus: bool) -> Worker:
        import ray

        cpus, gpus = self._placement.cpus or 0, min(1.0, self._placement.gpus or 1.0) if uses_gpus else 0
        threads = str(int(cpus)) if cpus >= 1 else os.environ.get("OMP_NUM_THREADS")
        environment = {"SKILLMIX_DEVICE": "cuda" if uses_gpus else "cpu"}
        if threads and not uses_gpus:
            environment["OMP_NUM_THREADS"] = threads
        # Ray must not repeat an actor's calls by itself, because the actor has no models after a restart.
        retries = {"max_restarts": -1, "max_task_retries": 0}
        actor = ray.remote(ModelActor).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="SPREAD", **retries)
        return Worker(next(self._started), actor.remote(environment))

    def _kill(self, worker: Worker) -> None:
        import ray

        ray.kill(worker.actor)


@contextmanager
def ray_cluster(placement: Placement, say: Callable[[str], None]) -> Iterator[RayCluster]:
    """Yield the cluster at RAY_ADDRESS, or a new one on this machine; the workers end with the block."""
    if find_spec("ray") is None:
        raise UserError("Ray is not installed.", hint="Install it: pip install 'skillmix[ray]'.")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cluster = RayCluster(placement, say)
    try:
        yield cluster
    finally:
        cluster.end_workers()
        if cluster.repeated:
            verb = "was" if cluster.repeated == 1 else "were"
            say(f"{plural(cluster.repeated, 'call')} {verb} repeated because of lost workers")
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            ray.shutdown()


@dataclass(eq=False, slots=True)
class _Link:
    """A worker and its calls for one model."""

    worker: Worker
    room: int = 0  # the most calls in flight at the worker; 0 until it has opened the model
    in_flight: dict[CallKey, Request] = field(default_factory=dict)
    unsent: list[Request] = field(default_factory=list)  # to be sent in the next message
    losses: int = 0  # how often the worker has been lost since its last outcome


class OnRay(Model):
    """A model that a cluster's workers run; each worker receives as many calls as its copy of the model can handle."""

    def __init__(self, cluster: RayCluster, spec: ModelSpec, options: ModelOptions) -> None:
        self._cluster = cluster
        self._spec = spec
        self._options = options
        self._is_local = provider_of(spec).is_in_process
        # Built-in models on Ray need no subject, but a model from another package may use it.
        self._is_installed = spec.provider in installed_providers()
        # `concurrency` applies to all workers together, but for a local model it is the number of slots per device.
        self._most = options.concurrency if options.concurrency and not self._is_local else inf
        self._number = next(cluster.numbers)
        self._links: dict[int, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._order = b""
        self._is_fed = False

    @property
    def limits(self) -> Limits:
        """The most calls that all workers together may have in flight."""
        return Limits(in_process=self._is_local, in_flight=self._options.concurrency or _MANY)

    async def close(self) -> None:
        """Tell the workers to close the model, and wait at most 5 s for them."""
        closing = [link.worker.ask("end", self._number) for link in self._links.values() if link.room]
        self._links.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.gather(*closing, return_exceptions=True)

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Distribute requests, and yield outcomes as they arrive; workers start with the first request."""
        self._results: asyncio.Queue[tuple[Request, Outcome] | BaseException | None] = asyncio.Queue()
        self._has_room = asyncio.Event()
        self._sending = asyncio.Lock()
        self._begin(self._feed(requests))
        try:
            while (item := await self._results.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task whose error ends `serve`."""

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._results.put_nowait(error)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(over)

    async def _feed(self, requests: AsyncIterator[Request]) -> None:
        """Assign each request to the worker with the fewest calls; pull the next request when a worker has room."""
        async for request in requests:
            if not self._order:
                self._order = await asyncio.to_thread(_order_of, self._spec, self._options)
                self._begin(self._watch())
            link = await self._free_link()
            if not link.unsent:
                self._begin(self._send(link))  # the task sends all requests pulled before it starts
            link.unsent.append(request if self._is_installed else request.without_subject())
            link.in_flight[request.key] = request
            await self._free_link()
        self._is_fed = True
        self._end_if_over()

    async def _free_link(self) -> _Link:
        while True:
            links = [link for link in self._links.values() if len(link.in_flight) < link.room]
            if links and sum(len(link.in_flight) for link in self._links.values()) < self._most:
                return min(links, key=lambda link: len(link.in_flight))
            self._has_room.clear()
            await self._has_room.wait()

    async def _watch(self) -> None:
        """Add workers as they start; raise an error if no worker has been available for `_PATIENCE_S` seconds."""
        last = time.monotonic()
        while True:
            for worker in await self._cluster.workers():
                if worker.number not in self._links:
                    link = self._links[worker.number] = _Link(worker)
                    self._begin(self._work(link))
            if any(link.room for link in self._links.values()):
                last = time.monotonic()
            elif time.monotonic() - last > _PATIENCE_S:
                raise UserError(
                    f"The cluster had no worker for {_PATIENCE_S:g} s.",
                    hint="Check with `ray status` whether other jobs use its CPUs or GPUs, and rerun the command; "
                    "finished calls are stored.",
                )
            await asyncio.sleep(_LOOK_S)

    async def _work(self, link: _Link) -> None:
        """Open the model on a worker and fetch its outcomes; start over whenever Ray has restarted the worker."""
        worker = link.worker
        while worker in self._cluster.running:
            try:
                link.room = await self._open(worker)
                while True:
                    self._has_room.set()
                    self._take(link, pickle.loads(await worker.ask("take", self._number)))
            except LostWorkerError as lost:
                if link.room:  # otherwise the worker has not started or restarted yet
                    link.losses += 1
                    self._repeat(link, list(link.in_flight.values()), f"{worker} is lost ({lost})")
                link.room = 0
                link.unsent.clear()
                if link.losses >= _MOST_LOST:
                    self._cluster.give_up(worker, str(lost))
            except UserError as error:
                # A failing worker, for instance on a machine without a key, must not stop the others.
                if link.room or not any(other.room for other in self._links.values()):
                    raise
                self._cluster.give_up(worker, error.message)
            await asyncio.sleep(_LOOK_S)

    async def _open(self, worker: Worker) -> int:
        """Open the model on a worker, send folders that its machine lacks, and return how many calls it accepts."""
        begun: Begun = await worker.ask("begin", self._number, VERSIONS, self._order)
        worker.host = begun.host
        if not begun.lacking:
            return max(_MANY, begun.room) if self._is_local else begun.room
        async with self._sending:  # another worker may have stored the folders on this machine meanwhile
            begun = await worker.ask("begin", self._number, VERSIONS, self._order)
            for folder in begun.lacking:
                self._cluster.say(f"sending {folder.path} to the machine of {worker}")
                for name, size, _ in folder.files:
                    with (Path(folder.path) / name).open("rb") as file:
                        for _ in range(size // _PART + 1):  # send one part even if the file is empty
                            await worker.ask("store", folder, name, await asyncio.to_thread(file.read, _PART))
                await worker.ask("store", folder, None, b"")
        return await self._open(worker)

    async def _send(self, link: _Link) -> None:
        group, link.unsent = link.unsent, []
        if not group:  # the worker was lost in the meantime
            return
        try:
            # Ray's own pickler would be several times slower.
            await link.worker.ask("add", self._number, pickle.dumps(group, pickle.HIGHEST_PROTOCOL))
        except LostWorkerError as lost:
            if any(request.key in link.in_flight for request in group):
                self._repeat(link, group, f"a message to {link.worker} is lost ({lost})")

    def _take(self, link: _Link, news: Sequence[_Item]) -> None:
        for item in news:
            if isinstance(item, str):
                self._cluster.say(f"{link.worker}: {item}")
            elif isinstance(item, UserError):
                raise UserError(f"{link.worker}: {item.message}", hint=item.hint)
            # An unknown key belongs to a call that is being repeated, because a message seemed lost.
            elif (request := link.in_flight.pop(item[0], None)) is not None:
                self._results.put_nowait((request, item[1]))
                link.losses = 0
        self._end_if_over()

    def _repeat(self, link: _Link, calls: Sequence[Request], why: str) -> None:
        """Return calls in flight as temporary problems, because it is unknown whether the calls were answered."""
        known = [request for call in calls if (request := link.in_flight.pop(call.key, None)) is not None]
        repeated = f"; {plural(len(known), 'call')} in flight to {self._spec} will be repeated" if known else ""
        self._cluster.say(why + repeated)
        self._cluster.repeated += len(known)
        for request in known:
            self._results.put_nowait((request, CallProblem("passing", "lost worker", why)))
        self._has_room.set()

    def _end_if_over(self) -> None:
        if self._is_fed and not any(link.in_flight for link in self._links.values()):
            self._results.put_nowait(None)


def _order_of(spec: ModelSpec, options: ModelOptions) -> bytes:
    """Return the pickled order to open a model, with its checkpoint's folders."""
    plain = ModelOptions(options.concurrency, options.timeout, options.access)
    folders: tuple[SharedFolder, ...] = ()
    if provider_of(spec).has_checkpoint:
        checkpoint = checkpoint_of(spec)
        folders = tuple(map(SharedFolder.of, (checkpoint.base, *checkpoint.adapters)))
    return pickle.dumps(OpenOrder(spec, plain, folders))


def _join(ray: Any) -> None:
    """Join the cluster at RAY_ADDRESS or start one here, without keeping Ray's handler for SIGTERM."""
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise UserError(
            f"RAY_ADDRESS is {visible(address)}, the address of a Ray client.",
            hint="Start the run on a machine of the cluster, with the HOST:PORT that `ray start` prints.",
        )
    host, _, port = address.rpartition(":")
    if host and port.isdigit():  # Ray would retry a dead address for minutes, with many lines of output
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=20).close()
        except (OSError, OverflowError) as error:
            raise UserError(
                f"The Ray cluster {visible(address)} cannot be reached: {error}.",
                hint="Check RAY_ADDRESS, and that `ray start --head` runs there.",
            ) from None
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    terminate = signal.getsignal(signal.SIGTERM)
    # Ray prints paragraphs about lost workers to standard output, and has no setting to disable them.
    internals = ray._private.worker
    listen, internals.listen_error_messages = internals.listen_error_messages, lambda *_: None
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        what = "A Ray cluster cannot be started here" if address == "local" else f"{visible(address)} cannot be joined"
        raise UserError(
            f"{what}: {_last_line(error)}.",
            hint="Check RAY_ADDRESS and RAY_AUTH_MODE; without an address, a cluster is started on this machine.",
        ) from None
    finally:
        internals.listen_error_messages = listen
        with suppress(ValueError):  # outside the main thread, Ray could not replace the handler
            signal.signal(signal.SIGTERM, terminate)


def _last_line(error: BaseException) -> str:
    """Return the last line of an error's message, because Ray's messages are long."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return visible(lines[-1].strip()).rstrip(".:")
