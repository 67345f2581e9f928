"""Which nodes get workers, and when: nodes and actors are played here, without Ray."""

import asyncio
import sys
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from skillmix.cluster import node_workers, ray_workers
from skillmix.cluster.node_workers import NodeWorkers, _start_problem
from skillmix.cluster.ray_workers import RayLink, RayWorkers
from skillmix.errors import UserError
from skillmix.experiment.experiment import StudentSettings, WorkerSettings
from skillmix.runs.leases.driving import LentWork, LostWorker, UnreachableWorker
from skillmix.runs.leases.mailbox import Packet

SETTINGS = WorkerSettings()
OTHER_VERSION = UserError("worker has skillmix 0", hint=node_workers._SAME_VERSIONS)


class PlayedRay:
    """A cluster of named nodes; actors are the names of their nodes with a number."""

    def __init__(self, *nodes: str) -> None:
        self.alive = list(nodes)
        self.cpus = 4
        self.killed: list[Any] = []
        self.problems: dict[str, UserError] = {}
        self.slow: set[str] = set()
        self.put_down: list[LentWork] = []
        self.is_away = False
        self.is_joined = True

    def nodes(self) -> list[dict[str, Any]]:
        if self.is_away:
            raise RuntimeError("no answer")
        facts = {"Alive": True, "Resources": {"CPU": self.cpus}}
        return [{"NodeID": name, "NodeManagerAddress": f"at {name}"} | facts for name in self.alive]

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)

    def put(self, work: LentWork) -> LentWork:
        self.put_down.append(work)
        return work

    def is_initialized(self) -> bool:
        return self.is_joined


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def start_problem(actor: tuple[PlayedRay, str], name: str) -> UserError | None:
        ray, node = actor
        await asyncio.sleep(60 if node in ray.slow else 0)
        return ray.problems.get(node)

    monkeypatch.setattr(node_workers, "_actor", lambda ray, node, *_: (ray, node))
    monkeypatch.setattr(node_workers, "_start_problem", start_problem)
    monkeypatch.setattr(node_workers, "_LOOK_S", 0.05)
    names = ("ActorDiedError", "ActorUnavailableError", "RayTaskError")
    errors = types.SimpleNamespace(RayError=PlayedError, **{name: type(name, (PlayedError,), {}) for name in names})
    with mock.patch.dict(sys.modules, {"ray": types.ModuleType("ray"), "ray.exceptions": errors}):
        yield


class PlayedError(Exception):
    cause: Exception | None = None


def raised(name: str, cause: Exception | None = None) -> PlayedError:
    """An error of Ray."""
    error: PlayedError = getattr(sys.modules["ray.exceptions"], name)("as Ray says it\nwith more lines")
    error.cause = cause
    return error


class PlayedActor:
    """An actor whose methods end in an error."""

    def __init__(self, *, begin: Exception | None = None, exchange: Exception | None = None) -> None:
        self.begin = types.SimpleNamespace(remote=lambda *_: self._end(begin))
        self.exchange = types.SimpleNamespace(remote=lambda *_: self._end(exchange))

    async def _end(self, error: Exception | None) -> None:
        if error is not None:
            raise error


@pytest.fixture
def said() -> list[str]:
    return []


async def started(ray: PlayedRay, said: list[str]) -> NodeWorkers:
    workers = NodeWorkers(ray, said.append)
    await workers.start_first(SETTINGS)
    return workers


def at_any_time(workers: NodeWorkers) -> None:
    """Let no node wait."""
    for node in workers._nodes.values():
        node.not_before = 0.0


def test_a_node_that_joins_gets_a_worker_with_a_new_name(said: list[str]) -> None:
    async def main() -> None:
        ray = PlayedRay("a", "b")
        workers = await started(ray, said)
        assert list(workers.actors) == ["worker 1 (at a)", "worker 2 (at b)"]
        assert await workers.start_missing(SETTINGS) == []

        ray.alive.append("c")

        assert await workers.start_missing(SETTINGS) == ["worker 3 (at c)"]
        assert len(workers.actors) == 3

    asyncio.run(main())


def test_a_node_has_as_many_workers_as_its_cpus_allow(said: list[str]) -> None:
    async def main() -> None:
        workers = NodeWorkers(PlayedRay("a"), said.append)
        assert len(await workers.start_first(WorkerSettings(cpus=2))) == 2
        with pytest.raises(UserError, match="No node of the cluster has the 8 CPUs"):
            await NodeWorkers(PlayedRay("a"), said.append).start_first(WorkerSettings(cpus=8))

    asyncio.run(main())


def test_a_lost_worker_is_replaced_after_a_while_if_its_node_lives(said: list[str]) -> None:
    async def main() -> None:
        ray = PlayedRay("a", "b")
        workers = await started(ray, said)
        for name in list(workers.actors):
            workers.forget(name)
        ray.alive.remove("b")

        assert await workers.start_missing(SETTINGS) == [], "too early"
        at_any_time(workers)
        assert await workers.start_missing(SETTINGS) == ["worker 3 (at a)"]

    asyncio.run(main())


def test_a_node_that_loses_every_worker_soon_is_given_up(said: list[str]) -> None:
    async def main() -> None:
        workers = await started(PlayedRay("a"), said)
        for _ in range(4):
            workers.forget(*workers.actors)
            at_any_time(workers)
            assert len(await workers.start_missing(SETTINGS)) == 1
        workers.forget(*workers.actors)
        at_any_time(workers)

        with pytest.raises(UserError, match="5 workers in a row were lost"):
            await workers.start_missing(SETTINGS)
        assert said == ["the node at a gets no more workers: 5 workers in a row were lost there"]

    asyncio.run(main())


def test_a_worker_that_has_lived_long_does_not_count_against_its_node(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_workers, "_LONG_LIFE_S", 0.0)

    async def main() -> None:
        workers = await started(PlayedRay("a"), said)
        for _ in range(9):
            workers.forget(*workers.actors)
            at_any_time(workers)
            assert len(await workers.start_missing(SETTINGS)) == 1

    asyncio.run(main())
    assert said == []


def test_a_slow_node_delays_no_other_and_its_start_ends_with_the_step(said: list[str]) -> None:
    async def main() -> None:
        ray = PlayedRay("a")
        workers = await started(ray, said)
        ray.alive += ["slow", "c"]
        ray.slow.add("slow")

        assert await workers.start_missing(SETTINGS) == ["worker 2 (at c)"]
        assert await workers.start_missing(SETTINGS) == [], "it is being started already"
        await workers.stop_starting()

        assert ray.killed == [(ray, "slow")]
        assert len(workers.actors) == 2

    asyncio.run(main())


def test_a_fault_of_a_first_worker_is_an_error_and_that_of_a_late_one_a_line(said: list[str]) -> None:
    async def main() -> None:
        ray = PlayedRay("a", "old")
        ray.problems["old"] = OTHER_VERSION
        with pytest.raises(UserError, match="skillmix 0"):
            await started(ray, said)

        ray.alive.remove("old")
        workers = await started(ray, said)
        ray.alive.append("old")
        for _ in range(2):
            assert await workers.start_missing(SETTINGS) == []
        assert said == ["the node at old gets no more workers: worker has skillmix 0"]

    asyncio.run(main())


def test_a_head_that_does_not_answer_is_asked_again(said: list[str]) -> None:
    async def main() -> None:
        ray = PlayedRay("a")
        workers = await started(ray, said)
        ray.alive.append("b")
        ray.is_away = True
        assert await workers.start_missing(SETTINGS) == []
        ray.is_away = False
        assert len(await workers.start_missing(SETTINGS)) == 1

    asyncio.run(main())


def test_all_workers_together_keep_to_the_concurrency_of_a_model() -> None:
    async def main() -> None:
        ray = PlayedRay("a", "b")
        workers = RayWorkers(ray)
        model = StudentSettings(model="openai:m@http://h/v1", concurrency=9)
        work = LentWork(conversations=None, models={"student:s": model})  # type: ignore[arg-type]

        first = await workers.links(work)
        assert len(first) == 2
        assert [one.models["student:s"].concurrency for one in ray.put_down] == [4]
        ray.alive.append("c")
        assert len(await workers.newcomers()) == 1
        assert ray.put_down[-1].models["student:s"].concurrency == 1
        workers._workers.forget("worker 1 (at a)")
        at_any_time(workers._workers)
        assert len(await workers.newcomers()) == 1
        assert ray.put_down[-1].models["student:s"].concurrency == 4
        await workers.links(work)
        assert ray.put_down[-1].models["student:s"].concurrency == 3
        for name in list(workers._workers.actors):
            workers._workers.forget(name)
        assert await workers.links(work) == {}, "new ones are waited for"

    asyncio.run(main())


def test_a_late_worker_that_cannot_begin_is_left_out_and_a_first_one_is_an_error() -> None:
    async def main() -> None:
        fault = UserError("OPENAI_API_KEY is not set.", hint="Set it.")
        whys: list[str] = []
        for is_late, expected in ((True, LostWorker), (False, UserError)):
            actor = PlayedActor(begin=raised("RayTaskError", fault))
            link = RayLink(actor, 1, None, whys.append, is_late=is_late)
            with pytest.raises(expected, match="OPENAI_API_KEY is not set"):
                await link.exchange(Packet(0, 0, ()))
        assert whys == ["OPENAI_API_KEY is not set"]

    asyncio.run(main())


def test_only_a_death_that_ray_reports_makes_a_worker_lost() -> None:
    async def main() -> None:
        whys: list[str] = []
        for name, expected in (("ActorUnavailableError", UnreachableWorker), ("ActorDiedError", LostWorker)):
            link = RayLink(PlayedActor(exchange=raised(name)), 1, None, whys.append, is_late=False)
            with pytest.raises(expected):
                await link.exchange(Packet(0, 0, ()))
        assert whys == [""]

    asyncio.run(main())


def lent(provider: str, cpus: float | None) -> LentWork:
    """The work of a step with one model."""
    models = {"s": StudentSettings(model=f"{provider}:student")}
    return LentWork(mock.sentinel.conversations, models, WorkerSettings(cpus=cpus))


def killed_by_steps(ray: PlayedRay, cpus: float | None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many actors have ended after steps with served, local and served models."""
    workers = RayWorkers(ray)

    async def begin(work: LentWork) -> tuple[LentWork, None]:
        return work, None

    monkeypatch.setattr(workers._models, "begin", begin)
    counts = []
    for provider in ("scripted", "local", "scripted"):
        asyncio.run(workers.links(lent(provider, cpus)))
        counts.append(len(ray.killed))
    return counts


def test_workers_that_hold_cpus_end_before_those_of_another_kind_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_by_steps(PlayedRay("a", "b"), 2, monkeypatch) == [0, 4, 6], "two on each node, then one"


def test_workers_that_hold_no_cpus_stay_for_later_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_by_steps(PlayedRay("a", "b"), None, monkeypatch) == [0, 0, 0]


@pytest.mark.parametrize(("cpus", "ended"), [(2, 2), (None, 0)])
def test_ranks_on_cpus_get_the_cpus_of_workers(monkeypatch: pytest.MonkeyPatch, cpus: float | None, ended: int) -> None:
    ray = PlayedRay("a")
    workers = RayWorkers(ray)
    asyncio.run(workers.links(lent("scripted", cpus)))
    trained: list[Any] = []
    monkeypatch.setattr(ray_workers, "run_on_ranks", lambda ray, work, *, has_gpus: trained.append(len(ray.killed)))

    assert workers.run_ranks(mock.Mock(ranks=2))

    assert trained == [ended]
    assert asyncio.run(workers.links(lent("scripted", cpus)))


def test_a_worker_that_never_starts_is_not_blamed_on_versions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_workers, "_START_S", 0.01)
    actor = types.SimpleNamespace(versions=types.SimpleNamespace(remote=lambda: asyncio.sleep(60)))

    problem = asyncio.run(_start_problem(actor, "worker 1"))

    assert problem is not None and "no answer" in problem.message
    assert "another job has the CPUs" in (problem.hint or "")
