"""Local models and trainings on a Ray cluster of two nodes with caches of their own: the results of one process."""

import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from json import dumps, loads
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from skillmix.runs.run import open_run
from skillmix.steps.run import run_experiment
from tests.models.tiny_checkpoint import change_weights, write_adapter, write_checkpoint

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'skillmix[ray]'"
)
ROOT: Final = Path(__file__).parents[2]
LONG: Final = pytest.mark.skipif(not os.environ.get("SKILLMIX_LONG"), reason="a minute; set SKILLMIX_LONG=1")
HERE: Final = "/proc/self/cwd"
"""The working folder of each process: workers have another one than the driver, like other machines."""


@dataclass(frozen=True)
class Machines:
    address: str
    raylets: list[int]
    folder: Path
    """The working folder of the workers."""
    caches: Path


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder, caches = tmp_path_factory.mktemp("machine"), tmp_path_factory.mktemp("caches")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "SKILLMIX_DEVICE": "cpu", "PYTHONPATH": paths}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.separate_nodes", "2", str(caches)],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as cluster:
        assert cluster.stdout is not None
        facts = next(loads(line) for line in cluster.stdout if line.startswith("{"))
        yield Machines(facts["address"], facts["raylets"], folder, caches)


def doubled(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: -2.0 * tensor for name, tensor in tensors.items()}


def experiment(folder: Path, models: dict[str, str], **changes: Any) -> Path:
    document = {
        "name": "local",
        "catalog": "verifiable",
        "students": {name: {"model": model, "max_tokens": 6} for name, model in models.items()},
        "graders": {"rules": {"model": "rules:"}, "g": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            {
                "name": "e",
                "stage": "evaluate",
                "students": list(models),
                "graders": ["rules", "g"],
                "settings": ["all"],
                "k": [2],
                "combinations": 8,
                "generations": 1,
            }
        ],
    } | changes
    path = folder / "local.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def on_ray(path: Path, machines: Machines, program: str = "skillmix") -> "subprocess.CompletedProcess[str]":
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"RAY_ADDRESS": machines.address, "SKILLMIX_DEVICE": "cpu", "PYTHONPATH": paths}
    command = [sys.executable, "-m", program, "run", str(path), "--on", "ray"]
    return subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True, check=False)


def calls() -> list[Any]:
    with open_run("local").read() as journal:
        found = [*journal.calls("generate"), *journal.calls("grade")]
    return sorted(((call.key, call.request_hash, call.outcome) for call in found), key=str)


def test_two_machines_write_the_bytes_of_one_process_with_models_that_they_are_sent(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals = []
    for name in ("alone", "ray"):
        folder = tmp_path / name
        write_checkpoint(folder / "sent")
        write_adapter(folder / "adapter", Path(HERE) / "sent")
        models = {"a": f"local:{HERE}/sent", "b": f"local:{HERE}/sent+{HERE}/adapter", "c": f"local:{tmp_path}/seen"}
        if name == "alone":
            change_weights(write_checkpoint(tmp_path / "seen") / "model.safetensors", doubled)
        path = experiment(folder, models)
        monkeypatch.chdir(folder)
        if name == "alone":
            monkeypatch.setenv("SKILLMIX_DEVICE", "cpu")
            assert run_experiment(path).is_complete
        else:
            done = on_ray(path, machines)
            assert done.returncode == 0, done.stderr
            assert "2 workers on Ray" in done.stderr
        journals.append(calls())

    assert len(journals[0]) > 3 * 8 * 2, "three students wrote two turns each, and most texts have a vote"
    assert journals[0] == journals[1]
    for node in ("node0", "node1"):
        kept = [folder for folder in (machines.caches / node / "sent").iterdir() if folder.is_dir()]
        assert sorted((folder / "model.safetensors").is_file() for folder in kept) == [False, True]
        assert not any(folder.name.startswith(".") for folder in kept), "nothing half sent is left"


def test_another_model_at_the_same_path_is_refused(tmp_path: Path, machines: Machines) -> None:
    write_checkpoint(tmp_path / "model")
    change_weights(write_checkpoint(machines.folder / "model") / "model.safetensors", doubled)

    done = on_ray(experiment(tmp_path, {"a": f"local:{HERE}/model"}), machines)

    assert done.returncode == 2, done.stderr
    assert f"{HERE}/model on this machine differs from the driver's: model.safetensors" in done.stderr
    assert "worker 1" in done.stderr or "worker 2" in done.stderr
    assert "Traceback" not in done.stderr


def train_experiment(folder: Path, **settings: Any) -> Path:
    """An experiment that trains a tiny model, in a new folder."""
    draws = random.Random(0)

    def words(most: int) -> str:
        return " ".join(draws.choices("abcdefgh", k=draws.randint(3, most)))

    turns = [[("user", words(12)), ("assistant", words(20))] for _ in range(24)]
    rows = [{"messages": [{"role": role, "content": text} for role, text in pair]} for pair in turns]
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.jsonl").write_text("\n".join(map(dumps, rows)), encoding="utf-8")
    write_checkpoint(folder / "base", has_ends=True)
    recipe = {"steps": 10, "batch": 4, "learning_rate": 0.01, "warmup_steps": 0, "checkpoint_every": 2}
    document = {
        "name": "tune",
        "catalog": "verifiable",
        "students": {"base": {"model": f"local:{HERE}/base"}},
        "steps": [{"name": "m", "stage": "train", "base": "base", "data": ["./data"], **recipe, **settings}],
    }
    path = folder / "tune.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def losses(folder: Path) -> list[list[float]]:
    lines = (folder / "runs" / "tune" / "m" / "training.jsonl").read_text(encoding="utf-8").splitlines()
    return [[row["step"], row["answers"], row["norm"]] for row in map(loads, lines)]


@pytest.mark.parametrize("disks", ["own", pytest.param("shared", marks=LONG)])
def test_two_ranks_of_which_one_is_killed_take_the_steps_of_one_process(
    disks: str, tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = train_experiment(tmp_path / "alone")
    monkeypatch.chdir(alone.parent)
    monkeypatch.setenv("SKILLMIX_DEVICE", "cpu")
    run_experiment(alone)

    path = train_experiment(tmp_path / "ray", ranks=2)
    if disks == "own":
        monkeypatch.setenv("OWN_DISKS", "1")
    done = on_ray(path, machines, "tests.cluster.killed_rank")

    assert done.returncode == 0, done.stderr
    assert "m: 2 ranks on Ray" in done.stderr
    assert "was lost; training goes on after step 4" in done.stderr
    assert "m: step 10 of 10, loss" in done.stderr, "the driver shows the progress of the first rank"
    found, expected = losses(path.parent), losses(alone.parent)
    assert [row[0] for row in found] == list(range(10))
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-4)
    folders = [folder / "runs" / "tune" / "m" for folder in (path.parent, alone.parent)]
    one, two = ((folder / "model" / "skillmix.json").read_text(encoding="utf-8") for folder in folders)
    assert one == two, "the lineage does not depend on where a model was trained"
    assert not (folders[0] / "checkpoints").exists()
    assert f"the model is in {folders[0] / 'model'}" in done.stderr
    left = [*machines.caches.glob("*/training/*"), *machines.caches.glob("*/sent/*/part-*")]
    assert left == [], "nothing is left on the machines"


def test_more_ranks_than_the_cluster_has_are_refused(tmp_path: Path, machines: Machines) -> None:
    done = on_ray(train_experiment(tmp_path / "ray", ranks=3), machines)

    assert done.returncode == 2
    assert "ranks is 3, and the cluster offers 2 CPUs" in done.stderr
