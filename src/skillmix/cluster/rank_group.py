"""Trainings on a Ray cluster: one actor for each rank, all started again from the last checkpoint if one is lost."""

import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skillmix.cluster.folder_files import FolderFiles, files_of
from skillmix.cluster.folder_sender import FolderSender
from skillmix.cluster.lease_actor import VERSIONS
from skillmix.cluster.node_workers import first_line
from skillmix.cluster.rank_actor import RankActor, RankPlace
from skillmix.cluster.rank_collector import Collector, MachineFolder, given_folders
from skillmix.errors import UserError, visible
from skillmix.hashing import short_id
from skillmix.runs.leases.rank_work import OWN_DISKS, RankWork
from skillmix.runs.progress import say

_MOST_RESTARTS: Final = 3
"""Starts in a row that may bring no new checkpoint before a training is given up."""
_START_S: Final = 180.0
"""Seconds that the ranks may take to start; GPUs of a worker that has just ended are free after a moment."""
_LOOK_S: Final = 0.5
_COLLECT_S: Final = 1.0
"""Seconds between two looks for a new checkpoint on machines with their own disks."""
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
        self._collector: Collector | None = None
        """Brings files to the driver, if the machines do not share its disk."""
        self._collected_at = 0.0
        self._there = ""
        """The folder of the training on the machine of the first rank."""

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
        self._require_paths(work, ranks)
        base = files_of(work.base)
        self._provide(ranks, base.folders)
        payload = self._ray.put(work.payload)
        environments = _environments([rank.place for rank in ranks], has_gpus=self._has_gpus)
        folders = dict.fromkeys((rank.place.node for rank in ranks), work.folder)
        if not shares_disk(self._ray, work.folder, [rank.actor for rank in ranks]):
            folders = self._set_up(work, ranks)
            environments = [environment | {OWN_DISKS: "1"} for environment in environments]
        self._there = str(folders[ranks[0].place.node])
        training = [
            rank.actor.train.remote(environment, work.train, base, folders[rank.place.node], payload)
            for rank, environment in zip(ranks, environments, strict=True)
        ]
        count = "1 rank" if self._count == 1 else f"{self._count} ranks"
        say(f"{work.step}: {count} on Ray")
        self._watch(work, ranks, training)
        if self._collector is not None:
            self._collected(self._collector.finish, is_last=True)

    def _set_up(self, work: RankWork, ranks: Sequence[_Rank]) -> dict[str, Path]:
        """A folder on each machine, with what the training goes on from; by node."""
        given = given_folders(work)
        self._provide(ranks, [files for _, files in given])
        key = short_id("training", platform.node(), str(work.folder))
        first_here = _first_on_nodes(ranks)
        asked = [rank.actor.own_folder.remote(key) for rank in first_here]
        machines = [
            MachineFolder(rank.actor, folder) for rank, folder in zip(first_here, self._answers(asked), strict=True)
        ]
        self._answers([machine.actor.set_up.remote(machine.folder, given) for machine in machines])
        self._collector = Collector(self._ray, work, machines)
        return {rank.place.node: machine.folder for rank, machine in zip(first_here, machines, strict=True)}

    def _answers(self, asked: Sequence[Any]) -> Any:
        """The answers of actors before training begins."""
        from ray.exceptions import RayError, RayTaskError

        try:
            return self._ray.get(list(asked))
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, UserError) else error from None
        except RayError as error:
            raise LostRank(f"a rank was lost ({first_line(error)})") from None

    def _collected(self, bring: Callable[[], None], *, is_last: bool) -> None:
        """Bring files to the driver; files that training has just removed are brought with the next checkpoint."""
        from ray.exceptions import RayError, RayTaskError

        try:
            bring()
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UserError):
                raise cause from None
            if is_last:
                raise UserError(
                    f"The trained model cannot be brought: {type(cause).__name__}: {visible(str(cause))}.",
                    hint="Run the same command again; training goes on from its last checkpoint.",
                ) from None
        except RayError as error:
            raise LostRank(f"a machine was lost ({first_line(error)})") from None

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

    def _provide(self, ranks: Sequence[_Rank], folders: Sequence[FolderFiles]) -> None:
        """Let every machine have some folders."""
        from ray.exceptions import RayError, RayTaskError

        async def provide() -> None:
            sender = FolderSender(self._ray)
            await asyncio.gather(
                *(
                    sender.provide(rank.actor, rank.place.node, folders, name=rank.place.address)
                    for rank in _first_on_nodes(ranks)
                )
            )

        try:
            asyncio.run(provide())
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, UserError) else error from None
        except RayError as error:
            raise LostRank(f"a rank was lost ({first_line(error)})") from None

    def _require_paths(self, work: RankWork, ranks: Sequence[_Rank]) -> None:
        answers = self._answers([rank.actor.missing.remote(work.paths) for rank in ranks])
        for rank, missing in zip(ranks, answers, strict=True):
            if missing:
                raise UserError(
                    f"{work.step}: {rank.place.address} does not see {', '.join(missing[:3])}.",
                    hint="Put the replayed texts at a path that all machines of the training see.",
                )

    def _watch(self, work: RankWork, ranks: Sequence[_Rank], training: Sequence[Any]) -> None:
        """Show the first rank's events until all ranks have ended; the first failure ends all."""
        waiting = dict(zip(training, range(len(training)), strict=True))
        while waiting:
            done, _ = self._ray.wait(list(waiting), timeout=_LOOK_S)
            self._show(work, ranks[0])
            if self._collector is not None and time.monotonic() - self._collected_at > _COLLECT_S:
                self._collected(self._collector.collect, is_last=False)
                self._collected_at = time.monotonic()
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
            if event[0] != "say":
                work.on_event(event)
            elif (line := str(event[1][0])).startswith(f"{work.step}: "):  # other lines are of packages
                work.on_event(("say", (line.replace(self._there, str(work.folder)),), {}))

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


def shares_disk(ray: Any, folder: Path, actors: Sequence[Any]) -> bool:
    """Whether the machines of all actors see a folder of the driver, and so can train in it."""
    from ray.exceptions import RayError

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".seen-") as mark:
        try:
            missing = ray.get([actor.missing.remote((mark.name,)) for actor in actors])
        except RayError as error:
            raise LostRank(f"a rank was lost ({first_line(error)})") from None
    return not any(missing)


def _first_on_nodes(ranks: Sequence[_Rank]) -> list[_Rank]:
    """One rank of each machine; that of the first rank comes first."""
    first: dict[str, _Rank] = {}
    for rank in ranks:
        first.setdefault(rank.place.node, rank)
    return list(first.values())


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
