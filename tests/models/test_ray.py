"""Models on Ray make the calls and results of one process, also when workers or drivers are lost."""

import asyncio
import json
import os
import pickle
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from skillmix.calls import CallProblem, Decoding, GenerateKey, Message, Outcome, Reply, Request
from skillmix.commands import main as command
from skillmix.errors import UserError
from skillmix.models import ray as on_ray_module
from skillmix.models.ray import (
    VERSIONS,
    Begun,
    LostWorkerError,
    ModelActor,
    OnRay,
    OpenOrder,
    Placement,
    RayCluster,
    SharedFolder,
    Worker,
    ray_cluster,
)
from skillmix.models.simple import SimpleModel
from skillmix.models.specs import ModelOptions, ModelSpec
from skillmix.runs.run import open_run
from tests.models.on_ray import (
    Made,
    Nodes,
    Server,
    cluster_of,
    ended,
    experiment,
    made,
    needs_ray,
    skillmix,
    until,
)

SPEC = ModelSpec("openai", "m", "http://127.0.0.1:9/v1")


def node(name: str, cpus: float = 0, gpus: float = 0) -> Mapping[str, Any]:
    return {"NodeID": name, "NodeManagerAddress": name, "Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}}


def requests(count: int) -> list[Request]:
    return [
        Request(GenerateKey("s", f"c{number}", 0, 0), "m", (Message("user", "?"),), Decoding(), number)
        for number in range(count)
    ]


class Echo(SimpleModel):
    """Replies with the number of the request, after a while."""

    wait = 0.0

    async def answer(self, request: Request) -> Outcome:
        await asyncio.sleep(self.wait)
        return Reply(str(request.seed))


def new_actor() -> ModelActor:
    with mock.patch.dict(os.environ):
        return ModelActor({})


class HereWorker(Worker):
    """An actor in this process, with everything pickled on its way as Ray does; a lost one is restarted."""

    def __init__(self, number: int) -> None:
        super().__init__(number, new_actor())
        self.lost = asyncio.Event()
        self.is_killed = False
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def crash(self) -> None:
        """Lose the process with all that it knows, which is then started again."""
        self.lost.set()
        self.actor, self.lost = new_actor(), asyncio.Event()

    async def ask(self, method: str, *arguments: object) -> Any:
        self.asked.append((method, arguments))
        if self.is_killed:
            raise LostWorkerError("killed")
        lost = self.lost
        work = asyncio.ensure_future(getattr(self.actor, method)(*pickle.loads(pickle.dumps(arguments))))
        losing = asyncio.ensure_future(lost.wait())
        await asyncio.wait((work, losing), return_when=asyncio.FIRST_COMPLETED)
        losing.cancel()
        if lost.is_set():
            work.cancel()
            raise LostWorkerError("killed")
        return await work


class HereCluster(RayCluster):
    """A cluster whose workers are in this process."""

    def __init__(self, *nodes: Mapping[str, Any], placement: Placement = Placement()) -> None:  # noqa: B008
        self.lines: list[str] = []
        super().__init__(placement, self.lines.append)
        self.nodes = list(nodes) or [node("a", cpus=1), node("b", cpus=1)]
        self.all: list[HereWorker] = []

    async def _alive_nodes(self) -> list[Mapping[str, Any]]:
        return self.nodes

    def _start(self, *, uses_gpus: bool) -> Worker:
        self.all.append(HereWorker(next(self._started)))
        return self.all[-1]

    def _kill(self, worker: Worker) -> None:
        assert isinstance(worker, HereWorker)
        worker.is_killed = True
        worker.lost.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray_module, "_LOOK_S", 0.01)


async def served(
    cluster: HereCluster,
    count: int,
    *,
    opener: Callable[[ModelSpec, ModelOptions], object] = Echo,
    concurrency: int | None = None,
    at: Mapping[int, Callable[[], object]] | None = None,
) -> dict[int, list[Outcome]]:
    """The outcomes of requests by their seeds; `at` says what happens after so many replies."""
    model = OnRay(cluster, SPEC, ModelOptions(concurrency))
    waiting: asyncio.Queue[Request | None] = asyncio.Queue()
    for request in requests(count):
        waiting.put_nowait(request)

    async def source() -> AsyncIterator[Request]:
        while (request := await waiting.get()) is not None:
            yield request

    outcomes: dict[int, list[Outcome]] = {number: [] for number in range(count)}
    done = 0
    with mock.patch("skillmix.models.ray.open_model", opener):
        async for request, outcome in model.serve(source()):
            outcomes[request.seed or 0].append(outcome)
            if isinstance(outcome, CallProblem):
                waiting.put_nowait(request)
                continue
            done += 1
            (at or {}).get(done, lambda: None)()
            if done == count:
                waiting.put_nowait(None)
        await model.close()
    cluster.end_workers()
    return outcomes


def test_workers_share_calls_out_in_groups_and_every_call_has_one_outcome() -> None:
    cluster = HereCluster()

    outcomes = asyncio.run(served(cluster, 200))

    assert all([reply] == [Reply(str(number))] for number, (reply,) in outcomes.items())
    assert cluster.lines == ["2 workers on Ray"]
    for worker in cluster.all:
        groups = [len(pickle.loads(arguments[1])) for method, arguments in worker.asked if method == "add"]
        assert sum(groups) > 50
        assert len(groups) < sum(groups) / 2


def test_calls_of_a_lost_worker_come_back_once_and_it_works_on_after_its_restart() -> None:
    cluster = HereCluster()
    with mock.patch.object(Echo, "wait", 0.02):
        outcomes = asyncio.run(served(cluster, 300, at={20: lambda: cluster.all[0].crash()}))

    problems = [number for number, found in outcomes.items() if isinstance(found[0], CallProblem)]
    assert 0 < len(problems) <= 64
    assert all(found[-1] == Reply(str(number)) for number, found in outcomes.items())
    assert all(len(found) == 1 + (number in problems) for number, found in outcomes.items())
    assert cluster.repeated == len(problems)
    repeated = f"{len(problems)} calls in flight to {SPEC} will be repeated"
    assert cluster.lines[1:] == [f"{cluster.all[0]} is lost (killed); {repeated}"]
    assert [method for method, _ in cluster.all[0].asked].count("begin") == 2


def test_a_message_that_is_lost_on_its_way_costs_only_its_calls() -> None:
    cluster = HereCluster(node("a", cpus=1))
    add = ModelActor.add
    groups = 0

    async def lost_once(self: ModelActor, number: int, group: bytes) -> None:
        nonlocal groups
        groups += 1
        if groups == 2:
            raise LostWorkerError("no answer")
        await add(self, number, group)

    with mock.patch.object(ModelActor, "add", lost_once), mock.patch.object(Echo, "wait", 0.001):
        outcomes = asyncio.run(served(cluster, 300))

    problems = [number for number, found in outcomes.items() if isinstance(found[0], CallProblem)]
    assert 0 < len(problems) == cluster.repeated < 65
    assert all(found[-1] == Reply(str(number)) for number, found in outcomes.items())


def test_a_worker_that_dies_while_it_starts_is_waited_for() -> None:
    cluster = HereCluster()
    begin = ModelActor.begin
    dies = iter([True, True])

    async def dying(self: ModelActor, *arguments: Any) -> Begun:
        if next(dies, False):
            raise LostWorkerError("the actor died")
        return await begin(self, *arguments)

    with mock.patch.object(ModelActor, "begin", dying):
        outcomes = asyncio.run(served(cluster, 20))

    assert all(found == [Reply(str(number))] for number, found in outcomes.items())
    assert (cluster.lines, cluster.repeated) == (["2 workers on Ray"], 0)


def test_concurrency_counts_for_all_workers_together() -> None:
    most = now = 0

    class Counted(Echo):
        async def answer(self, request: Request) -> Outcome:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.005)
            now -= 1
            return Reply("")

    asyncio.run(served(HereCluster(), 40, opener=Counted, concurrency=6))

    assert most == 6


def test_a_worker_that_is_lost_again_and_again_is_given_up() -> None:
    class Deadly(Echo):
        async def answer(self, request: Request) -> Outcome:
            cluster.all[0].crash()
            await asyncio.sleep(10)
            raise AssertionError

    cluster = HereCluster(node("a", cpus=1))
    with pytest.raises(UserError, match="All workers of the cluster were lost 5 times in a row"):
        asyncio.run(served(cluster, 3, opener=Deadly))

    assert len(cluster.all) == 1
    assert sum(line.startswith(f"{cluster.all[0]} is lost (killed)") for line in cluster.lines) == 5
    assert cluster.lines[-1].startswith(f"{cluster.all[0]} gets no more calls")


def test_an_error_of_the_model_is_one_line_with_its_worker() -> None:
    class Broken(Echo):
        async def answer(self, request: Request) -> Outcome:
            raise ValueError("no such thing")

    with pytest.raises(UserError, match=r"worker \d \(\S+\): openai:m@\S+ failed: ValueError: no such thing\."):
        asyncio.run(served(HereCluster(), 3, opener=Broken))


def test_a_machine_that_comes_late_without_a_key_stops_nobody() -> None:
    cluster = HereCluster(node("a", cpus=1))
    opened = []

    def opener(spec: ModelSpec, options: ModelOptions) -> Echo:
        opened.append(spec)
        if len(opened) > 1:
            raise UserError("OPENAI_API_KEY is not set.")
        return Echo(spec, options)

    with mock.patch.object(Echo, "wait", 0.03):
        outcomes = asyncio.run(
            served(cluster, 300, opener=opener, at={1: lambda: cluster.nodes.append(node("late", cpus=1))})
        )

    assert all(len(found) == 1 for found in outcomes.values())
    assert cluster.lines[1:] == [f"{cluster.all[1]} gets no more calls: OPENAI_API_KEY is not set"]


def test_another_version_is_refused_before_the_first_call() -> None:
    with pytest.raises(UserError, match=rf"has {re.escape(VERSIONS)}, .* has skillmix 0\.0\.1 with Python 3\.11"):
        asyncio.run(new_actor().begin(0, "skillmix 0.0.1 with Python 3.11", b"what another version may have pickled"))


def test_a_run_without_requests_starts_no_worker() -> None:
    cluster = HereCluster()

    async def serve_nothing() -> list[object]:
        async def none() -> AsyncIterator[Request]:
            for request in requests(0):
                yield request

        return [one async for one in OnRay(cluster, SPEC, ModelOptions()).serve(none())]

    assert asyncio.run(serve_nothing()) == []
    assert cluster.all == []


@pytest.mark.parametrize(
    ("nodes", "placement", "is_local", "expected"),
    [
        ([node("a", 4), node("b", 16)], Placement(), False, 2),
        ([node("a", 4), node("b", 16)], Placement(cpus=2), False, 10),
        ([node("a", 4), node("b", 16)], Placement(cpus=2), True, 2),
        ([node("a", 4), node("b", 16, gpus=4)], Placement(), True, 4),
        ([node("a", 4), node("b", 16, gpus=4)], Placement(gpus=0.5), True, 8),
        ([node("a", 4), node("b", 6, gpus=4)], Placement(cpus=2, gpus=2), True, 3),
        ([node("a", 4), node("b", 16, gpus=4)], Placement(), False, 2),
        ([node("a", 1)], Placement(cpus=2), False, 0),
    ],
)
def test_places_of_workers(nodes: list[Mapping[str, Any]], placement: Placement, is_local: bool, expected: int) -> None:
    assert placement.workers(nodes, is_local=is_local) == expected


def test_a_cluster_without_room_is_an_error() -> None:
    cluster = HereCluster(node("a", cpus=1), placement=Placement(cpus=2))
    with pytest.raises(UserError, match="No node of the cluster has the 2 CPUs that a worker needs"):
        asyncio.run(served(cluster, 1))


def test_a_folder_is_sent_once_to_a_machine_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "empty.txt").touch()
    (model / "model.safetensors").write_bytes(os.urandom(1000))
    (model / "code.py").write_text("never sent")
    monkeypatch.setenv("SKILLMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(on_ray_module, "_PART", 64)
    folder = SharedFolder.of(model)
    assert folder.place() == model
    # What this process finds at the path of the driver is hidden from the worker, as on another machine.
    monkeypatch.setattr(SharedFolder, "place", lambda self: self.copy if self._is_in(self.copy) else None)
    order = pickle.dumps(OpenOrder(SPEC, ModelOptions(), (folder,)))

    async def opened() -> list[str]:
        worker = HereWorker(1)
        sender = OnRay(HereCluster(), SPEC, ModelOptions())
        sender._order, sender._sending = order, asyncio.Lock()
        with mock.patch("skillmix.models.ray.open_model", Echo):
            assert await sender._open(worker) == 64
            await worker.ask("end", sender._number)
        return [method for method, _ in worker.asked]

    sent = asyncio.run(opened())
    assert (sent.count("begin"), sent.count("store")) == (3, 19)  # 16 parts, two small files and the end
    assert sorted(file.name for file in folder.copy.iterdir()) == ["config.json", "empty.txt", "model.safetensors"]
    assert asyncio.run(opened()) == ["begin", "end"]

    (folder.copy / "config.json").write_text("[]")
    assert asyncio.run(opened()) == sent, "a damaged copy is sent again"


def test_without_ray_a_run_says_how_to_install_it(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch("skillmix.models.ray.find_spec", return_value=None):
        code = command(["run", "smoke", "--on", "ray"])

    assert code == 2
    assert "pip install 'skillmix[ray]'" in capsys.readouterr().err


@needs_ray
@pytest.mark.parametrize(
    ("address", "message"), [("ray://head:1", "the address of a Ray client"), ("127.0.0.1:9", "cannot be reached")]
)
def test_an_address_of_no_cluster_is_refused_at_once(
    address: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with ray_cluster(Placement(), print) as cluster, pytest.raises(UserError, match=message):
        asyncio.run(cluster.workers())


# Runs on a cluster of processes on this machine


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(wait_s=0.05) as server:
        yield server


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster_of(2, health_check_period_ms=500) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def alone(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, int]:
    """What one process makes, and how many calls it needs."""
    at = tmp_path_factory.mktemp("alone")
    result = ended(skillmix("run", experiment(at, server), at=at))
    assert result.code == 0, result.messages
    return made(at), server.calls


@pytest.fixture
def fresh(alone: object, server: Server) -> None:
    server.stub.bodies.clear()


@needs_ray
@pytest.mark.usefixtures("fresh")
def test_a_cluster_started_here_makes_the_bytes_of_one_process(
    tmp_path: Path, server: Server, alone: tuple[Made, int]
) -> None:
    result = ended(skillmix("run", experiment(tmp_path, server), "--on", "ray", "--json", at=tmp_path))

    assert result.code == 0, result.messages
    assert "1 worker on Ray" in result.messages
    assert json.loads(result.out), "Ray writes nothing to standard output"
    assert made(tmp_path) == alone[0]
    assert (server.calls, server.asked_twice) == (alone[1], 0)


@needs_ray
@pytest.mark.usefixtures("fresh")
def test_a_killed_worker_and_a_killed_driver_cost_only_calls_in_flight(
    tmp_path: Path, server: Server, nodes: Nodes, alone: tuple[Made, int]
) -> None:
    path = experiment(tmp_path, server)
    process = skillmix("run", path, "--on", "ray", at=tmp_path, address=nodes.address)
    server.was_asked(40)
    assert len(nodes.workers()) == 2
    os.kill(nodes.workers()[0], signal.SIGKILL)
    result = ended(process)

    assert result.code == 0, result.messages
    assert made(tmp_path) == alone[0]
    repeated = sum(map(int, re.findall(r"; (\d+) calls? in flight to \S+ will be repeated", result.messages)))
    assert "is lost (its process or its machine has ended)" in result.messages
    said = re.search(r"^(\d+) calls? (was|were) repeated because", result.messages, re.MULTILINE)
    assert (int(said[1]) if said else 0) == repeated
    assert server.asked_twice <= repeated <= 16, "the concurrency of both models together"

    server.stub.bodies.clear()
    at = tmp_path / "again"
    path = experiment(at, server)
    process = skillmix("run", path, "--on", "ray", at=at, address=nodes.address)
    server.was_asked(40)
    process.kill()
    ended(process)
    until(lambda: not nodes.workers())
    result = ended(skillmix("run", path, "--on", "ray", at=at, address=nodes.address))

    assert result.code == 0, result.messages
    assert made(at) == alone[0]
    assert server.asked_twice <= 32


@needs_ray
@pytest.mark.usefixtures("fresh")
@pytest.mark.skipif(not os.environ.get("SKILLMIX_LONG"), reason="starts four nodes; set SKILLMIX_LONG=1")
def test_four_nodes_of_which_one_is_killed_make_the_bytes_of_one_process(
    tmp_path: Path, server: Server, alone: tuple[Made, int]
) -> None:
    with cluster_of(4, health_check_period_ms=500, health_check_failure_threshold=3) as nodes:
        path = experiment(tmp_path, server)
        process = skillmix("run", path, "--on", "ray", at=tmp_path, address=nodes.address)
        server.was_asked(40)
        last = next(raylet for raylet in reversed(nodes.raylets) if nodes.workers(of=raylet))
        nodes.kill(last)
        result = ended(process)

    assert result.code == 0, result.messages
    assert "4 workers on Ray" in result.messages and "is lost" in result.messages
    assert made(tmp_path) == alone[0]
    assert server.asked_twice <= 16


@needs_ray
@pytest.mark.usefixtures("fresh")
def test_the_budget_holds_although_a_worker_is_lost(tmp_path: Path, server: Server, nodes: Nodes) -> None:
    path = experiment(tmp_path, server, budget={"max_calls": 60})
    process = skillmix("run", path, "--on", "ray", at=tmp_path, address=nodes.address)
    until(lambda: bool(nodes.workers()))
    os.kill(nodes.workers()[0], signal.SIGKILL)  # while it starts
    server.was_asked(20)
    os.kill(nodes.workers()[0], signal.SIGKILL)
    result = ended(process)

    assert result.code == 1, result.messages
    assert "the budget is spent" in result.messages
    assert 40 <= server.calls <= 60


@needs_ray
@pytest.mark.usefixtures("fresh")
def test_a_provider_of_another_package_works_on_nodes(tmp_path: Path, nodes: Nodes, server: Server) -> None:
    (tmp_path / "my_provider.py").write_text(PROVIDER)
    (tmp_path / "my_provider-1.dist-info").mkdir()
    (tmp_path / "my_provider-1.dist-info/METADATA").write_text("Name: my-provider\nVersion: 1\n")
    (tmp_path / "my_provider-1.dist-info/entry_points.txt").write_text(
        "[skillmix.providers]\nmine = my_provider:Mine\n"
    )
    path = experiment(tmp_path, server, steps=EVALUATION)
    for model, code, words in (
        ("mine:good", 0, "on Ray"),
        ("mine:bad", 2, "mine:bad failed: ValueError: my own fault"),
    ):
        changes = ("--set", f"students.s.model={model}", "--set", f"name={model.partition(':')[2]}")
        with mock.patch.dict(os.environ, {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}):
            process = skillmix("run", path, *changes, "--on", "ray", at=tmp_path, address=nodes.address)
        result = ended(process)

        assert result.code == code, result.messages
        assert words in result.messages
        assert "Traceback" not in result.messages


EVALUATION = [
    {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [2]}
    | {"combinations": 5, "generations": 1}
]
PROVIDER = """
from skillmix.calls import Reply
from skillmix.models.simple import SimpleModel

class Mine(SimpleModel):
    async def answer(self, request):
        if self.spec.name == "bad":
            raise ValueError("my own fault")
        return Reply("Answer: " + helper())

def helper():
    return "A text."
"""


@needs_ray
@pytest.mark.skipif(not os.environ.get("SKILLMIX_LONG"), reason="imports torch on each node; set SKILLMIX_LONG=1")
def test_a_local_model_writes_the_texts_of_one_process(
    tmp_path: Path, small_model: Path, server: Server, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = []
    for name, more in (("alone", ()), ("ray", ("--on", "ray"))):
        at = tmp_path / name
        students = {"s": {"model": f"local:{small_model}", "max_tokens": 8, "concurrency": 4}}
        path = experiment(at, server, students=students, steps=EVALUATION, graders={"g": {"model": "scripted:grader"}})
        result = ended(skillmix("run", path, *more, at=at, address=nodes.address))
        assert result.code == 0, result.messages
        with open_run(str(at / "runs/served")).read() as journal:
            found.append([(str(call.key), call.outcome) for call in journal.calls("generate")])

    assert "2 workers on Ray" in result.messages
    assert found[0] == found[1]
