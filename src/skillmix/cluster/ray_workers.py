"""Workers on a Ray cluster: one actor on each node, which runs the scheduler over leases.

The driver asks each actor for its letters and never the other way round, so an actor that Ray has given up can write
nothing. Ray must not repeat an exchange by itself: letters have numbers, and the driver sends them again.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from skillmix.cluster.folder_files import loads_weights
from skillmix.cluster.lease_actor import LeaseActor, require_same_versions
from skillmix.cluster.local_workers import LocalWorkers
from skillmix.errors import UserError, visible
from skillmix.experiment.plan import Settings
from skillmix.models.specs import ModelSpec, parse_spec, provider_of
from skillmix.runs.leases.driving import LentWork, LostWorker, UnreachableWorker, WorkerLink
from skillmix.runs.leases.lease import OwnerLetter, WorkerLetter
from skillmix.runs.leases.mailbox import Packet
from skillmix.runs.progress.terminal import say

_PROVIDERS: Final = ("anthropic", "openai", "scripted", "local", "bundled")
"""Providers whose models any machine can ask; those with weights are sent there."""
_START_S: Final = 180.0
"""Seconds that a worker may take to start."""
_END_S: Final = 5.0


class RayLink:
    """The way to an actor, for one step."""

    def __init__(self, actor: Any, step: int, work: Any, forget: Callable[[], object]) -> None:
        self._actor = actor
        self._step = step
        self._work = work
        self._forget = forget
        self._has_begun = False

    async def exchange(self, packet: Packet[OwnerLetter]) -> Packet[WorkerLetter]:
        """Hand a packet over and wait for the answer, however long that takes: a frozen actor may thaw."""
        from ray.exceptions import ActorDiedError, RayError, RayTaskError

        try:
            if not self._has_begun:
                await self._actor.begin.remote(self._step, self._work)
                self._has_begun = True
            answer: Packet[WorkerLetter] = await self._actor.exchange.remote(self._step, packet)
        except ActorDiedError:
            self._forget()
            raise LostWorker("its process or its machine has ended") from None
        except RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, UserError) else error from None
        except RayError as error:  # such as an answer that was lost with its node: the next exchange shows what holds
            raise UnreachableWorker(_first_line(error)) from None
        return answer


class RayWorkers:
    """One actor on each node of a cluster; the cluster is joined when a step first needs it."""

    def __init__(self, ray: Any, *, gpus: float = 1.0) -> None:
        self._ray = ray
        self._has_joined = False
        self._actors: dict[str, Any] = {}
        self._local = LocalWorkers(ray, gpus=gpus)
        self._step = 0

    def why_not(self, models: Mapping[str, Settings]) -> str | None:
        """Why the workers cannot ask these models: the model or its code may be on this machine only."""
        names = {parse_spec(str(settings.asked)).provider for settings in models.values()}.difference(_PROVIDERS)
        if not names:
            return None
        return f"workers cannot ask {' and '.join(f'{name}:' for name in sorted(names))} models"

    def announce(self, spec: ModelSpec) -> None:
        """Note which model the next step begins with; workers load it while they end this step."""
        self._local.announce(spec)

    async def links(self, work: LentWork) -> Mapping[str, WorkerLink]:
        """The ways to all workers; the first time, the cluster is joined and they are started."""
        if loads_weights(work.models):
            return await self._links_with_weights(work)
        if not self._actors:
            self._join()
            self._actors = _started(self._ray)
            count = "1 worker" if len(self._actors) == 1 else f"{len(self._actors)} workers"
            say(f"{count} on Ray")
        self._step += 1
        shared = self._ray.put(_with_shares(work, len(self._actors)))
        return {
            name: RayLink(actor, self._step, shared, partial(self._actors.pop, name, None))
            for name, actor in self._actors.items()
        }

    async def _links_with_weights(self, work: LentWork) -> Mapping[str, WorkerLink]:
        """The ways to the workers with local models, one for each GPU."""
        self._join()
        self._local.start()
        self._step += 1
        work = await self._local.with_files(_with_shares(work, len(self._local.actors)))
        shared = self._ray.put(work)
        return await self._local.links(work, lambda actor, forget: RayLink(actor, self._step, shared, forget))

    async def end_step(self) -> None:
        """Let actors leave the step; one that does not answer leaves it when it begins with the next."""
        ends = [asyncio.wrap_future(actor.end.remote(self._step).future()) for actor in self._all()]
        if ends:
            done, _ = await asyncio.wait(ends, timeout=_END_S)
            await asyncio.gather(*done, return_exceptions=True)

    def close(self) -> None:
        """End the actors; a cluster that was started here ends as well."""
        for actor in self._all():
            self._ray.kill(actor)
        if self._has_joined:
            self._ray.shutdown()

    def _all(self) -> list[Any]:
        return [*self._actors.values(), *self._local.actors]

    def _join(self) -> None:
        if self._ray.is_initialized():
            return
        address = os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        terminate = signal.getsignal(signal.SIGTERM)
        try:
            self._ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"The Ray cluster {address} cannot be joined: {_first_line(error)}.",
                hint="Check RAY_ADDRESS; without it, a cluster is started on this machine.",
            ) from None
        finally:
            with suppress(ValueError):  # in another thread than the main one, Ray could not replace it
                signal.signal(signal.SIGTERM, terminate)
        self._has_joined = True


@contextmanager
def ray_workers(*, gpus: float = 1.0) -> Iterator[RayWorkers]:
    """Workers on the cluster of RAY_ADDRESS, or on one that is started on this machine.

    A worker with local models takes `gpus` of a GPU: with 0.5, two share one.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed.", hint="Install it: pip install 'skillmix[ray]'.") from None
    workers = RayWorkers(ray, gpus=gpus)
    try:
        yield workers
    finally:
        workers.close()


def _with_shares(work: LentWork, workers: int) -> LentWork:
    """The work with each model's `concurrency` divided among the workers; each has at least one call in flight.

    The `concurrency` of a local model is the number of its slots on one device, so each worker has all of it.
    """
    models = {
        name: settings.model_copy(update={"concurrency": max(1, settings.concurrency // workers)})
        if settings.concurrency and not provider_of(str(settings.asked)).is_in_process
        else settings
        for name, settings in work.models.items()
    }
    return work._replace(models=models)


def _started(ray: Any) -> dict[str, Any]:
    """An actor on each node that has CPUs for work."""
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    nodes = [node for node in nodes if node["Resources"].get("CPU")] or nodes
    remote = ray.remote(LeaseActor)
    actors = {}
    for number, node in enumerate(sorted(nodes, key=lambda node: str(node["NodeID"])), 1):
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        # An actor counts as no CPU: it mostly waits for servers, and waits for no other job of the cluster.
        options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": strategy}
        actors[f"worker {number} ({node['NodeManagerAddress']})"] = remote.options(**options).remote()
    for name, actor in actors.items():
        try:
            versions = ray.get(actor.versions.remote(), timeout=_START_S)
        except RayError as error:
            raise UserError(
                f"{name} does not start: {_first_line(error)}.",
                hint="Every machine of the cluster needs the same skillmix and Python.",
            ) from None
        require_same_versions(name, versions)
    return actors


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return visible(lines[0]).rstrip(".:")
