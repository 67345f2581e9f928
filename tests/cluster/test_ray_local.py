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


def data(folder: Path) -> None:
    """Conversations to train on."""
    draws = random.Random(0)

    def words(most: int) -> str:
        return " ".join(draws.choices("abcdefgh", k=draws.randint(3, most)))

    turns = [[("user", words(12)), ("assistant", words(20))] for _ in range(24)]
    rows = [{"messages": [{"role": role, "content": text} for role, text in pair]} for pair in turns]
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.jsonl").write_text("\n".join(map(dumps, rows)), encoding="utf-8")


RECIPE: Final = {"steps": 10, "batch": 4, "learning_rate": 0.01, "warmup_steps": 0, "checkpoint_every": 2}
TRAIN: Final = {"name": "m", "stage": "train", "base": "a", "data": ["./data"], **RECIPE}
CELLS: Final = {"settings": ["all"], "k": [2], "combinations": 8, "generations": 1}


def experiment(folder: Path, models: dict[str, str], *steps: dict[str, Any]) -> Path:
    document = {
        "name": "local",
        "catalog": "verifiable",
        "students": {name: {"model": model, "max_tokens": 6} for name, model in models.items()},
        "graders": {"rules": {"model": "rules:"}, "g": {"model": "scripted:grader", "rounds": 1}},
        "steps": list(steps),
    }
    path = folder / "local.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def evaluation(*students: str) -> dict[str, Any]:
    return {"name": "e", "stage": "evaluate", "students": list(students), "graders": ["rules", "g"], **CELLS}


def on_ray(path: Path, machines: Machines, *how: str) -> "subprocess.CompletedProcess[str]":
    """Run an experiment; `how` says what `changed_ranks` changes."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"RAY_ADDRESS": machines.address, "SKILLMIX_DEVICE": "cpu", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "tests.cluster.changed_ranks", *how, "run", str(path), "--on", "ray"]
    return subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True, check=False)


def calls() -> list[Any]:
    with open_run("local").read() as journal:
        found = [*journal.calls("generate"), *journal.calls("grade")]
    return sorted(((call.key, call.request_hash, call.outcome) for call in found), key=str)


def losses(folder: Path) -> list[list[float]]:
    lines = (folder / "runs" / "local" / "m" / "training.jsonl").read_text(encoding="utf-8").splitlines()
    return [[row["step"], row["answers"], row["norm"]] for row in map(loads, lines)]


def same_training(one: Path, other: Path) -> None:
    """Check that two folders have the same training, up to rounding."""
    found, expected = losses(one), losses(other)
    assert [row[0] for row in found] == list(range(10))
    for row, wanted in zip(found, expected, strict=True):
        assert row == pytest.approx(wanted, rel=1e-4)
    files = [folder / "runs" / "local" / "m" / "model" / "skillmix.json" for folder in (one, other)]
    first, second = (file.read_text(encoding="utf-8") for file in files)
    assert first == second, "the lineage does not depend on where a model was trained"
    assert not (one / "runs" / "local" / "m" / "checkpoints").exists()


def nothing_left(machines: Machines) -> None:
    half_sent = [folder for folder in machines.caches.glob("*/sent/.*") if folder.is_dir()]
    of_trainings = [*machines.caches.glob("*/training/*"), *machines.caches.glob("*/sent/*/part-*")]
    assert half_sent + of_trainings == []


@LONG
def test_two_machines_train_and_write_as_one_process_with_models_that_they_are_sent(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_weights(write_checkpoint(tmp_path / "seen") / "model.safetensors", doubled)
    models = {"a": f"local:{HERE}/sent", "b": f"local:{HERE}/sent+{HERE}/adapter", "c": f"local:{tmp_path}/seen"}
    monkeypatch.setenv("SKILLMIX_DEVICE", "cpu")
    journals = []
    for name in ("alone", "ray"):
        folder = tmp_path / name
        data(folder)
        write_checkpoint(folder / "sent", has_ends=True)
        write_adapter(folder / "adapter", Path(HERE) / "sent")
        path = experiment(folder, models, TRAIN | {"ranks": 2}, evaluation("a", "b", "c", "step:m"))
        monkeypatch.chdir(folder)
        if name == "alone":
            assert run_experiment(path).is_complete
        else:
            done = on_ray(path, machines, "own-disks")
            assert done.returncode == 0, done.stderr
            assert "m: 2 ranks on Ray" in done.stderr
            assert "m: step 10 of 10, loss" in done.stderr, "the driver shows the progress of the first rank"
            assert f"the model is in {folder}/runs/local/m/model" in done.stderr
            assert "2 workers on Ray" in done.stderr
        journals.append(calls())

    alone, ray = ([call for call in journal if call[0].student != "m"] for journal in journals)
    assert len(alone) > 3 * 8 * 2, "three students wrote two turns each, and most texts have a vote"
    assert alone == ray
    assert sum(call[0].student == "m" for call in journals[1]) >= 8 * 2, "the trained model was found and asked"
    same_training(tmp_path / "ray", tmp_path / "alone")
    for node in ("node0", "node1"):
        kept = [folder for folder in (machines.caches / node / "sent").iterdir() if folder.is_dir()]
        assert sorted((folder / "model.safetensors").is_file() for folder in kept) == [False, True], "base and adapter"
    nothing_left(machines)


@LONG
def test_another_model_at_the_same_path_is_refused(tmp_path: Path, machines: Machines) -> None:
    write_checkpoint(tmp_path / "model")
    change_weights(write_checkpoint(machines.folder / "model") / "model.safetensors", doubled)

    done = on_ray(experiment(tmp_path, {"a": f"local:{HERE}/model"}, evaluation("a")), machines)

    assert done.returncode == 2, done.stderr
    assert f"{HERE}/model on this machine differs from the driver's: model.safetensors" in done.stderr
    assert "worker 1" in done.stderr or "worker 2" in done.stderr
    assert "Traceback" not in done.stderr


@LONG
@pytest.mark.parametrize("disks", ["own-disks", "shared-disk"])
def test_a_training_goes_on_from_its_checkpoint_when_a_rank_is_killed(
    disks: str, tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKILLMIX_DEVICE", "cpu")
    for name in ("alone", "ray"):
        folder = tmp_path / name
        data(folder)
        write_checkpoint(folder / "base", has_ends=True)
        path = experiment(folder, {"a": f"local:{HERE}/base"}, TRAIN | {"ranks": 2})
        if name == "alone":
            monkeypatch.chdir(folder)
            run_experiment(path)

    done = on_ray(path, machines, disks, "kill")

    assert done.returncode == 0, done.stderr
    assert "was lost; training goes on after step 4" in done.stderr
    same_training(tmp_path / "ray", tmp_path / "alone")
    nothing_left(machines)
