"""Workers with local models on a Ray cluster: one actor for each GPU, or for each node of a cluster without GPUs."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from skillmix.cluster.devices import DeviceShare, wanted_threads
from skillmix.cluster.folder_files import CheckpointFiles, FolderFiles, files_of, model_files
from skillmix.cluster.folder_sender import FolderSender
from skillmix.cluster.lease_actor import LeaseActor, require_same_versions
from skillmix.cluster.ray_problems import first_line, translated
from skillmix.errors import UserError
from skillmix.models.checkpoints import checkpoint_of
from skillmix.models.specs import ModelSpec
from skillmix.runs.leases.driving import LentWork, WorkerLink
from skillmix.runs.leases.lease import OwnerLetter, WorkerLetter
from skillmix.runs.leases.mailbox import Packet
from skillmix.runs.progress.terminal import say

_START_S: Final = 120.0
"""Seconds that a worker may take to start; its GPU may belong to another job of the cluster."""


class LocalWorker(NamedTuple):
    """An actor, and the node that it is on."""

    actor: Any
    node: str


class LocalLink:
    """The way to a worker, which first gets the files of its models."""

    def __init__(self, link: WorkerLink, prepare: Callable[[], Any], later: Callable[[], Any]) -> None:
        self._link = link
        self._prepare = prepare
        self._later = later
        self._ahead: asyncio.Task[None] | None = None

    async def exchange(self, packet: Packet[OwnerLetter]) -> Packet[WorkerLetter]:
        """Hand a packet over and wait for the answer; the next model is sent while this one works."""
        if self._ahead is None:
            await self._prepare()
            self._ahead = asyncio.create_task(self._later())
        return await self._link.exchange(packet)


class LocalWorkers:
    """The actors with local models. They stay for all steps until training needs their GPUs."""

    def __init__(self, ray: Any, *, gpus: float = 1.0) -> None:
        self._ray = ray
        self._gpus = min(1.0, gpus) or 1.0
        self._workers: dict[str, LocalWorker] = {}
        self._sender = FolderSender(ray)
        self._next: ModelSpec | None = None
        self._ahead: set[asyncio.Task[None]] = set()

    @property
    def actors(self) -> list[Any]:
        """The actors that live, as far as is known."""
        return [worker.actor for worker in self._workers.values()]

    def announce(self, spec: ModelSpec) -> None:
        """Note which model the next step begins with."""
        self._next = spec

    async def with_files(self, work: LentWork) -> LentWork:
        """The work, with the files of its models."""
        return work._replace(files=await asyncio.to_thread(model_files, work.models))

    def start(self) -> None:
        """Start an actor on each GPU that has none."""
        if self._workers:
            return
        self._workers = _started(self._ray, self._gpus)
        kind = "GPU worker" if _uses_gpus(self._ray) else "worker"
        many = "" if len(self._workers) == 1 else "s"
        say(f"{len(self._workers)} {kind}{many} with local models on Ray")

    async def links(
        self, work: LentWork, link: Callable[[Any, Callable[[], object]], WorkerLink]
    ) -> Mapping[str, WorkerLink]:
        """The ways to all workers; `link` makes the way to an actor."""
        folders = [folder for files in work.files.values() for folder in files.folders]
        later = await asyncio.to_thread(self._files_after, work)
        return {
            name: LocalLink(
                link(worker.actor, partial(self._workers.pop, name, None)),
                partial(self._provide, name, worker, folders),
                partial(self._provide_later, name, worker, later),
            )
            for name, worker in self._workers.items()
        }

    def close(self) -> None:
        """End the actors, so that their GPUs are free."""
        for worker in self._workers.values():
            self._ray.kill(worker.actor)
        self._workers.clear()

    def _files_after(self, work: LentWork) -> CheckpointFiles | None:
        """The files of the model that comes after these; None if that is not known or it cannot be read yet."""
        spec, self._next = (self._next, None) if not work.following else (None, self._next)
        try:
            if spec is not None:
                return files_of(checkpoint_of(spec))
            return next(iter(model_files(work.following).values()), None)
        except (UserError, OSError):  # its own step reports what is wrong
            return None

    async def _provide(self, name: str, worker: LocalWorker, folders: Iterable[FolderFiles]) -> None:
        with translated(partial(self._workers.pop, name, None)):
            try:
                await self._sender.provide(worker.actor, worker.node, folders, name=name)
            except UserError as error:
                raise UserError(f"{name}: {error.message}", hint=error.hint) from None

    async def _provide_later(self, name: str, worker: LocalWorker, files: CheckpointFiles | None) -> None:
        if files is None:
            return
        from ray.exceptions import RayError

        try:
            await self._sender.provide(worker.actor, worker.node, files.folders, name=name)
            await worker.actor.announce.remote(files)
        except (UserError, RayError):  # the step that uses the model reports it
            return


def _uses_gpus(ray: Any) -> bool:
    """Whether local models write on the GPUs of the cluster."""
    return os.environ.get("SKILLMIX_DEVICE", "cuda") == "cuda" and any(
        node["Resources"].get("GPU") for node in _alive(ray)
    )


def _alive(ray: Any) -> list[dict[str, Any]]:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted(nodes, key=lambda node: str(node["NodeID"]))


def _started(ray: Any, gpus: float) -> dict[str, LocalWorker]:
    """One actor for each GPU, or more if each takes a share; without GPUs one on each node with CPUs."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(LeaseActor)
    workers: dict[str, LocalWorker] = {}
    has_gpus = _uses_gpus(ray)
    for node in _alive(ray):
        resources = node["Resources"]
        count = int(resources.get("GPU", 0) / gpus) if has_gpus else int(bool(resources.get("CPU")))
        share = DeviceShare(gpus) if has_gpus else DeviceShare(threads=wanted_threads())
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": strategy}
        options |= {"num_gpus": gpus} if has_gpus else {}
        for _ in range(count):
            kind = "GPU worker" if has_gpus else "worker"
            name = f"{kind} {len(workers) + 1} ({node['NodeManagerAddress']})"
            workers[name] = LocalWorker(remote.options(**options).remote(share), str(node["NodeID"]))
    return _those_that_start(ray, workers)


def _those_that_start(ray: Any, workers: Mapping[str, LocalWorker]) -> dict[str, LocalWorker]:
    """The workers that are up in time; a GPU that another job has is left out, and no worker at all is an error."""
    from ray.exceptions import GetTimeoutError, RayError

    asked = {name: worker.actor.versions.remote() for name, worker in workers.items()}
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=_START_S) if asked else None
    problems = {}
    for name, versions in asked.items():
        try:
            found = ray.get(versions, timeout=0)
        except GetTimeoutError:
            problems[name] = "its GPU or its node is busy"
        except RayError as error:
            problems[name] = first_line(error)
        else:
            require_same_versions(name, found)
    for name, problem in problems.items():
        say(f"{name} is left out: {problem}")
        ray.kill(workers[name].actor)
    if len(problems) == len(workers):
        raise UserError(
            "No worker of the cluster can load local models.",
            hint="Every machine needs the same skillmix and Python, with the extra `local`, and a free GPU.",
        )
    return {name: worker for name, worker in workers.items() if name not in problems}
