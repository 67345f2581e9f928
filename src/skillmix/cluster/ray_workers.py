"""Workers on a Ray cluster: one actor on each node, which runs the scheduler over leases.

The driver asks each actor for its letters and never the other way round, so an actor that Ray has given up can write
nothing. Ray must not repeat an exchange by itself: letters have numbers, and the driver sends them again.
"""

import asyncio
import logging
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final

from skillmix import __version__
from skillmix.errors import UserError
from skillmix.experiment.plan import Settings
from skillmix.models.specs import parse_spec
from skillmix.runs.calling import max_open, opened_models
from skillmix.runs.leases.driving import LentWork, Link, LostWorker, UnreachableWorker
from skillmix.runs.leases.lease import OwnerLetter, WorkerLetter
from skillmix.runs.leases.mailbox import Packet
from skillmix.runs.leases.worker import LeaseWorker

_PROVIDERS: Final = ("anthropic", "openai", "scripted")
"""Providers whose models any machine can ask."""
_VERSIONS: Final = (__version__, platform.python_version_tuple()[:2])
"""Must be equal on all machines: the same code makes the same requests."""


class LeaseActor:
    """The worker of one node; Ray makes an actor of it."""

    def __init__(self) -> None:
        self._worker: LeaseWorker | None = None
        self._running: asyncio.Task[None] | None = None

    def versions(self) -> tuple[object, ...]:
        """The versions of skillmix and Python on this machine."""
        return _VERSIONS

    async def begin(self, work: LentWork) -> None:
        """Begin with a step: open its models and wait for leases."""
        await self.end()
        opened = AsyncExitStack()
        models = await opened_models(work.models, opened)
        worker = self._worker = LeaseWorker(models, work.conversations, max_open=max_open(work.models, models))
        for model in models.values():
            if (replicas := getattr(model, "replicas", None)) is not None:
                replicas.say = worker.say
        self._running = asyncio.create_task(_run(worker, opened))

    async def exchange(self, packet: Packet[OwnerLetter]) -> Packet[WorkerLetter]:
        """Exchange letters with the driver."""
        if self._worker is None:
            raise RuntimeError("no step has begun")
        return await self._worker.exchange(packet)

    async def end(self) -> None:
        """Leave the step."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._worker = self._running = None


async def _run(worker: LeaseWorker, opened: AsyncExitStack) -> None:
    async with opened:
        await worker.run()


class RayLink:
    """The way to an actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def exchange(self, packet: Packet[OwnerLetter]) -> Packet[WorkerLetter]:
        """Hand a packet over and wait for the answer, however long that takes: a frozen actor may thaw."""
        from ray.exceptions import ActorDiedError, ActorUnavailableError

        try:
            answer: Packet[WorkerLetter] = await self._actor.exchange.remote(packet)
        except ActorUnavailableError:
            raise UnreachableWorker from None
        except ActorDiedError as error:
            raise LostWorker(_first_line(error)) from None
        return answer


class RayWorkers:
    """One actor on each node of a cluster."""

    def __init__(self, actors: Mapping[str, Any]) -> None:
        self._actors = dict(actors)

    def why_not(self, models: Mapping[str, Settings]) -> str | None:
        """Why the workers cannot ask these models: a model may be a file of this machine, or its code may be."""
        others = {
            p for settings in models.values() if (p := parse_spec(str(settings.asked)).provider) not in _PROVIDERS
        }
        if not others:
            return None
        return f"workers cannot ask models of {' and '.join(f'{name}:' for name in sorted(others))}"

    async def links(self, work: LentWork) -> Mapping[str, Link]:
        """Let every actor begin; one that is lost is left out from now on."""
        from ray.exceptions import RayActorError

        shared = _with_shares(work, len(self._actors))
        begun = await asyncio.gather(
            *(actor.begin.remote(shared) for actor in self._actors.values()), return_exceptions=True
        )
        for name, outcome in zip(list(self._actors), begun, strict=True):
            if isinstance(outcome, RayActorError):
                del self._actors[name]
            elif isinstance(outcome, BaseException):
                raise outcome
        if not self._actors:
            raise UserError("All workers were lost.", hint="Check the cluster with: ray status.")
        return {name: RayLink(actor) for name, actor in self._actors.items()}

    async def end_step(self) -> None:
        """Let actors forget the step; one that does not answer forgets it when it begins with the next."""
        ends = [asyncio.wrap_future(actor.end.remote().future()) for actor in self._actors.values()]
        if ends:
            await asyncio.wait(ends, timeout=5)
            await asyncio.gather(*(end for end in ends if end.done()), return_exceptions=True)


def _with_shares(work: LentWork, workers: int) -> LentWork:
    """The work with each model's `concurrency` divided among the workers, so that all together keep it."""
    models = {
        name: settings.model_copy(update={"concurrency": max(1, settings.concurrency // workers)})
        if settings.concurrency
        else settings
        for name, settings in work.models.items()
    }
    return work._replace(models=models)


@contextmanager
def ray_workers() -> Iterator[RayWorkers]:
    """Join the cluster of RAY_ADDRESS, or start one on this machine, with one worker on each node."""
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed.", hint="Install it: pip install 'skillmix[ray]'.") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    was_there = ray.is_initialized()
    if not was_there:
        _join(ray)
    try:
        actors = _started(ray)
        try:
            yield RayWorkers(actors)
        finally:
            for actor in actors.values():
                ray.kill(actor)
    finally:
        if not was_there:
            ray.shutdown()


def _join(ray: Any) -> None:
    address = os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"The Ray cluster {address} cannot be joined: {_first_line(error)}.",
            hint="Check RAY_ADDRESS; without it, a cluster is started on this machine.",
        ) from None


def _started(ray: Any) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: str(node["NodeID"]))
    actor = ray.remote(LeaseActor)
    actors = {}
    for number, node in enumerate(nodes, 1):
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        # An actor with work takes no CPU in Ray's books: it mostly waits for servers.
        actors[f"worker {number} on {node['NodeManagerAddress']}"] = actor.options(
            num_cpus=0, max_restarts=0, max_task_retries=0, scheduling_strategy=strategy
        ).remote()
    for name, versions in zip(actors, ray.get([one.versions.remote() for one in actors.values()]), strict=True):
        if versions != _VERSIONS:
            raise UserError(
                f"{name} has skillmix {versions[0]} and Python {'.'.join(versions[1])}; "
                f"here are {_VERSIONS[0]} and {'.'.join(_VERSIONS[1])}.",
                hint="Install the same versions on all machines.",
            )
    return actors


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
