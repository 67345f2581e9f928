"""Long accidents of runs on Ray: one and four nodes, frozen and zombie workers, kills without end."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.on_ray import (
    MOST_LEAVES,
    Made,
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

pytestmark = [
    needs_ray,
    pytest.mark.skipif(not os.environ.get("SKILLMIX_LONG"), reason="minutes; set SKILLMIX_LONG=1"),
]
QUICK = {"health_check_period_ms": 500}


def larger(folder: Path, server: Server) -> Path:
    return experiment(folder, server, combinations=300, target=60)


def alone(folder: Path, server: Server) -> Made:
    """What one process makes; the server forgets its calls."""
    at = folder / "alone"
    result = ended(skillmix("run", larger(at, server), at=at))
    assert result.code == 0, result.messages
    expected = made(at)
    server.stub.bodies.clear()
    return expected


@pytest.mark.parametrize("count", [1, 4])
def test_any_number_of_nodes_makes_the_bytes_of_one_process(tmp_path: Path, count: int) -> None:
    with Server(wait_s=0.02) as server, cluster_of(count) as nodes, driver_at(nodes.address) as driver:
        expected = alone(tmp_path, server)

        result = driver.run("run", larger(tmp_path / "ray", server), "--on", "ray", at=tmp_path / "ray")

        assert result.code == 0, result.messages
        assert len(nodes.workers()) == count
        assert made(tmp_path / "ray") == expected
        assert (server.calls, server.asked_twice) == (len(expected.rows), 0)


def test_a_zombie_writes_nothing(tmp_path: Path) -> None:
    """The node's raylet is frozen, so Ray gives the node up; its worker lives on, and has calls in flight."""
    quick = QUICK | {"health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    with Server(wait_s=0.02) as server, cluster_of(2, **quick) as nodes, driver_at(nodes.address) as driver:
        expected = alone(tmp_path, server)
        at = tmp_path / "ray"
        driver.begin("run", larger(at, server), "--on", "ray", at=at)
        server.was_asked(200)
        raylet = nodes.raylets[-1]
        (zombie,) = nodes.workers(of=raylet)
        with server.waiting():
            os.kill(raylet, signal.SIGSTOP)
            time.sleep(12)
        result = driver.end()
        is_alive = zombie in nodes.workers(of=raylet)
        os.kill(raylet, signal.SIGCONT)

        assert result.code == 0, result.messages
        assert " is lost " in result.messages
        assert is_alive
        assert made(at) == expected
        assert 0 < server.asked_twice <= result.lost


def test_a_run_whose_workers_are_all_killed_goes_on_with_others(tmp_path: Path) -> None:
    with Server(wait_s=0.02) as server, cluster_of(2, **QUICK) as nodes, driver_at(nodes.address) as driver:
        expected = alone(tmp_path, server)
        at = tmp_path / "ray"
        driver.begin("run", larger(at, server), "--on", "ray", at=at)
        server.was_asked(100)
        for worker in nodes.workers():
            os.kill(worker, signal.SIGKILL)
        result = driver.end()

        assert result.code == 0, result.messages
        assert "another is waited for" in result.messages
        assert made(at) == expected
        assert server.asked_twice <= result.lost


def test_workers_that_are_killed_again_and_again_change_nothing(tmp_path: Path) -> None:
    chance = random.Random(1)
    with Server(wait_s=0.02) as server, cluster_of(3, **QUICK) as nodes, driver_at(nodes.address) as driver:
        expected = alone(tmp_path, server)
        at = tmp_path / "ray"
        driver.begin("run", larger(at, server), "--on", "ray", at=at)
        for number in range(4):
            server.was_asked(150 * (number + 1))
            until(lambda: nodes.workers() != [])
            os.kill(chance.choice(nodes.workers()), signal.SIGKILL)
        result = driver.end()

        assert result.code == 0, result.messages
        assert made(at) == expected
        assert server.asked_twice <= result.lost


def test_a_driver_that_is_killed_three_times_asks_only_calls_in_flight_again(tmp_path: Path) -> None:
    with Server(wait_s=0.02) as server, cluster_of(2, **QUICK) as nodes:
        expected = alone(tmp_path, server)
        at = tmp_path / "ray"
        path = larger(at, server)
        for _ in range(3):
            process = skillmix("run", path, "--on", "ray", at=at, address=nodes.address)
            server.was_asked(server.calls + 200)
            process.kill()  # and the next driver begins at once, while the workers of this one may still live
            assert ended(process).code == -signal.SIGKILL
        result = ended(skillmix("run", path, "--on", "ray", at=at, address=nodes.address))

        assert result.code == 0, result.messages
        assert made(at) == expected
        assert server.asked_twice <= 3 * 2 * MOST_LEAVES


def test_without_an_address_a_cluster_is_started_here_and_says_little(tmp_path: Path) -> None:
    with Server(wait_s=0.02) as server:
        expected = alone(tmp_path, server)
        at = tmp_path / "ray"
        path = larger(at, server)
        process = skillmix("run", path, "--on", "ray", "--json", at=at)
        server.was_asked(100)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: Ray's processes get it too
        first = ended(process)
        assert first.code == 128 + signal.SIGINT, first.messages
        result = ended(skillmix("run", path, "--on", "ray", "--json", at=at))

        assert result.code == 0, result.messages
        assert "1 worker on Ray" in result.messages
        assert len(result.messages.splitlines()) < 30, "Ray's own lines are not shown"
        assert json.loads(result.out)
        assert made(at) == expected
        assert server.asked_twice == 0
