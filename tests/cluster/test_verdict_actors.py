"""Verdicts on other nodes: which nodes get actors, and what happens to work that is lost; Ray is played here."""

import pickle
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any
from unittest import mock

import pytest

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.catalog.own_code import trust_here
from skillmix.checkers.registry import ENTRY_POINTS
from skillmix.cluster import verdict_actors
from skillmix.cluster.ray_workers import RayWorkers
from skillmix.cluster.verdict_actors import VerdictActor, VerdictActors, versions_here
from skillmix.experiment.experiment import WorkerSettings
from skillmix.runs.judging import verdict_workers, worker_pool
from skillmix.runs.judging.verdict_workers import VerdictWorkers, decide
from skillmix.runs.leases.driving import LentWork
from skillmix.runs.reading import decisions
from tests.runs.test_verdict_workers import means as means
from tests.runs.test_verdict_workers import questions


class PlayedError(Exception):
    """As Ray's errors are."""


def later(result: Any = None, error: Exception | None = None) -> "Future[Any]":
    """A future that is done; without a result or an error, one that never is."""
    future: Future[Any] = Future()
    if error is not None:
        future.set_exception(error)
    elif result is not None:
        future.set_result(result)
    return future


@dataclass
class PlayedNode:
    """How the actors of a node behave."""

    versions: Callable[[], "Future[Any]"] = lambda: later(versions_here())
    do: Callable[[bytes], "Future[Any]"] = lambda work: later(VerdictActor.do(None, work))  # type: ignore[arg-type]
    work: int = 0
    """Pieces of work that the actors of the node were given."""


@dataclass(eq=False)
class PlayedActor:
    node: PlayedNode
    versions: Any = None
    do: Any = None

    def __post_init__(self) -> None:
        self.versions = types.SimpleNamespace(remote=lambda: reference(self.node.versions()))
        self.do = types.SimpleNamespace(remote=self._do)

    def _do(self, work: bytes) -> Any:
        self.node.work += 1
        return reference(self.node.do(work))


def reference(future: "Future[Any]") -> Any:
    return types.SimpleNamespace(future=lambda: future)


@dataclass
class PlayedRay:
    """A cluster whose first node, "own", has the driver."""

    others: dict[str, PlayedNode]
    cpus: int = 3
    killed: list[PlayedActor] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    is_away: bool = False

    def nodes(self) -> list[dict[str, Any]]:
        if self.is_away:
            raise RuntimeError("no answer")
        return [{"NodeID": n, "Alive": True, "Resources": {"CPU": self.cpus}} for n in ("own", *self.others)]

    def get_runtime_context(self) -> Any:
        return types.SimpleNamespace(get_node_id=lambda: "own")

    def remote(self, actor_class: type[Any]) -> Any:
        assert actor_class is VerdictActor
        return types.SimpleNamespace(options=self._options)

    def _options(self, *, scheduling_strategy: str, **options: Any) -> Any:
        assert options == {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        self.started.append(scheduling_strategy)
        return types.SimpleNamespace(remote=lambda *_: PlayedActor(self.others[scheduling_strategy]))

    def kill(self, actor: PlayedActor) -> None:
        self.killed.append(actor)


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(verdict_actors, "_LOOK_EVERY_S", 0.0)
    errors = types.SimpleNamespace(RayError=PlayedError)
    strategies = types.SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
    modules = {
        "ray": types.ModuleType("ray"),
        "ray.exceptions": errors,
        "ray.util": types.ModuleType("ray.util"),
        "ray.util.scheduling_strategies": strategies,
    }
    with mock.patch.dict(sys.modules, modules):
        yield


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog("verifiable")


def actors_on(ray: PlayedRay, catalog: Catalog) -> VerdictActors:
    def free_cpus(node: Mapping[str, Any]) -> int:
        return int(node["Resources"]["CPU"])

    actors = VerdictActors(ray, catalog, free_cpus)
    assert not actors.is_possible, "they start now"
    return actors


@pytest.mark.parametrize(("cpus", "places"), [(0, 0), (1, 1), (2, 1), (3, 2), (100, 8)])
def test_other_nodes_get_actors_for_their_free_cpus(catalog: Catalog, cpus: int, places: int) -> None:
    ray = PlayedRay({"a": PlayedNode(), "b": PlayedNode()}, cpus)

    actors = actors_on(ray, catalog)

    assert ray.started == ["a", "b"] * places, "one on each node, then the second ones, and never more than 16"
    assert actors.is_starting == actors.is_possible == bool(places)


def test_a_cluster_of_one_node_has_none(catalog: Catalog) -> None:
    actors = actors_on(PlayedRay({}), catalog)

    assert not actors.is_possible and not actors.is_starting
    assert actors.submit(len, "abc") is None and actors.result(None) is None


def test_actors_share_the_work(catalog: Catalog) -> None:
    nodes = {"a": PlayedNode(), "b": PlayedNode()}
    actors = actors_on(PlayedRay(nodes, 2), catalog)
    assert actors.is_possible

    futures = [actors.submit(len, "x" * number) for number in range(10)]

    assert [actors.result(future) for future in futures] == list(range(10))
    assert [node.work for node in nodes.values()] == [5, 5]


def test_a_node_that_joins_gets_actors(catalog: Catalog) -> None:
    ray = PlayedRay({"a": PlayedNode()})
    actors = actors_on(ray, catalog)
    ray.is_away = True
    assert actors.is_possible, "the head did not answer"

    ray.is_away = False
    ray.others["b"] = PlayedNode()

    assert actors.is_possible
    assert ray.started == ["a", "a", "b", "b"]


def test_an_actor_that_does_not_start_is_not_waited_for(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    actors = actors_on(PlayedRay({"a": PlayedNode(versions=later)}), catalog)
    assert actors.is_starting and not actors.is_possible

    monkeypatch.setattr(verdict_actors, "_START_S", 0.0)

    assert not actors.is_starting


def test_a_node_whose_actors_do_not_start_is_left_in_the_end(catalog: Catalog) -> None:
    ray = PlayedRay({"a": PlayedNode(versions=lambda: later(error=PlayedError("no room")))}, 2)
    actors = actors_on(ray, catalog)

    for _ in range(10):
        assert not actors.is_possible

    assert len(ray.started) == len(ray.killed) == verdict_actors._MOST_LOST
    assert not actors.is_starting


def test_a_node_with_other_checkers_of_packages_decides_nothing(
    catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    there = (*versions_here()[:2], "checkers that this machine lacks")
    ray = PlayedRay({"a": PlayedNode(versions=lambda: later(there))}, 3)
    actors = actors_on(ray, catalog)

    for _ in range(3):
        assert not actors.is_possible

    assert ray.started == ["a", "a"] and len(ray.killed) == 2
    assert actors.submit(len, "abc") is None
    assert capsys.readouterr().err.count("packages with checkers") == 1


def test_an_installed_package_with_checkers_changes_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions_here()
    package = EntryPoint("my skill", "my_package:my_skill", ENTRY_POINTS)
    decisions.code_version.cache_clear()
    monkeypatch.setattr(decisions, "entry_points", lambda group: [package])
    try:
        assert versions_here() != before
    finally:
        decisions.code_version.cache_clear()


@pytest.mark.parametrize("answer", [lambda work: later(error=PlayedError("died")), lambda work: later()])
def test_work_of_a_lost_or_frozen_actor_is_done_here(
    catalog: Catalog,
    means: verdict_workers.Means,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[bytes], "Future[Any]"],
) -> None:
    monkeypatch.setattr(verdict_actors, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(verdict_workers, "WORTH_IT", 100)
    monkeypatch.setattr(worker_pool, "_code", [means.code])
    good, bad = PlayedNode(), PlayedNode(do=answer)
    ray = PlayedRay({"bad": bad, "good": good}, 2)
    actors = actors_on(ray, catalog)
    workers = VerdictWorkers(catalog, lambda: actors)
    asked = questions(catalog, 300)
    expected = [decide(question, means) for question in asked]

    assert workers.decide(asked[:90], means) == expected[:90]
    assert bad.work == good.work == 0, "few texts are decided here"
    for _ in range(verdict_actors._MOST_LOST + 1):
        assert workers.decide(asked, means) == expected

    assert ray.started.count("bad") == len(ray.killed) == verdict_actors._MOST_LOST
    assert good.work and workers._pool is not None and not workers._pool.is_started
    workers.close()


def test_many_frozen_actors_take_no_longer_than_one(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    def pass_time(futures: list["Future[Any]"], timeout: float) -> None:
        now[0] += timeout

    monkeypatch.setattr(verdict_actors, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(verdict_actors, "wait", pass_time)
    actors = actors_on(PlayedRay({"a": PlayedNode(do=lambda work: later())}, cpus=9), catalog)
    assert actors.is_possible

    futures = [actors.submit(len, "abc") for _ in range(24)]
    began = now[0]

    assert [actors.result(future) for future in futures] == [None] * 24, "the driver does the work"
    assert now[0] - began == verdict_actors._PATIENCE_S


def test_a_frozen_actor_takes_the_others_of_its_node_with_it(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_actors, "_PATIENCE_S", 0.01)
    bad, good = PlayedNode(do=lambda work: later()), PlayedNode()
    ray = PlayedRay({"bad": bad, "good": good}, cpus=5)
    actors = actors_on(ray, catalog)
    assert actors.is_possible
    assert actors.result(actors.submit(len, "abc")) is None
    bad.versions = later

    assert [actors.result(actors.submit(len, "x" * number)) for number in range(8)] == list(range(8))
    assert len(ray.killed) == 4 and bad.work == 1, "new actors of its node get work when they have answered"


def test_an_actor_that_goes_on_answering_is_waited_for(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    asked: list[Future[Any]] = []

    def answer_one(futures: list["Future[Any]"], timeout: float) -> None:
        now[0] += 0.9 * verdict_actors._PATIENCE_S
        next(future for future in asked if not future.done()).set_result(pickle.dumps(3))

    def ask(work: bytes) -> "Future[Any]":
        asked.append(Future())
        return asked[-1]

    monkeypatch.setattr(verdict_actors, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(verdict_actors, "wait", answer_one)
    actors = actors_on(PlayedRay({"a": PlayedNode(do=ask)}, cpus=2), catalog)
    assert actors.is_possible

    last = [actors.submit(len, "abc") for _ in range(5)][-1]

    assert actors.result(last) == 3, "the work before it was answered in time"


def test_while_actors_start_texts_are_decided_here(
    catalog: Catalog, means: verdict_workers.Means, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_workers, "WORTH_IT", 1)
    node = PlayedNode(versions=later)
    actors = actors_on(PlayedRay({"a": node}), catalog)
    workers = VerdictWorkers(catalog, lambda: actors)
    asked = questions(catalog, 20)

    assert workers.decide(asked, means) == [decide(question, means) for question in asked]

    assert node.work == 0
    assert workers._pool is not None and not workers._pool.is_started, "no process starts here in vain"
    workers.close()


def test_workers_of_a_run_have_actors_once_they_have_joined(catalog: Catalog) -> None:
    ray = PlayedRay({"a": PlayedNode()}, cpus=7)
    workers = RayWorkers(ray)
    assert workers.verdict_pool(catalog) is None

    workers._work = LentWork(mock.sentinel.conversations, {}, WorkerSettings(cpus=2))
    pool = workers.verdict_pool(catalog)

    assert pool is not None and pool is workers.verdict_pool(catalog)
    assert not pool.is_possible
    assert pool.is_possible
    assert ray.started == ["a"], "three workers take six of seven CPUs"
    other = workers.verdict_pool(load_catalog("paper"))
    assert other is not pool and len(ray.killed) == 1
    workers.close()


def test_an_actor_calls_what_it_is_given(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_code", [])
    actor = VerdictActor(catalog, trust_here())

    assert pickle.loads(actor.do(pickle.dumps((len, ("abc",), {})))) == 3
    assert worker_pool.code_of_worker() is not None
    assert actor.versions() == versions_here()
