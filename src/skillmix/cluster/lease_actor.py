"""The worker of one node, of which Ray makes an actor; this module does not import Ray."""

import asyncio
import pickle
import platform
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final

from skillmix import __version__
from skillmix.calls import Model
from skillmix.cluster.devices import DeviceShare
from skillmix.cluster.folder_files import CheckpointFiles, FileFacts, FolderFiles, NodeStore, settings_here, spec_name
from skillmix.experiment.plan import Settings
from skillmix.models.servers.pool import CONCURRENCY
from skillmix.models.specs import ModelSpec, announce_model, provider_of
from skillmix.runs.calling import max_open, opened_models
from skillmix.runs.leases.driving import LentWork
from skillmix.runs.leases.lease import WorkerLetter
from skillmix.runs.leases.mailbox import Packet
from skillmix.runs.leases.worker import LeaseWorker

VERSIONS: Final = (__version__, ".".join(platform.python_version_tuple()[:2]))
"""skillmix and Python; they must be equal on all machines, so that the same code makes the same requests."""
_FEWEST_LEAVES: Final = 4


class LeaseActor:
    """Works on one step at a time. A message of another step, which came late, changes nothing."""

    def __init__(self, device: DeviceShare | None = None) -> None:
        if device is not None:
            device.claim()
        self._store = NodeStore()
        self._step = 0
        self._worker: LeaseWorker | None = None
        self._running: asyncio.Task[None] | None = None

    def versions(self) -> tuple[str, str]:
        """The versions of skillmix and Python on this machine."""
        return VERSIONS

    async def begin(self, step: int, work: LentWork) -> None:
        """Begin with a step: open its models and wait for leases; a step that has begun goes on."""
        if step <= self._step:
            return
        await self._leave()
        self._step = step
        opened = AsyncExitStack()
        here = await asyncio.to_thread(settings_here, work.models, work.files)
        models = await opened_models(here, opened, lambda line: worker.say(line))
        worker = self._worker = LeaseWorker(
            models, work.conversations, max_open=max_open(models), leaves=_leaves(work.models, models)
        )
        self._running = asyncio.create_task(_run(worker, opened))

    async def exchange(self, step: int, packet: bytes) -> bytes:
        """Exchange letters with the driver; packets are pickled."""
        answer: Packet[WorkerLetter] = Packet(0, 0, ())
        if self._worker is not None and step == self._step:
            answer = await self._worker.exchange(pickle.loads(packet))
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)

    async def end(self, step: int) -> None:
        """Leave a step."""
        if step == self._step:
            await self._leave()

    async def wanted_files(self, folder: FolderFiles) -> tuple[FileFacts, ...] | None:
        """The files of a folder that this machine lacks; None if another process is taking them."""
        return await asyncio.to_thread(self._store.wanted, folder)

    async def store_part(self, folder: FolderFiles, name: str, offset: int, data: bytes) -> None:
        """Take a part of a file."""
        await asyncio.to_thread(self._store.store, folder, name, offset, data)

    async def keep_folder(self, folder: FolderFiles) -> None:
        """Check and keep a folder whose parts have all come."""
        await asyncio.to_thread(self._store.keep, folder)

    async def drop_folder(self, folder: FolderFiles) -> None:
        """Give up a folder that did not come whole."""
        await asyncio.to_thread(self._store.drop, folder)

    async def announce(self, files: CheckpointFiles) -> None:
        """Note which model comes after the present one; it is loaded while the last rows are written."""
        checkpoint = await asyncio.to_thread(files.here)
        announce_model(ModelSpec("local", spec_name(checkpoint)))

    async def _leave(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._worker = self._running = None


def _leaves(used: Mapping[str, Settings], models: Mapping[str, Model]) -> dict[str, int]:
    """How many calls of each served model may have leave at once; one in this process works on thousands."""
    return {
        name: max(_FEWEST_LEAVES, 2 * (settings.concurrency or models[name].limits.in_flight or CONCURRENCY))
        for name, settings in used.items()
        if not provider_of(str(settings.asked)).is_in_process
    }


async def _run(worker: LeaseWorker, opened: AsyncExitStack) -> None:
    async with opened:
        await worker.run()
