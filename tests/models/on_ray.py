"""A cluster, a driver and a model server for tests of runs on Ray."""

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from aiohttp import web

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.commands import main as command
from skillmix.models.specs import parse_spec
from skillmix.runs.run import open_run
from tests.models.reading_model import ReadingModel
from tests.models.stub import Stub, chat, serving
from tests.report.cases import SkilledWriter

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'skillmix[ray]'"
)
ROOT: Final = Path(__file__).parents[2]
MODELS: Final = {
    "student": ReadingModel(parse_spec("scripted:student?skill=0.7")),
    "grader": ReadingModel(parse_spec("scripted:grader?noise=0.1")),
    "skilled": SkilledWriter(parse_spec("scripted:student?skill=0.9")),
}
PATIENCE_S: Final = 240.0


class Ended(NamedTuple):
    """What became of a command."""

    code: int
    out: str
    messages: str


class Server:
    """Answers as scripted models do, after a while, and counts what it is asked."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._stub: Stub | None = None
        self._is_up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))

    def __enter__(self) -> "Server":
        self._thread.start()
        assert self._is_up.wait(20)
        return self

    def __exit__(self, *problem: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        async with serving(self._answer) as self._stub:
            self._is_up.set()
            await self._end.wait()

    async def _answer(self, body: dict[str, Any]) -> web.Response:
        await asyncio.sleep(self._wait_s)
        messages = tuple(Message(message["role"], message["content"]) for message in body["messages"])
        request = Request(GenerateKey("s", "c", 0, 1), body["model"], messages, Decoding(), body["seed"])
        reply = MODELS[body["model"]].answer(request)
        assert isinstance(reply, Reply)
        return chat(reply.text)

    @property
    def stub(self) -> Stub:
        assert self._stub is not None
        return self._stub

    @property
    def calls(self) -> int:
        return len(self.stub.bodies)

    @property
    def asked_twice(self) -> int:
        """Calls beyond the first with the same seed: each call of a run has its own."""
        times = Counter((body["model"], body["seed"]) for body in list(self.stub.bodies))
        return times.total() - len(times)

    def was_asked(self, calls: int) -> None:
        """Wait until the server was asked so many calls."""
        until(lambda: self.calls >= calls)


def until(holds: Callable[[], bool], *, seconds: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@dataclass
class Nodes:
    """The nodes of a cluster."""

    process: "subprocess.Popen[str]"
    address: str
    raylets: list[int]

    def workers(self, of: int | None = None, *, kind: str = "ModelActor") -> list[int]:
        """The processes of the actors, which are children of the nodes, or of one node."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                title = (folder / "cmdline").read_bytes()
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if title.startswith(f"ray::{kind}".encode()) and parent in (self.raylets if of is None else [of]):
                found.append(int(folder.name))
        return sorted(found)

    def kill(self, raylet: int) -> None:
        """Kill a node with all its workers."""
        for process in (*self.workers(of=raylet), raylet):
            os.kill(process, signal.SIGKILL)
        self.raylets.remove(raylet)


def _answer(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    raise AssertionError(f"the process has ended: {process.wait()}")


@contextmanager
def cluster_of(nodes: int, **config: Any) -> Iterator[Nodes]:
    """A Ray cluster on this machine."""
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TEST_CONFIG": json.dumps(config)}
    for tries_left in (2, 1, 0):  # on a busy machine, another process may take a port that Ray has just found free
        with _process("tests.models.ray_nodes", str(nodes), environment=environment) as process:
            try:
                facts = _answer(process)
            except AssertionError:
                if tries_left:
                    continue
                raise
            yield Nodes(process, facts["address"], facts["raylets"])
            return


@contextmanager
def _process(module: str, *arguments: str, environment: dict[str, str]) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process


def skillmix(*arguments: str | Path, at: Path, address: str | None = None) -> "subprocess.Popen[str]":
    """Begin a command in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "-m", "skillmix", *map(str, arguments)],
        cwd=at,
        env=environment | ({"RAY_ADDRESS": address} if address else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: "subprocess.Popen[str]") -> Ended:
    """Wait for a command in a process of its own."""
    out, messages = process.communicate(timeout=PATIENCE_S)
    return Ended(process.returncode, out, messages)


def experiment(folder: Path, server: Server, *, combinations: int = 40, target: int = 8, **more: Any) -> Path:
    """An experiment with an evaluation and a data set, in a new folder."""
    limits = {"concurrency": 8}
    cells = {"settings": ["all"], "k": [2], "combinations": combinations, "generations": 1}
    document = {
        "name": "served",
        "students": {"s": {"model": f"openai:student@{server.stub.address}"} | limits},
        "graders": {"g": {"model": f"openai:grader@{server.stub.address}", "rounds": 1} | limits},
        "steps": [
            {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], **cells},
            {"name": "d", "stage": "dataset", "writer": "s", "graders": ["g"], "k": [1, 2], "target": target},
        ],
    } | more
    folder.mkdir(exist_ok=True)
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


class Made(NamedTuple):
    """Everything that must not depend on where calls are made."""

    rows: list[tuple[str, str, str]]
    """Key, request and reply of every call, without times and costs."""
    scores: str
    dataset: dict[str, bytes]


def made(at: Path) -> Made:
    """What a run has made."""
    run = at / "runs/served"
    with open_run(str(run)).read() as journal:
        calls = [*journal.calls("generate"), *journal.calls("grade")]
    rows = [(str(call.key), call.request_hash, str(getattr(call.outcome, "text", call.outcome))) for call in calls]
    folder = run / "d/dataset"
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    out = StringIO()
    with redirect_stdout(out):
        assert command(["scores", str(run), "--json"]) == 0
    return Made(rows, out.getvalue().replace(json.dumps(str(run)), "RUN"), files)
