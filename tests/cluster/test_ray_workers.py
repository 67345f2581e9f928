"""Runs on a Ray cluster of nodes on this machine: the results of one process, and no call paid twice."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillmix.commands import main as command
from tests.cluster.on_ray import (
    MOST_LEAVES,
    Driver,
    Made,
    Nodes,
    Server,
    cluster_of,
    driver_at,
    ended,
    experiment,
    made,
    needs_ray,
    skillmix,
    until,
)

pytestmark = needs_ray
FROZEN_S = 20 if os.environ.get("SKILLMIX_LONG") else 2


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(wait_s=0.05) as server:
        yield server


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster_of(2, health_check_period_ms=500) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def driver(nodes: Nodes) -> Iterator[Driver]:
    with driver_at(nodes.address) as driver:
        yield driver


@pytest.fixture(scope="module")
def alone(server: Server, driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, int]:
    """What one process makes, and how many calls it needs."""
    at = tmp_path_factory.mktemp("alone")
    result = driver.run("run", experiment(at, server), at=at)
    assert result.code == 0, result.messages
    return made(at), server.calls


@pytest.fixture(autouse=True)
def new_server(alone: object, server: Server) -> None:
    server.stub.bodies.clear()


def test_two_nodes_make_the_bytes_of_one_process(
    tmp_path: Path, server: Server, nodes: Nodes, driver: Driver, alone: tuple[Made, int]
) -> None:
    result = driver.run("run", experiment(tmp_path, server), "--on", "ray", "--json", at=tmp_path)

    assert result.code == 0, result.messages
    assert "2 workers on Ray" in result.messages
    assert len(nodes.workers()) == 2
    assert made(tmp_path) == alone[0]
    assert (server.calls, server.asked_twice) == (alone[1], 0)
    assert json.loads(result.out)


def test_a_killed_worker_is_replaced_and_costs_only_its_calls_under_way(
    tmp_path: Path, server: Server, nodes: Nodes, driver: Driver, alone: tuple[Made, int]
) -> None:
    driver.begin("run", experiment(tmp_path, server), "--on", "ray", "--json", at=tmp_path)
    server.was_asked(40)
    killed = nodes.workers()[0]
    with server.waiting() as calls:
        in_flight = server.stub.now
        os.kill(killed, signal.SIGKILL)
        until(lambda: server.calls > calls)
    result = driver.end()

    assert result.code == 0, result.messages
    assert made(tmp_path) == alone[0]
    assert 0 < server.asked_twice <= in_flight, "by the server's own count"
    assert server.asked_twice <= result.lost <= MOST_LEAVES
    assert " has come" in result.messages
    assert len(nodes.workers()) == 2
    assert json.loads(result.out), "Ray writes nothing to standard output"
    assert "unexpected" not in result.messages.lower()


def test_a_node_that_joins_late_takes_part_and_its_end_changes_nothing(
    tmp_path: Path, server: Server, nodes: Nodes, driver: Driver, alone: tuple[Made, int]
) -> None:
    driver.begin("run", experiment(tmp_path, server), "--on", "ray", at=tmp_path)
    server.was_asked(20)
    with server.waiting() as calls:
        late = nodes.add()
        until(lambda: server.calls > calls)
    result = driver.end()
    assert result.code == 0, result.messages
    assert len(nodes.workers(of=late)) == 1
    assert made(tmp_path) == alone[0]
    assert server.asked_twice == 0

    server.stub.bodies.clear()
    at = tmp_path / "again"
    driver.begin("run", experiment(at, server), "--on", "ray", at=at)
    server.was_asked(40)
    nodes.kill(late)
    result = driver.end()

    assert result.code == 0, result.messages
    assert made(at) == alone[0]
    assert " is lost " in result.messages
    assert server.asked_twice <= result.lost


def test_an_interrupted_run_drains_and_asks_nothing_again(
    tmp_path: Path, server: Server, nodes: Nodes, driver: Driver, alone: tuple[Made, int]
) -> None:
    path = experiment(tmp_path, server)
    driver.begin("run", path, "--on", "ray", at=tmp_path)
    server.was_asked(40)
    driver.process.send_signal(signal.SIGINT)
    first = driver.end()
    assert first.code == 128 + signal.SIGINT, first.messages
    assert "calls in flight; press Ctrl-C" in first.messages
    sent = server.calls
    second = driver.run("run", path, "--on", "ray", at=tmp_path)

    assert (second.code, server.asked_twice) == (0, 0), second.messages
    assert 40 <= sent < server.calls
    assert made(tmp_path) == alone[0]


def test_a_frozen_worker_keeps_its_calls_and_a_second_driver_is_refused(
    in_folder: Path,
    server: Server,
    nodes: Nodes,
    driver: Driver,
    alone: tuple[Made, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = experiment(in_folder, server)
    driver.begin("run", path, "--on", "ray", at=in_folder)
    server.was_asked(40)
    worker = nodes.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    try:
        second = command(["run", str(path), "--on", "ray"])
        time.sleep(FROZEN_S)
    finally:
        os.kill(worker, signal.SIGCONT)
    result = driver.end()

    assert second == 2
    assert "Another process is writing to runs/served" in capsys.readouterr().err
    assert result.code == 0, result.messages
    assert made(in_folder) == alone[0]
    assert server.asked_twice == 0
    assert " is lost " not in result.messages


def test_a_full_disk_stops_the_run_and_the_next_goes_on(
    tmp_path: Path, server: Server, nodes: Nodes, driver: Driver, alone: tuple[Made, int]
) -> None:
    path = experiment(tmp_path, server)
    full = driver.run("run", path, "--on", "ray", at=tmp_path, pages=60)
    assert full.code == 2, full.messages
    assert "the disk is full" in full.messages
    assert "Traceback" not in full.messages
    sent = server.calls
    result = driver.run("run", path, "--on", "ray", at=tmp_path)

    assert result.code == 0, result.messages
    assert made(tmp_path) == alone[0]
    stored = int(result.messages.split(" calls made, ")[1].split(" found")[0].replace(",", ""))
    assert 0 < stored < sent
    assert server.asked_twice == sent - stored <= 2 * MOST_LEAVES


def test_a_limit_of_calls_holds_for_all_workers_together(
    tmp_path: Path, server: Server, nodes: Nodes, driver: Driver
) -> None:
    path = experiment(tmp_path, server, budget={"max_calls": 50})
    driver.begin("run", path, "--on", "ray", at=tmp_path)
    server.was_asked(20)
    os.kill(nodes.workers()[0], signal.SIGKILL)
    result = driver.end()

    assert result.code == 1
    assert "the budget is spent" in result.messages
    assert 50 - result.lost <= server.calls <= 50


def test_a_killed_driver_goes_on_where_it_was(
    tmp_path: Path, server: Server, nodes: Nodes, driver: Driver, alone: tuple[Made, int]
) -> None:
    before = nodes.workers()
    path = experiment(tmp_path, server)
    process = skillmix("run", path, "--on", "ray", at=tmp_path, address=nodes.address)
    server.was_asked(40)
    process.kill()
    assert ended(process).code == -signal.SIGKILL
    until(lambda: nodes.workers() == before)  # Ray ends the actors of a driver that is gone
    sent = server.calls
    result = driver.run("run", path, "--on", "ray", at=tmp_path)

    assert result.code == 0, result.messages
    assert made(tmp_path) == alone[0]
    stored = int(result.messages.split(" calls made, ")[1].split(" found")[0].replace(",", ""))
    assert server.asked_twice == sent - stored  # those whose outcomes were not stored yet
    assert sent - stored <= 2 * MOST_LEAVES
