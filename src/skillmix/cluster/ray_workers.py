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

from skillmix.cluster.lease_actor import VERSIONS, LeaseActor
from skillmix.errors import UserError, visible
from skillmix.experiment.plan import Settings
from skillmix.experiment.worker_settings import WorkerSettings
from skillmix.models.specs import parse_spec
from skillmix.runs.leases.driving import LentWork, LostWorker, UnreachableWorker, WorkerLink
from skillmix.runs.leases.lease import OwnerLetter, WorkerLetter
from skillmix.runs.leases.mailbox import Packet
from skillmix.runs.progress.terminal import say

_PROVIDERS: Final = ("anthropic", "openai", "scripted")
"""Providers whose models any machine can ask."""
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

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._has_joined = False
        self._actors: dict[str, Any] = {}
        self._step = 0

    def why_not(self, models: Mapping[str, Settings]) -> str | None:
        """Why the workers cannot ask these models: the model or its code may be on this machine only."""
        names = {parse_spec(str(settings.asked)).provider for settings in models.values()}.difference(_PROVIDERS)
        if not names:
            return None
        return f"workers cannot ask {' and '.join(f'{name}:' for name in sorted(names))} models"

    async def links(self, work: LentWork) -> Mapping[str, WorkerLink]:
        """The ways to all workers; the first time, the cluster is joined and they are started."""
        if not self._actors:
            self._join()
            self._actors = _started(self._ray, work.workers)
            count = "1 worker" if len(self._actors) == 1 else f"{len(self._actors)} workers"
            say(f"{count} on Ray")
        self._step += 1
        shared = self._ray.put(_with_shares(work, len(self._actors)))
        return {
            name: RayLink(actor, self._step, shared, partial(self._actors.pop, name, None))
            for name, actor in self._actors.items()
        }

    async def end_step(self) -> None:
        """Let actors leave the step; one that does not answer leaves it when it begins with the next."""
        ends = [asyncio.wrap_future(actor.end.remote(self._step).future()) for actor in self._actors.values()]
        if ends:
            done, _ = await asyncio.wait(ends, timeout=_END_S)
            await asyncio.gather(*done, return_exceptions=True)

    def close(self) -> None:
        """End the actors; a cluster that was started here ends as well."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        if self._has_joined:
            self._ray.shutdown()

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
def ray_workers() -> Iterator[RayWorkers]:
    """Workers on the cluster of RAY_ADDRESS, or on one that is started on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed.", hint="Install it: pip install 'skillmix[ray]'.") from None
    workers = RayWorkers(ray)
    try:
        yield workers
    finally:
        workers.close()


def _with_shares(work: LentWork, workers: int) -> LentWork:
    """The work with each model's `concurrency` divided among the workers; each has at least one call in flight."""
    models = {
        name: settings.model_copy(update={"concurrency": max(1, settings.concurrency // workers)})
        if settings.concurrency
        else settings
        for name, settings in work.models.items()
    }
    return work._replace(models=models)


def _started(ray: Any, settings: WorkerSettings) -> dict[str, Any]:
    """An actor on each node that has CPUs for work; with `cpus`, as many actors as fit on each node."""
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    nodes = [node for node in nodes if node["Resources"].get("CPU")] or nodes
    remote = ray.remote(LeaseActor)
    actors = {}
    places = [
        node for node in sorted(nodes, key=lambda node: str(node["NodeID"])) for _ in range(_places(node, settings))
    ]
    if not places:
        raise UserError(
            f"No node of the cluster has the {settings.cpus:g} CPUs of a worker.",
            hint="Lower workers.cpus, or start Ray with more CPUs (ray start --num-cpus).",
        )
    for number, node in enumerate(places, 1):
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        # Unless the user says otherwise, an actor counts as no CPU: it mostly waits for servers, and waits for no
        # other job of the cluster.
        options = {
            "num_cpus": settings.cpus or 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": strategy,
        }
        actors[f"worker {number} ({node['NodeManagerAddress']})"] = remote.options(**options).remote()
    for name, actor in actors.items():
        try:
            versions = ray.get(actor.versions.remote(), timeout=_START_S)
        except RayError as error:
            raise UserError(
                f"{name} does not start: {_first_line(error)}.",
                hint="Every machine of the cluster needs the same skillmix and Python.",
            ) from None
        if versions != VERSIONS:
            raise UserError(
                f"{name} has skillmix {versions[0]} with Python {versions[1]}, and this machine has "
                f"{VERSIONS[0]} with Python {VERSIONS[1]}.",
                hint="Install the same versions on all machines.",
            )
    return actors


def _places(node: Mapping[str, Any], settings: WorkerSettings) -> int:
    """How many workers a node has."""
    return 1 if settings.cpus is None else int(node["Resources"].get("CPU", 0) // settings.cpus)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return visible(lines[0]).rstrip(".:")
