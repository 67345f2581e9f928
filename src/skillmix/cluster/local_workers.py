"""Workers with local models on a Ray cluster: one for each GPU, or for each node of a cluster without GPUs."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from skillmix.cluster.devices import DeviceShare, wanted_threads
from skillmix.cluster.folder_files import CheckpointFiles, FolderFiles, files_of, model_files
from skillmix.cluster.folder_sender import FolderSender
from skillmix.cluster.node_workers import no_room
from skillmix.errors import UserError
from skillmix.experiment.experiment import WorkerSettings
from skillmix.models.checkpoints import checkpoint_of
from skillmix.models.specs import ModelSpec
from skillmix.runs.leases.driving import LentWork


class LocalTeam:
    """Workers that load models. In a cluster with GPUs, nodes without GPUs have none: they would be far slower."""

    def __init__(self) -> None:
        self._has_gpus = False

    @property
    def label(self) -> str:
        """What a worker is called."""
        return "GPU worker" if self._has_gpus else "worker"

    def nodes(self, nodes: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Nodes with GPUs, if any node has some and SKILLMIX_DEVICE does not choose CPUs; else those with CPUs."""
        with_gpus = [node for node in nodes if node["Resources"].get("GPU")]
        self._has_gpus = bool(with_gpus) and os.environ.get("SKILLMIX_DEVICE", "cuda") == "cuda"
        return with_gpus if self._has_gpus else [node for node in nodes if node["Resources"].get("CPU")]

    def places(self, node: Mapping[str, Any], settings: WorkerSettings) -> int:
        """As many as there are GPUs, or shares of GPUs; one on a node of a cluster without GPUs; all must fit."""
        most = int(node["Resources"].get("GPU", 0)) * int(1 / _gpus(settings) + 1e-6) if self._has_gpus else 1
        return most if settings.cpus is None else min(most, int(node["Resources"].get("CPU", 0) // settings.cpus))

    def options(self, settings: WorkerSettings) -> Mapping[str, Any]:
        """A GPU or a share of one; a worker on CPUs reserves none, because it would wait for other jobs."""
        return {"num_cpus": settings.cpus or 0, "num_gpus": _gpus(settings) if self._has_gpus else 0}

    def share(self, settings: WorkerSettings) -> DeviceShare | None:
        """Its share of the GPU's memory, or its threads on a CPU."""
        if self._has_gpus:
            return DeviceShare(_gpus(settings))
        return DeviceShare(threads=int(settings.cpus) if settings.cpus and settings.cpus >= 1 else wanted_threads())

    def no_place(self, settings: WorkerSettings) -> UserError:
        """The error if no node can load models."""
        if settings.cpus is not None:
            return no_room(settings.cpus)
        return UserError(
            "No node of the cluster offers GPUs or CPUs.",
            hint="Start Ray with them (ray start --num-gpus, --num-cpus).",
        )


def _gpus(settings: WorkerSettings) -> float:
    """GPUs of a worker: a local model writes on one GPU at most."""
    return min(1.0, settings.gpus or 1.0)


class ModelSender:
    """Lets the machines of workers have the files of the models that a step asks, and then those of the next."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._sender = FolderSender(ray)
        self._next: ModelSpec | None = None
        self._ahead: set[asyncio.Task[None]] = set()

    def announce(self, spec: ModelSpec) -> None:
        """Note which model the next step begins with."""
        self._next = spec

    async def begin(self, work: LentWork) -> tuple[LentWork, CheckpointFiles | None]:
        """The work with the files of its models, and the files of the model that comes after them."""
        self._sender = FolderSender(self._ray)  # its locks belong to the event loop of a step
        files = await asyncio.to_thread(model_files, work.models)
        return work._replace(files=files), await asyncio.to_thread(self._files_after, work)

    def preparing(
        self, name: str, actor: Any, node: str, work: LentWork, later: CheckpointFiles | None
    ) -> Callable[[], Awaitable[None]]:
        """What must be done before a worker begins: its machine gets the files that it lacks."""
        folders = [folder for files in work.files.values() for folder in files.folders]
        return partial(self._prepare, name, actor, node, folders, later)

    async def end_step(self) -> None:
        """Send nothing more ahead."""
        ahead, self._ahead = self._ahead, set()
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)

    def _files_after(self, work: LentWork) -> CheckpointFiles | None:
        """The files of the model that comes next; None if that is not known, or if it cannot be read yet."""
        try:
            if work.following:
                return next(iter(model_files(work.following).values()), None)
            spec, self._next = self._next, None
            return None if spec is None else files_of(checkpoint_of(spec))
        except (UserError, OSError):  # its own step reports what is wrong
            return None

    async def _prepare(
        self, name: str, actor: Any, node: str, folders: Iterable[FolderFiles], later: CheckpointFiles | None
    ) -> None:
        from ray.exceptions import RayTaskError

        try:
            await self._sender.provide(actor, node, folders, name=name)
        except RayTaskError as error:
            cause = error.cause
            raise (
                UserError(f"{name}: {cause.message}", hint=cause.hint) if isinstance(cause, UserError) else error
            ) from None
        if later is not None:
            task = asyncio.create_task(self._provide_later(name, actor, node, later))
            self._ahead.add(task)
            task.add_done_callback(self._ahead.discard)

    async def _provide_later(self, name: str, actor: Any, node: str, files: CheckpointFiles) -> None:
        """Send the next model while this one works; it is loaded when this one runs out of requests."""
        from ray.exceptions import RayError

        try:
            await self._sender.provide(actor, node, files.folders, name=name)
            await actor.announce.remote(files)
        except (UserError, RayError):  # the step that uses the model reports it
            return
