"""The workers on the nodes of a Ray cluster: started on each node, and again where one was lost and its node lives."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from skillmix.cluster.devices import DeviceShare
from skillmix.cluster.lease_actor import VERSIONS, LeaseActor
from skillmix.errors import UserError, visible
from skillmix.experiment.experiment import WorkerSettings

_START_S: Final = 180.0
"""Seconds that a worker may take to start."""
_LOOK_S: Final = 0.5
"""Seconds to wait for workers that are being started, before others are looked at again."""
_MOST_LOST: Final = 5
"""Workers of a node that may be lost or fail to start in a row before the node gets no more."""
_FIRST_WAIT_S: Final = 1.0
"""Seconds before a lost worker is replaced; doubled with each that is lost soon."""
_LONG_LIFE_S: Final = 600.0
"""A worker that is lost after so many seconds was not lost because of its node."""

_SAME: Final = "Every machine of the cluster needs the same skillmix, Python and RAY_AUTH_MODE."
_ROOM: Final = f"`ray status` shows whether another job has the CPUs or GPUs of that node. {_SAME}"
_SAME_VERSIONS: Final = "Install the same versions on all machines."


@dataclass
class _Node:
    """What became of the workers of one node."""

    address: str
    lost: int = 0
    """Workers that were lost soon, or did not start, in a row."""
    not_before: float = 0.0
    """When the next worker may be started."""
    is_given_up: bool = False
    workers: set[str] = field(default_factory=set)
    """Workers that live or are being started."""


class Team(Protocol):
    """A kind of worker: on which nodes it works, and how many of it."""

    @property
    def label(self) -> str:
        """What a worker is called, before its number."""
        ...

    def nodes(self, nodes: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Those of the nodes that have such workers."""
        ...

    def places(self, node: Mapping[str, Any], settings: WorkerSettings) -> int:
        """How many such workers a node has."""
        ...

    def options(self, settings: WorkerSettings) -> Mapping[str, Any]:
        """What a worker takes of its node, in Ray's words."""
        ...

    def share(self, settings: WorkerSettings) -> DeviceShare | None:
        """What a worker with local models may use."""
        ...

    def no_place(self, settings: WorkerSettings) -> UserError:
        """The error if no node has a place for such a worker."""
        ...


class CallTeam:
    """Workers that ask models elsewhere: one on each node with CPUs, or as many as `cpus` lets fit."""

    label = "worker"

    def nodes(self, nodes: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Nodes with CPUs, if any node has some."""
        return [node for node in nodes if node["Resources"].get("CPU")] or nodes

    def places(self, node: Mapping[str, Any], settings: WorkerSettings) -> int:
        """One, or as many as fit."""
        return 1 if settings.cpus is None else int(node["Resources"].get("CPU", 0) // settings.cpus)

    def options(self, settings: WorkerSettings) -> Mapping[str, Any]:
        """Unless the user says otherwise, no CPU: a worker mostly waits for servers, and for no other job."""
        return {"num_cpus": settings.cpus or 0}

    def share(self, settings: WorkerSettings) -> DeviceShare | None:
        """None: such a worker loads no model."""
        return None

    def no_place(self, settings: WorkerSettings) -> UserError:
        """The error if no node is large enough."""
        if settings.cpus is None:
            return UserError("The Ray cluster has no node.", hint="Start one: ray start --address=HOST:PORT.")
        return no_room(settings.cpus)


def no_room(cpus: float) -> UserError:
    """The error if no node has the CPUs of a worker."""
    return UserError(
        f"No node of the cluster has the {cpus:g} CPUs of a worker.",
        hint="Lower workers.cpus, or start Ray with more CPUs (ray start --num-cpus).",
    )


class NodeWorkers:
    """The actors of a cluster by their names; a name is used once."""

    def __init__(self, ray: Any, say: Callable[[str], None], team: Team | None = None) -> None:
        self._team = team or CallTeam()
        self._ray = ray
        self._say = say
        self._nodes: dict[str, _Node] = {}
        self._started = 0
        self._since: dict[str, float] = {}
        self._starting: set[asyncio.Task[str | None]] = set()
        self.actors: dict[str, Any] = {}

    @property
    def has_started(self) -> bool:
        """Whether workers were started before; since then, those that are missing are waited for."""
        return self._started > 0

    async def start_first(self, settings: WorkerSettings) -> list[str]:
        """Start workers on all nodes; one that does not start is an error, before any call is made."""
        places = self._places(settings, await self._all_nodes())
        if not places:
            raise self._team.no_place(settings)
        return [name for name in await asyncio.gather(*self._starts(places, settings, is_first=True)) if name]

    async def start_missing(self, settings: WorkerSettings) -> list[str]:
        """Begin to start workers on nodes that have joined, and in the place of lost ones.

        The names of workers that have started since the last time are returned; a slow node delays no other.
        """
        from ray.exceptions import RayError

        try:
            nodes = await self._all_nodes()
        except (RayError, OSError, RuntimeError):  # the head is busy or away; it is asked again
            nodes = []
        places = self._places(settings, nodes)
        self._starting.update(map(asyncio.create_task, self._starts(places, settings, is_first=False)))
        if self._starting:
            await asyncio.wait(self._starting, timeout=_LOOK_S)
        done = {start for start in self._starting if start.done()}
        self._starting -= done
        alive = [self._nodes[node["NodeID"]] for node in nodes if node["NodeID"] in self._nodes]
        if not self.actors and alive and all(node.is_given_up for node in alive):
            raise UserError(
                f"{_MOST_LOST} workers in a row were lost on each node of the cluster.",
                hint="Look at the memory of the nodes and at the log files of Ray. Finished calls are kept.",
            )
        return [name for name in (start.result() for start in done) if name]

    async def stop_starting(self) -> None:
        """Wait for no worker any more that has not started."""
        starting, self._starting = self._starting, set()
        for start in starting:
            start.cancel()
        await asyncio.gather(*starting, return_exceptions=True)

    def forget(self, worker: str, why: str = "") -> None:
        """Note that a worker is lost; with a reason, its node gets no other."""
        actor = self.actors.pop(worker, None)
        if actor is None:
            return
        node = next(node for node in self._nodes.values() if worker in node.workers)
        node.workers.remove(worker)
        if why:
            self._ray.kill(actor)
            self._give_up(node, why)
        else:
            self._note_lost(node, time.monotonic() - self._since.pop(worker, 0.0))

    @property
    def label(self) -> str:
        """What a worker is called."""
        return self._team.label

    def cpus_of(self, node: Mapping[str, Any], settings: WorkerSettings) -> float:
        """The CPUs that the workers of a node take, as Ray counts them."""
        return self._team.places(node, settings) * (settings.cpus or 0.0)

    def node_of(self, worker: str) -> str:
        """The id of a worker's node."""
        return next(node_id for node_id, node in self._nodes.items() if worker in node.workers)

    def close(self) -> None:
        """End all workers."""
        for actor in self.actors.values():
            self._ray.kill(actor)
        self.actors.clear()

    def _places(self, settings: WorkerSettings, nodes: Iterable[Mapping[str, Any]]) -> list[str]:
        """The ids of nodes that lack workers, each as often as it lacks one."""
        places = []
        for node in nodes:
            wanted = self._team.places(node, settings)
            known = self._nodes.setdefault(node["NodeID"], _Node(visible(str(node["NodeManagerAddress"]))))
            if not known.is_given_up and time.monotonic() >= known.not_before:
                places += [node["NodeID"]] * (wanted - len(known.workers))
        return places

    def _starts(
        self, places: Iterable[str], settings: WorkerSettings, *, is_first: bool
    ) -> Iterator[Coroutine[Any, Any, str | None]]:
        for node_id in places:
            self._started += 1
            name = f"{self._team.label} {self._started} ({self._nodes[node_id].address})"
            self._nodes[node_id].workers.add(name)
            yield self._start(name, node_id, settings, is_first=is_first)

    async def _start(self, name: str, node_id: str, settings: WorkerSettings, *, is_first: bool) -> str | None:
        """Start a worker; its name, or None if it does not start and is not one of the first."""
        node = self._nodes[node_id]
        actor = _actor(self._ray, node_id, settings, self._team)
        try:
            problem = await _start_problem(actor, name)
            if problem is None:
                self.actors[name] = actor
                self._since[name] = time.monotonic()
                return name
        finally:
            if name not in self.actors:
                node.workers.discard(name)
                self._ray.kill(actor)
        if is_first:
            raise problem
        if problem.hint == _SAME_VERSIONS:
            self._give_up(node, problem.message)
        else:
            self._note_lost(node, 0.0)
        return None

    async def _all_nodes(self) -> Sequence[Mapping[str, Any]]:
        """The nodes that live and have such workers, in the order of their ids."""
        nodes = [node for node in await asyncio.to_thread(self._ray.nodes) if node["Alive"]]
        return sorted(self._team.nodes(nodes), key=lambda node: str(node["NodeID"]))

    def _note_lost(self, node: _Node, lived: float) -> None:
        node.lost = 1 if lived >= _LONG_LIFE_S else node.lost + 1
        node.not_before = time.monotonic() + _FIRST_WAIT_S * 2.0 ** (node.lost - 1)
        if node.lost >= _MOST_LOST:
            self._give_up(node, f"{_MOST_LOST} workers in a row were lost there")

    def _give_up(self, node: _Node, why: str) -> None:
        if not node.is_given_up:
            node.is_given_up = True
            self._say(f"the node {node.address} gets no more workers: {why.rstrip('.')}")


def _actor(ray: Any, node_id: str, settings: WorkerSettings, team: Team) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Ray must not start it again by itself: the driver would not know that its leases are lost.
    options = {
        **team.options(settings),
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
    }
    return ray.remote(LeaseActor).options(**options).remote(team.share(settings))


async def _start_problem(actor: Any, name: str) -> UserError | None:
    """Wait until a worker has started; what is wrong with it, if anything."""
    from ray.exceptions import RayError

    try:
        async with asyncio.timeout(_START_S):
            versions = await actor.versions.remote()
    except TimeoutError:
        return UserError(f"{name} does not start: no answer in {_START_S:g} s.", hint=_ROOM)
    except RayError as error:
        return UserError(f"{name} does not start: {first_line(error)}.", hint=_SAME)
    if versions != VERSIONS:
        return UserError(
            f"{name} has skillmix {versions[0]} with Python {versions[1]}, and this machine has "
            f"{VERSIONS[0]} with Python {VERSIONS[1]}.",
            hint=_SAME_VERSIONS,
        )
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error, which Ray makes long."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return visible(lines[0]).rstrip(".:")
