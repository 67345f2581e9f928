"""Workers on a Ray cluster: actors on its nodes, which run the scheduler over leases.

The driver asks each actor for its letters and never the other way round, so an actor that Ray has given up can write
nothing. Ray must not repeat an exchange by itself: letters have numbers, and the driver sends them again.
"""

import asyncio
import gc
import os
import pickle
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn

from skillmix.cluster.folder_files import CheckpointFiles, loads_weights
from skillmix.cluster.joining import join_cluster
from skillmix.cluster.local_workers import LocalTeam, ModelSender
from skillmix.cluster.node_workers import CallTeam, NodeWorkers, first_line
from skillmix.cluster.rank_group import gpus_of, run_on_ranks
from skillmix.errors import UserError
from skillmix.experiment.plan import Settings
from skillmix.models.specs import ModelSpec, parse_spec, provider_of
from skillmix.runs.leases.driving import LentWork, LostWorker, UnreachableWorker, WorkerLink
from skillmix.runs.leases.lease import OwnerLetter, WorkerLetter
from skillmix.runs.leases.mailbox import Packet
from skillmix.runs.leases.rank_work import RankWork
from skillmix.runs.progress import say

_PROVIDERS: Final = ("anthropic", "openai", "scripted", "local", "bundled")
"""Providers whose models any machine can ask; the weights of local ones are sent there."""
_END_S: Final = 5.0


class RayLink:
    """The way to an actor, for one step."""

    def __init__(
        self,
        actor: Any,
        step: int,
        work: Any,
        forget: Callable[[str], object],
        *,
        is_late: bool,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._actor = actor
        self._step = step
        self._work = work
        self._forget = forget
        """Is called when the actor is lost; with a reason if its node should get no other."""
        self._is_late = is_late
        self._prepare = prepare
        self._has_begun = False

    async def exchange(self, packet: Packet[OwnerLetter]) -> Packet[WorkerLetter]:
        """Hand a packet over and wait for the answer, however long that takes: a frozen actor may thaw."""
        from ray.exceptions import ActorDiedError, RayError, RayTaskError

        try:
            if not self._has_begun:
                if self._prepare is not None:
                    await self._prepare()
                await self._actor.begin.remote(self._step, self._work)
                self._has_begun = True
            # Ray would pickle a packet with a pickler of its own, which is several times as slow.
            answer: Packet[WorkerLetter] = pickle.loads(
                await self._actor.exchange.remote(self._step, pickle.dumps(packet, pickle.HIGHEST_PROTOCOL))
            )
        except ActorDiedError:
            self._forget("")
            raise LostWorker("its process or its machine has ended") from None
        except RayTaskError as error:
            self._raise(error.cause if isinstance(error.cause, UserError) else error)
        except UserError as error:
            self._raise(error)
        except RayError as error:  # such as an answer that was lost with its node: the next exchange shows what holds
            raise UnreachableWorker(first_line(error)) from None
        return answer

    def _raise(self, cause: Exception) -> NoReturn:
        """Raise a worker's error; a machine that came late and cannot begin, as without a key, stops nobody else."""
        if self._is_late and not self._has_begun:
            self._forget(first_line(cause))
            raise LostWorker(first_line(cause)) from None
        raise cause from None


class RayWorkers:
    """Actors on the nodes of a cluster; the cluster is joined when a step first needs it."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._has_joined = False
        self._call_workers = NodeWorkers(ray, say, CallTeam())
        self._local_workers = NodeWorkers(ray, say, LocalTeam())
        self._workers = self._call_workers
        """The workers of the present step."""
        self._models = ModelSender(ray)
        self._next_model: CheckpointFiles | None = None
        self._step = 0
        self._work: LentWork | None = None
        """The work of the present step."""
        self._shares: dict[str, Mapping[str, int]] = {}
        """By worker of the present step, how many calls it may have in flight, by the names of models with a limit."""

    def why_not(self, models: Mapping[str, Settings]) -> str | None:
        """Why the workers cannot ask these models: the model or its code may be on this machine only."""
        names = {parse_spec(str(settings.asked)).provider for settings in models.values()}.difference(_PROVIDERS)
        if not names:
            return None
        return f"workers cannot ask {' and '.join(f'{name}:' for name in sorted(names))} models"

    def announce(self, spec: ModelSpec) -> None:
        """Note which model the next step begins with; workers load it while they end this step."""
        self._models.announce(spec)

    async def links(self, work: LentWork) -> Mapping[str, WorkerLink]:
        """The ways to all workers; the first time, the cluster is joined and they are started."""
        self._choose_team(work)
        self._join()
        if not self._workers.has_started:
            await self._workers.start_first(work.workers)
            say(f"{_counted(self._workers)} on Ray")
        else:
            await self._workers.start_missing(work.workers)
        self._step += 1
        work, self._next_model = await self._models.begin(work)
        self._work = work
        workers = list(self._workers.actors)
        even = {name: max(1, limit // max(1, len(workers))) for name, limit in _limits(work).items()}
        self._shares = dict.fromkeys(workers, even)
        shared = self._ray.put(_with_shares(work, even))
        return {name: self._link(name, shared, is_late=False) for name in workers}

    async def newcomers(self) -> Mapping[str, WorkerLink]:
        """The ways to workers that have started since, on nodes that have joined or in the place of lost ones."""
        assert self._work is not None, "a step has begun"
        links = {}
        for name in await self._workers.start_missing(self._work.workers):
            say(f"{name} has come")
            present = [shares for worker, shares in self._shares.items() if worker in self._workers.actors]
            limits = _limits(self._work).items()
            rest = {model: max(1, limit - sum(shares[model] for shares in present)) for model, limit in limits}
            self._shares[name] = rest
            links[name] = self._link(name, self._ray.put(_with_shares(self._work, rest)), is_late=True)
        return links

    async def end_step(self) -> None:
        """Let actors leave the step; one that does not answer leaves it when it begins with the next."""
        await self._workers.stop_starting()
        await self._models.end_step()
        ends = [asyncio.wrap_future(actor.end.remote(self._step).future()) for actor in self._workers.actors.values()]
        if ends:
            done, _ = await asyncio.wait(ends, timeout=_END_S)
            await asyncio.gather(*done, return_exceptions=True)

    def run_ranks(self, work: RankWork) -> bool:
        """Train with ranks on the cluster; workers with models on GPUs end before, so that training has the GPUs."""
        self._join()
        has_gpus = gpus_of(self._ray) > 0
        if not has_gpus and work.ranks is None:
            return False
        if has_gpus:
            self._end_local_workers()
        elif self._work is not None and self._work.workers.cpus is not None:  # ranks need the CPUs of workers
            self._end_call_workers()
            self._end_local_workers()
        run_on_ranks(self._ray, work, has_gpus=has_gpus)
        return True

    def close(self) -> None:
        """End the actors; a cluster that was started here ends as well."""
        self._call_workers.close()
        self._local_workers.close()
        if self._has_joined:
            gc.unfreeze()  # a program that goes on may drop what it had
            self._ray.shutdown()

    def _choose_team(self, work: LentWork) -> None:
        """Take the workers that can ask the models of a step; those of other steps end if they hold CPUs."""
        is_local = loads_weights(work.models)
        workers = self._local_workers if is_local else self._call_workers
        if workers is not self._workers and work.workers.cpus is not None:
            (self._end_call_workers if is_local else self._end_local_workers)()
        self._workers = workers

    def _end_call_workers(self) -> None:
        """End workers that ask models elsewhere; a step that needs them starts them again."""
        self._call_workers.close()
        self._call_workers = NodeWorkers(self._ray, say, CallTeam())

    def _end_local_workers(self) -> None:
        """End workers with local models; a step that needs them starts them again."""
        self._local_workers.close()
        self._local_workers = NodeWorkers(self._ray, say, LocalTeam())

    def _link(self, name: str, shared: Any, *, is_late: bool) -> RayLink:
        actor = self._workers.actors[name]
        assert self._work is not None, "a step has begun"
        node = self._workers.node_of(name)
        prepare = self._models.preparing(name, actor, node, self._work, self._next_model) if self._work.files else None
        forget = partial(self._workers.forget, name)
        return RayLink(actor, self._step, shared, forget, is_late=is_late, prepare=prepare)

    def _join(self) -> None:
        if self._ray.is_initialized():
            return
        join_cluster(self._ray)
        self._has_joined = True
        _spare_collector()


def _spare_collector() -> None:
    """Let the garbage collector not look at the objects that exist now: rows that come from workers set it off often.

    Ray and the modules that it imports live as long as the process, and one look at them takes as long as storing a
    thousand rows.
    """
    gc.collect()
    gc.freeze()


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


def _limits(work: LentWork) -> dict[str, int]:
    """The `concurrency` of each model that has one: it counts for all workers together.

    That of a local model is the number of its slots on one device, so each worker has all of it.
    """
    return {
        name: settings.concurrency
        for name, settings in work.models.items()
        if settings.concurrency and not provider_of(str(settings.asked)).is_in_process
    }


def _counted(workers: NodeWorkers) -> str:
    count = len(workers.actors)
    return f"{count} {workers.label}" + ("" if count == 1 else "s")


def _with_shares(work: LentWork, shares: Mapping[str, int]) -> LentWork:
    """The work with one worker's shares in the place of each model's `concurrency`."""
    models = {
        name: settings.model_copy(update={"concurrency": shares[name]}) if name in shares else settings
        for name, settings in work.models.items()
    }
    return work._replace(models=models)
