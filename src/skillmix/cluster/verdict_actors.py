"""Verdicts by code on the other nodes of a Ray cluster, so that the driver has its cores for the journal.

A verdict is a pure function of a text, its catalogue and the checkers of installed packages; a machine with other
packages is not asked. Work that is lost with an actor is done by the driver, and an actor that lives on after it was
given up can harm nothing.
"""

import pickle
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar, cast

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.own_code import Trust, trust_here
from skillmix.cluster.lease_actor import VERSIONS
from skillmix.render.wording import plural
from skillmix.runs.judging.worker_pool import judge_with
from skillmix.runs.progress.terminal import say
from skillmix.runs.reading.decisions import code_version

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_MOST_ACTORS: Final = 16
"""Together they decide about 50,000 texts a second, far more than one driver stores."""
_LOOK_EVERY_S: Final = 5.0
"""Seconds between two looks at the nodes of the cluster."""
_START_S: Final = 20.0
"""Seconds for which the driver expects the first actors; in the meantime it decides texts itself."""
_PATIENCE_S: Final = 30.0
"""Seconds for which an actor with work may not answer; one batch takes about 0.02 s."""
_MOST_LOST: Final = 3
"""Actors of a node that may be lost before the node gets no more."""


class VerdictActor:
    """Decides texts on one node; Ray makes an actor of it."""

    def __init__(self, catalog: Catalog, trust: Trust) -> None:
        judge_with(catalog, trust)

    def versions(self) -> tuple[str, ...]:
        """The versions of skillmix, Python and all checkers on this machine."""
        return versions_here()

    def do(self, work: bytes) -> bytes:
        """Call a function of this package; the work and its result are pickled."""
        function, arguments, named = pickle.loads(work)
        return pickle.dumps(function(*arguments, **named), pickle.HIGHEST_PROTOCOL)


def versions_here() -> tuple[str, ...]:
    """What must be equal on two machines so that code on them decides the same."""
    return (*VERSIONS, code_version())


@dataclass(slots=True, eq=False)
class _Judge:
    """An actor as the driver knows it."""

    actor: Any
    node: str
    versions: "Future[tuple[str, ...]]"
    """What it answers once it has started."""
    is_ready: bool = False
    under_way: int = 0
    heard: float = 0.0
    """When it last answered, or was given work."""

    def hear(self, _: object = None) -> None:
        """Note that it lives now."""
        self.heard = time.monotonic()


class VerdictActors:
    """The actors for one catalogue; one thread uses them. They start when it is first asked whether they are there."""

    def __init__(self, ray: Any, catalog: Catalog, free_cpus: Callable[[Mapping[str, Any]], int]) -> None:
        self.catalog = catalog
        self._ray = ray
        self._free_cpus = free_cpus
        self._judges: list[_Judge] = []
        self._lost: Counter[str] = Counter()
        self._left_out: set[str] = set()
        """Nodes with other versions of the code."""
        self._with: dict[Future[Any], _Judge] = {}
        """By work under way, the actor that has it."""
        self._began = time.monotonic()
        self._looked: float | None = None
        self._was_said = False

    @property
    def is_possible(self) -> bool:
        """Whether an actor has started; nodes that have joined get actors as well."""
        self._look()
        return any(judge.is_ready for judge in self._judges)

    @property
    def is_starting(self) -> bool:
        """Whether actors are expected soon."""
        return bool(self._judges) and not self._was_said and time.monotonic() - self._began < _START_S

    def submit(
        self, function: Callable[_Arguments, _Result], *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> "Future[_Result] | None":
        """Give some work to the actor with the least of it; None if no actor is ready."""
        judge = min((one for one in self._judges if one.is_ready), key=lambda one: one.under_way, default=None)
        if judge is None:
            return None
        work = pickle.dumps((function, arguments, named), pickle.HIGHEST_PROTOCOL)
        future: Future[Any] = judge.actor.do.remote(work).future()
        judge.under_way += 1
        judge.hear()
        future.add_done_callback(judge.hear)
        self._with[future] = judge
        return future

    def result(self, future: "Future[_Result] | None") -> _Result | None:
        """The result of some work; None if its actor is lost or slow, and is not asked any more."""
        from ray.exceptions import RayError

        if future is None:
            return None
        judge = self._with.pop(future)
        judge.under_way -= 1
        if not self._comes(future, judge):
            # Its machine may be frozen: actors that start there now are asked when they have answered.
            self._lose(judge, *(one for one in self._judges if one.node == judge.node and one is not judge))
            return None
        try:
            return cast(_Result, pickle.loads(cast(bytes, future.result())))
        except RayError:  # an error of the work itself comes again when the driver does the work
            self._lose(judge)
            return None

    def close(self) -> None:
        """End the actors."""
        for judge in self._judges:
            self._ray.kill(judge.actor)
        self._judges.clear()
        self._with.clear()

    def _comes(self, future: "Future[Any]", judge: _Judge) -> bool:
        """Wait for an answer of an actor; whether it has come.

        Silence counts from the actor's own last answer, so that many frozen actors take no longer than one.
        """
        while not future.done():
            left = judge.heard + _PATIENCE_S - time.monotonic()
            if left <= 0 or judge not in self._judges:
                return False
            wait([future], left)
        return True

    def _look(self) -> None:
        """Take actors that have started, and start actors on nodes that lack them."""
        from ray.exceptions import RayError

        for judge in [one for one in self._judges if not one.is_ready and one.versions.done()]:
            self._welcome(judge)
        now = time.monotonic()
        if self._looked is not None and now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        try:
            own = self._ray.get_runtime_context().get_node_id()
            nodes = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"] and node["NodeID"] != own}
        except (RayError, OSError, RuntimeError):  # the head is busy or away; it is asked again
            return
        has = Counter(judge.node for judge in self._judges)
        lacking = [
            (number, node_id)
            for node_id, node in nodes.items()
            if self._lost[node_id] < _MOST_LOST and node_id not in self._left_out
            for number in range(has[node_id], _places(self._free_cpus(node)))
        ]
        # First one on each node, then the second ones.
        for _, node_id in sorted(lacking)[: _MOST_ACTORS - len(self._judges)]:
            self._judges.append(self._started(node_id))

    def _started(self, node_id: str) -> _Judge:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {
            "num_cpus": 1,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
        }
        actor = self._ray.remote(VerdictActor).options(**options).remote(self.catalog, trust_here())
        return _Judge(actor, node_id, actor.versions.remote().future())

    def _welcome(self, judge: _Judge) -> None:
        if judge.versions.exception() is not None:
            self._lose(judge)  # workers of the same node say what is wrong there
            return
        if judge.versions.result() != versions_here():
            self._lose(judge)
            self._leave_out(judge.node)
            return
        judge.is_ready = True
        if not self._was_said:
            self._was_said = True
            nodes = len({one.node for one in self._judges})
            say(f"code decides texts on {plural(nodes, 'other node')} of the cluster")

    def _leave_out(self, node_id: str) -> None:
        """Ask a node no more whose code decides otherwise."""
        if node_id not in self._left_out:
            self._left_out.add(node_id)
            say("code decides no texts on a node with other versions of skillmix, Python or packages with checkers")

    def _lose(self, judge: _Judge, *others: _Judge) -> None:
        """Ask an actor no more, and no others of its node that are lost with it."""
        if judge not in self._judges:
            return
        self._lost[judge.node] += 1
        for one in (judge, *others):
            self._judges.remove(one)
            self._ray.kill(one.actor)  # so that its other work ends at once


def _places(free_cpus: int) -> int:
    """How many actors a node has: one for each free CPU but one, which its worker needs for its calls."""
    return max(1, free_cpus - 1) if free_cpus >= 1 else 0
