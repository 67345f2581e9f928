"""Which nodes have workers with local models, how many, and what each of them may use."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from skillmix.cluster.devices import _UNTIL_THE_END, DeviceShare
from skillmix.cluster.local_workers import LocalTeam
from skillmix.experiment.experiment import WorkerSettings
from skillmix.models.local.gpu_share import GPU_SHARE
from skillmix.models.local.resident import MODELS

NODES = [
    {"NodeID": "a", "Resources": {"CPU": 16.0, "GPU": 2.0}},
    {"NodeID": "b", "Resources": {"CPU": 8.0}},
    {"NodeID": "c", "Resources": {"memory": 1.0}},
]


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """An environment without settings of this machine, which stays as it is."""
    names = ("SKILLMIX_DEVICE", "OMP_NUM_THREADS", GPU_SHARE)
    with mock.patch.dict(os.environ, {name: "" for name in names}):
        for name in names:
            del os.environ[name]
        yield


@pytest.mark.parametrize(("gpus", "workers"), [(None, 2), (1, 2), (0.5, 4), (0.4, 4), (0.1, 20), (4, 2)])
def test_each_gpu_has_as_many_workers_as_fit_on_it(gpus: float | None, workers: int) -> None:
    team, settings = LocalTeam(), WorkerSettings(gpus=gpus)

    nodes = team.nodes(NODES)

    assert [node["NodeID"] for node in nodes] == ["a"], "nodes without GPUs would be far slower"
    assert team.label == "GPU worker"
    assert team.places(nodes[0], settings) == workers
    assert team.options(settings) == {"num_cpus": 0, "num_gpus": min(1, gpus or 1)}
    assert team.share(settings) == DeviceShare(min(1, gpus or 1))


def test_without_gpus_each_node_with_cpus_has_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLMIX_DEVICE", "cpu")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    team = LocalTeam()

    nodes = team.nodes(NODES)

    assert [node["NodeID"] for node in nodes] == ["a", "b"]
    assert [team.places(node, WorkerSettings()) for node in nodes] == [1, 1]
    assert team.options(WorkerSettings()) == {"num_cpus": 0, "num_gpus": 0}
    assert team.share(WorkerSettings()) == DeviceShare(threads=3)
    assert team.share(WorkerSettings(cpus=8)) == DeviceShare(threads=8)
    assert LocalTeam().nodes(NODES[2:]) == []


@pytest.mark.parametrize(("cpus", "places"), [(None, [2, 1]), (4, [2, 1]), (8, [2, 1]), (16, [1, 0]), (32, [0, 0])])
def test_workers_that_take_cpus_must_fit(
    monkeypatch: pytest.MonkeyPatch, cpus: float | None, places: list[int]
) -> None:
    settings, found = WorkerSettings(cpus=cpus), []
    for device, node in (("cuda", NODES[0]), ("cpu", NODES[1])):
        monkeypatch.setenv("SKILLMIX_DEVICE", device)
        team = LocalTeam()
        team.nodes(NODES)
        found.append(team.places(node, settings))

    assert found == places
    if not any(places):
        assert team.no_place(settings).message == "No node of the cluster has the 32 CPUs of a worker."


def test_a_worker_takes_its_share_and_keeps_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray sets it for an actor without CPUs
    before = MODELS._blocks
    try:
        DeviceShare(0.5).claim()
        assert (os.environ["SKILLMIX_DEVICE"], os.environ[GPU_SHARE]) == ("cuda", "0.5")
        assert "OMP_NUM_THREADS" not in os.environ
        DeviceShare(threads=4).claim()
        assert (os.environ["SKILLMIX_DEVICE"], os.environ["OMP_NUM_THREADS"]) == ("cpu", "4")
        assert MODELS._blocks == before + 2
    finally:
        _UNTIL_THE_END.close()
    assert MODELS._blocks == before
