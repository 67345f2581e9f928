"""Trainings on a Ray cluster: one actor for each rank, all started again from the last checkpoint if one is lost."""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skillmix.cluster.folder_files import CheckpointFiles, files_of
from skillmix.cluster.folder_sender import FolderSender
from skillmix.cluster.lease_actor import VERSIONS
from skillmix.cluster.node_workers import first_line
from skillmix.cluster.rank_actor import RankActor, RankPlace
from skillmix.errors import UserError, visible
from skillmix.runs.leases.rank_work import RankWork
from skillmix.runs.progress.terminal import say

_MOST_RESTARTS: Final = 3
"""Starts in a row that may bring no new checkpoint before a training is given up."""
_START_S: Final = 180.0
"""Seconds that the ranks may take to start; GPUs of a worker that has just ended are free after a moment."""
_LOOK_S: Final = 0.5
_GATHER_S: Final = 15.0
"""Seconds to wait for the end of a lost rank's process after another rank has lost its connection to it."""


class LostRank(Exception):
    """A rank is gone, or its machine."""


def run_on_ranks(ray: Any, work: RankWork, *, has_gpus: bool) -> None:
    """Train to the end; when a rank is lost, go on from the last checkpoint with the ranks that the cluster has."""
    failures, saved = 0, work.steps_saved()
    while True:
        count = _count(ray, work, has_gpus=has_gpus, is_first=failures == 0)
        try:
            with _Group(ray, count, has_gpus=has_gpus) as group:
                group.train(work)
            return
        except LostRank as error:
            before, saved = saved, work.steps_saved()
            failures = 1 if saved > before else failures + 1
            if failures > _MOST_RESTARTS:
                raise UserError(
                    f"{work.step}: {failures} times in a row a rank was lost before a new checkpoint: {error}.",
                    hint="Look at the memory of the nodes, and set checkpoint_every lower. The same command goes on.",
                ) from None
            where = f"after step {saved}" if saved else "from the start"
            say(f"{work.step}: {error}; training goes on {where}")


def gpus_of(ray: Any) -> int:
    """The GPUs of the cluster; none if SKILLMIX_DEVICE chooses CPUs."""
    if os.environ.get("SKILLMIX_DEVICE", "cuda") != "cuda":
        return 0
    return _offered(ray, "GPU")


def _offered(ray: Any, resource: str) -> int:
    return sum(int(node["Resources"].get(resource, 0)) for node in ray.nodes() if node["Alive"])


def _count(ray: Any, work: RankWork, *, has_gpus: bool, is_first: bool) -> int:
    """The number of ranks: as the file says, else one for each GPU; after a loss no more than are left."""
    kind = "GPU" if has_gpus else "CPU"
    offered = _offered(ray, kind)
    wanted = work.ranks or offered
    if is_first and wanted > offered:
        raise UserError(
            f"{work.step}: ranks is {wanted}, and the cluster offers {offered} {kind}s.",
            hint=f"Lower ranks, or start Ray with more {kind}s (ray start --num-{kind.lower()}s).",
        )
    return max(1, min(wanted, offered))


@dataclass(frozen=True, slots=True)
class _Rank:
    actor: Any
    place: RankPlace


class _Group:
    """The ranks of one start."""

    def __init__(self, ray: Any, count: int, *, has_gpus: bool) -> None:
        self._ray, self._count, self._has_gpus = ray, count, has_gpus
        self._actors: list[Any] = []
        self._group: Any = None

    def __enter__(self) -> "_Group":
        return self

    def __exit__(self, *problem: object) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        if self._group is not None:
            from ray.util import remove_placement_group

            remove_placement_group(self._group)

    def train(self, work: RankWork) -> None:
        """Start the ranks, and wait until all have trained to the end."""
        ranks = self._started(work)
        base = files_of(work.base)
        self._provide(work, ranks, base)
        self._require_paths(work, ranks)
        payload = self._ray.put(work.payload)
        environments = _environments([rank.place for rank in ranks], has_gpus=self._has_gpus)
        training = [
            rank.actor.train.remote(environment, work.train, base, work.folder, payload)
            for rank, environment in zip(ranks, environments, strict=True)
        ]
        count = "1 rank" if self._count == 1 else f"{self._count} ranks"
        say(f"{work.step}: {count} on Ray")
        self._watch(work, ranks, training)

    def _started(self, work: RankWork) -> list[_Rank]:
        from ray.exceptions import RayError
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"GPU": 1} if self._has_gpus else {"CPU": 1}
        self._group = placement_group([bundle] * self._count, strategy="PACK")
        if not self._group.wait(_START_S):
            raise UserError(
                f"{work.step}: the cluster has no room for {self._count} ranks.",
                hint="Wait for the other jobs of the cluster, or lower ranks.",
            )
        remote = self._ray.remote(RankActor)
        for index in range(self._count):
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            resources = {"num_cpus": 0, "num_gpus": 1} if self._has_gpus else {"num_cpus": 1}
            options = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 4, "scheduling_strategy": strategy}
            self._actors.append(remote.options(**resources, **options).remote())
        try:
            places = self._ray.get([actor.place.remote() for actor in self._actors], timeout=_START_S)
        except RayError as error:
            raise LostRank(f"a rank does not start ({first_line(error)})") from None
        for place in places:
            if place.versions != VERSIONS:
                raise UserError(
                    f"{place.address} has skillmix {place.versions[0]} with Python {place.versions[1]}.",
                    hint="Install the same versions on all machines.",
                )
        return list(map(_Rank, self._actors, places))

    def _provide(self, work: RankWork, ranks: Sequence[_Rank], base: CheckpointFiles) -> None:
        """Let every machine have the base model."""
        from ray.exceptions import RayActorError, RayTaskError

        async def provide() -> None:
            sender = FolderSender(self._ray)
            first_here = {rank.place.node: rank for rank in ranks}
            await asyncio.gather(
                *(
                    sender.provide(rank.actor, node, base.folders, name=rank.place.address)
                    for node, rank in first_here.items()
                )
            )

        try:
            asyncio.run(provide())
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, UserError) else error from None
        except RayActorError as error:
            raise LostRank(f"a rank was lost ({first_line(error)})") from None

    def _require_paths(self, work: RankWork, ranks: Sequence[_Rank]) -> None:
        paths = (str(work.folder), *work.paths)
        for rank in ranks:
            missing = self._ray.get(rank.actor.missing.remote(paths))
            if missing:
                raise UserError(
                    f"{work.step}: {rank.place.address} does not see {', '.join(missing[:3])}.",
                    hint="Put the run and the replayed texts on a disk that all machines of the training share.",
                )

    def _watch(self, work: RankWork, ranks: Sequence[_Rank], training: Sequence[Any]) -> None:
        """Show the first rank's events until all ranks have ended; the first failure ends all."""
        waiting = dict(zip(training, range(len(training)), strict=True))
        while waiting:
            done, _ = self._ray.wait(list(waiting), timeout=_LOOK_S)
            self._show(work, ranks[0])
            for one in done:
                number = waiting.pop(one)
                problem = self._problem(one, ranks[number], number)
                if problem is not None:
                    raise self._first_problem(problem, waiting, ranks)
        self._show(work, ranks[0])

    def _show(self, work: RankWork, first: _Rank) -> None:
        from ray.exceptions import RayError

        try:
            events = self._ray.get(first.actor.events.remote(), timeout=_GATHER_S)
        except RayError:  # its training shows what is wrong
            return
        for event in events:
            if event[0] != "say" or str(event[1][0]).startswith(f"{work.step}: "):
                work.on_event(event)

    def _problem(self, ended: Any, rank: _Rank, number: int) -> Exception | None:
        """What ended a rank before its time: `LostRank`, an error for the user, or another that may have followed."""
        from ray.exceptions import RayActorError, RayError, RayTaskError

        try:
            self._ray.get(ended)
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UserError):
                return cause
            kind = f"{type(cause).__name__}: {cause}" if cause is not None else first_line(error)
            return RuntimeError(f"rank {number} on {rank.place.address} failed: {visible(kind.splitlines()[0])}")
        except RayActorError:
            return LostRank(f"rank {number} on {rank.place.address} was lost")
        except RayError as error:
            return LostRank(f"rank {number} on {rank.place.address} was lost ({first_line(error)})")
        return None

    def _first_problem(self, problem: Exception, waiting: Mapping[Any, int], ranks: Sequence[_Rank]) -> Exception:
        """The cause of a failure: a rank that loses its connection to another fails before Ray reports the other."""
        if isinstance(problem, UserError | LostRank):
            return problem
        until = time.monotonic() + _GATHER_S
        rest = dict(waiting)
        while rest and time.monotonic() < until:
            done, _ = self._ray.wait(list(rest), timeout=_LOOK_S)
            for one in done:
                number = rest.pop(one)
                other = self._problem(one, ranks[number], number)
                if isinstance(other, UserError | LostRank):
                    return other
        return UserError(f"{problem}.", hint="Ray's log files of that process have the whole message.")


def _environments(places: Sequence[RankPlace], *, has_gpus: bool) -> list[dict[str, str]]:
    """What torchrun would put into the environment of each rank. Ranks of one machine see each other's GPUs."""
    on_node: dict[str, list[int]] = {}
    for number, place in enumerate(places):
        on_node.setdefault(place.node, []).append(number)
    result = []
    for number, place in enumerate(places):
        here = on_node[place.node]
        environment = {
            "RANK": str(number),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(here.index(number)),
            "MASTER_ADDR": places[0].address if len(on_node) > 1 else "127.0.0.1",
            "MASTER_PORT": str(places[0].port),
            "SKILLMIX_DEVICE": "cuda" if has_gpus else "cpu",
            "PWD": str(Path.cwd()),
        }
        if has_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu for other in here for gpu in places[other].gpus)
        result.append(environment)
    return result
