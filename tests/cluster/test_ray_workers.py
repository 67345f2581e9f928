"""Runs on a Ray cluster of two nodes on this machine: the scores of one process, and no call paid twice."""

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from aiohttp import web

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.models.scripted import ScriptedModel
from skillmix.models.specs import parse_spec
from tests.models.stub import Stub, chat, serving

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'skillmix[ray]'"
)
ROOT: Final = Path(__file__).parents[2]
MODELS: Final = {
    "student": ScriptedModel(parse_spec("scripted:student?skill=0.7")),
    "grader": ScriptedModel(parse_spec("scripted:grader?noise=0.1")),
}


@dataclass(frozen=True)
class Nodes:
    address: str
    raylets: list[int]

    def workers(self, of: int | None = None) -> list[int]:
        """The processes of the actors, which are children of the nodes, or of one node."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                title = (folder / "cmdline").read_bytes()
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if title.startswith(b"ray::LeaseActor") and parent in (self.raylets if of is None else [of]):
                found.append(int(folder.name))
        return sorted(found)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    command = [sys.executable, "-m", "tests.cluster.nodes", "2"]
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as cluster:
        assert cluster.stdout is not None
        facts = next(json.loads(line) for line in cluster.stdout if line.startswith("{"))
        yield Nodes(facts["address"], facts["raylets"])


def experiment(folder: Path, address: str, **more: Any) -> Path:
    settings = {"concurrency": 8}
    document = {
        "name": "served",
        "students": {"s": {"model": f"openai:student@{address}"} | settings},
        "graders": {"g": {"model": f"openai:grader@{address}", "rounds": 1} | settings},
        "steps": [
            {
                "name": "e",
                "stage": "evaluate",
                "students": ["s"],
                "graders": ["g"],
                "settings": ["all"],
                "k": [2],
                "combinations": 80,
                "generations": 1,
            }
        ],
    } | more
    folder.mkdir(exist_ok=True)
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


async def scripted(body: dict[str, Any]) -> web.Response:
    """Answer as a scripted model, after a while."""
    await asyncio.sleep(0.08)
    messages = tuple(Message(message["role"], message["content"]) for message in body["messages"])
    request = Request(GenerateKey("s", "c", 0, 1), body["model"], messages, Decoding(), body["seed"])
    reply = MODELS[body["model"]].answer(request)
    assert isinstance(reply, Reply)
    return chat(reply.text)


async def ran(
    *arguments: str | Path, at: Path, address: str | None = None, during: Callable[[int], Awaitable[None]] | None = None
) -> tuple[int, str, str]:
    """Exit code, output and messages of a command; `during` is given its process id."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "skillmix",
        *map(str, arguments),
        cwd=at,
        env=environment | ({"RAY_ADDRESS": address} if address else {}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output = asyncio.create_task(process.communicate())
    if during is not None:
        await during(process.pid)
    out, messages = await asyncio.wait_for(output, 120)
    assert process.returncode is not None
    return process.returncode, out.decode(), messages.decode()


async def alone(folder: Path, address: str) -> str:
    """The scores of one process."""
    at = folder / "alone"
    code, _, messages = await ran("run", experiment(at, address), at=at)
    assert code == 0, messages
    return await scores(at)


async def scores(at: Path) -> str:
    return (await ran("scores", "served", "--json", at=at))[1]


async def asked(stub: Stub, calls: int) -> None:
    """Wait until the server was asked so many calls."""
    while len(stub.bodies) < calls:
        await asyncio.sleep(0.01)


def asked_twice(stub: Stub) -> int:
    """Calls beyond the first with the same seed: each call of a run has its own."""
    times = Counter((body["model"], body["seed"]) for body in stub.bodies)
    return times.total() - len(times)


def test_two_nodes_give_the_bytes_of_one_process(in_folder: Path, nodes: Nodes) -> None:
    async def main() -> None:
        async with serving(scripted) as stub:
            expected = await alone(in_folder, stub.address)
            calls = len(stub.bodies)
            stub.bodies.clear()
            at = in_folder / "ray"

            code, _, messages = await ran(
                "run", experiment(at, stub.address), "--on", "ray", at=at, address=nodes.address
            )

            assert code == 0, messages
            assert "2 workers on Ray" in messages
            assert await scores(at) == expected
            assert (len(stub.bodies), asked_twice(stub)) == (calls, 0)
            assert nodes.workers() == []

    asyncio.run(main())


def test_a_killed_worker_costs_only_the_calls_that_it_had_under_way(in_folder: Path, nodes: Nodes) -> None:
    async def main() -> None:
        async with serving(scripted) as stub:
            expected = await alone(in_folder, stub.address)
            stub.bodies.clear()
            at = in_folder / "ray"

            async def kill(_: int) -> None:
                await asked(stub, 60)
                os.kill(nodes.workers()[0], signal.SIGKILL)

            path = experiment(at, stub.address)
            code, _, messages = await ran("run", path, "--on", "ray", at=at, address=nodes.address, during=kill)

            assert code == 0, messages
            assert await scores(at) == expected
            lost = next(line for line in messages.splitlines() if " is lost " in line)
            assert asked_twice(stub) <= int(lost.split("at most ")[1].split()[0])

    asyncio.run(main())


def test_a_frozen_worker_keeps_its_calls_until_it_thaws(in_folder: Path, nodes: Nodes) -> None:
    async def main() -> None:
        async with serving(scripted) as stub:
            expected = await alone(in_folder, stub.address)
            stub.bodies.clear()
            at = in_folder / "ray"

            async def freeze(_: int) -> None:
                await asked(stub, 60)
                worker = nodes.workers()[0]
                os.kill(worker, signal.SIGSTOP)
                await asyncio.sleep(4)
                os.kill(worker, signal.SIGCONT)

            path = experiment(at, stub.address)
            code, _, messages = await ran("run", path, "--on", "ray", at=at, address=nodes.address, during=freeze)

            assert code == 0, messages
            assert await scores(at) == expected
            assert asked_twice(stub) == 0
            assert "lost" not in messages

    asyncio.run(main())


def test_a_killed_driver_goes_on_where_it_was(in_folder: Path, nodes: Nodes) -> None:
    async def main() -> None:
        async with serving(scripted) as stub:
            expected = await alone(in_folder, stub.address)
            stub.bodies.clear()
            at = in_folder / "ray"
            path = experiment(at, stub.address)

            async def kill(driver: int) -> None:
                await asked(stub, 60)
                os.kill(driver, signal.SIGKILL)

            code, _, _ = await ran("run", path, "--on", "ray", at=at, address=nodes.address, during=kill)
            assert code == -signal.SIGKILL
            while nodes.workers():  # Ray ends the actors of a driver that is gone
                await asyncio.sleep(0.1)
            sent = len(stub.bodies)
            code, _, messages = await ran("run", path, "--on", "ray", at=at, address=nodes.address)

            assert code == 0, messages
            assert await scores(at) == expected
            stored = int(messages.split(" calls made, ")[1].split(" found")[0].replace(",", ""))
            assert asked_twice(stub) == sent - stored  # those whose outcomes were not stored yet
            assert sent - stored <= 2 * 8 * 2  # at most what both models take at once, and as many on their way

    asyncio.run(main())


def test_an_interrupted_run_drains_and_asks_nothing_again(in_folder: Path, nodes: Nodes) -> None:
    async def main() -> None:
        async with serving(scripted) as stub:
            expected = await alone(in_folder, stub.address)
            stub.bodies.clear()
            at = in_folder / "ray"
            path = experiment(at, stub.address)

            async def interrupt(driver: int) -> None:
                await asked(stub, 60)
                os.kill(driver, signal.SIGINT)

            code, _, messages = await ran("run", path, "--on", "ray", at=at, address=nodes.address, during=interrupt)
            assert code == 128 + signal.SIGINT, messages
            assert "calls in flight are waited for" in messages
            first = len(stub.bodies)
            code, _, messages = await ran("run", path, "--on", "ray", at=at, address=nodes.address)

            assert (code, asked_twice(stub)) == (0, 0), messages
            assert 60 <= first < len(stub.bodies)
            assert await scores(at) == expected

    asyncio.run(main())


def test_a_limit_of_calls_holds_for_all_workers_together(in_folder: Path, nodes: Nodes) -> None:
    async def main() -> None:
        async with serving(scripted) as stub:
            at = in_folder / "ray"
            path = experiment(at, stub.address, budget={"max_calls": 50})

            code, _, messages = await ran("run", path, "--on", "ray", at=at, address=nodes.address)

            assert code == 1
            assert "the budget is spent" in messages
            assert (len(stub.bodies), asked_twice(stub)) == (50, 0)

    asyncio.run(main())


def test_without_an_address_a_cluster_is_started_here(in_folder: Path) -> None:
    async def main() -> None:
        students = {"s": {"model": "scripted:student"}}
        graders = {"g": {"model": "scripted:grader", "rounds": 1}}
        at = in_folder / "ray"
        path = experiment(at, "unused", students=students, graders=graders)

        code, _, messages = await ran("run", path, "--on", "ray", at=at)

        assert code == 0, messages
        assert "1 worker on Ray" in messages
        assert len(messages.splitlines()) < 15, "Ray's own lines are not shown"

    asyncio.run(main())


def test_the_conversations_of_a_lost_node_go_to_the_other(in_folder: Path, nodes: Nodes) -> None:
    """The last test of this cluster, because it takes a node away."""

    async def main() -> None:
        async with serving(scripted) as stub:
            expected = await alone(in_folder, stub.address)
            stub.bodies.clear()
            at = in_folder / "ray"

            async def kill(_: int) -> None:
                await asked(stub, 60)
                for process in (*nodes.workers(of=nodes.raylets[-1]), nodes.raylets[-1]):
                    os.kill(process, signal.SIGKILL)

            path = experiment(at, stub.address)
            code, _, messages = await ran("run", path, "--on", "ray", at=at, address=nodes.address, during=kill)

            assert code == 0, messages
            assert await scores(at) == expected
            lost = next(line for line in messages.splitlines() if " is lost " in line)
            assert asked_twice(stub) <= int(lost.split("at most ")[1].split()[0])

    asyncio.run(main())
