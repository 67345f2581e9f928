"""Dataset steps whose conversations workers make: the set of one process, however the network and the workers fare."""

import os
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.errors import UserError
from skillmix.runs.leases import driving, owner
from skillmix.runs.run import open_run
from skillmix.runs.scheduler import StopReason
from skillmix.steps.run import run_experiment
from skillmix.steps.step_kind import RunResult
from tests.runs.leases.simulation import Asked, Faults, SimulatedWorkers

SEEDS = range(20 if os.environ.get("SKILLMIX_LONG") else 2)
Rows = list[tuple[str, str, str]]


@pytest.fixture(autouse=True)
def small_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several leases for a small wave, and no waiting for a network that fails on purpose."""
    for module, name, value in (
        (owner, "_FEWEST", 6),
        (driving, "_FIRST_WAIT", 0.001),
        (driving, "_LONGEST_WAIT", 0.01),
        (driving, "_LOOK_EVERY", 0.02),
        (driving, "_PATIENCE", 1.0),
        (driving, "_FEED_EVERY", 0.005),
    ):
        monkeypatch.setattr(module, name, value)


def experiment(folder: Path, **more: Any) -> Path:
    step = {"stage": "dataset", "writer": "w", "graders": ["judge"], "k": [1, 2], "target": {1: 30, 2: 25}}
    document = {
        "name": "data",
        "students": {"w": {"model": "scripted:student?skill=0.7&empty=0.05"}},
        "graders": {"judge": {"model": "scripted:grader?noise=0.05&unreadable=0.1", "rounds": 1}},
        "steps": [{"name": "d", **step, **more.pop("step", {})}],
    } | more
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    path = folder / "data.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def run_lent(path: Path, workers: SimulatedWorkers) -> RunResult:
    return run_experiment(path, open_workers=lambda: nullcontext(workers))


def rows() -> Rows:
    with open_run("data").read() as journal:
        calls = [*journal.calls("generate"), *journal.calls("grade")]
    return [(str(call.key), call.request_hash, repr(call.outcome)) for call in calls]


def files(result: RunResult) -> dict[str, bytes]:
    folder = result.datasets["d"].folder
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    "step", [{}, {"per_skill": {"ceiling": 3}}, {"generations": 2, "near_duplicates": None}], ids=str
)
def test_workers_write_the_data_set_of_one_process(in_folder: Path, workers: int, step: dict[str, Any]) -> None:
    alone = run_experiment(experiment(in_folder / "alone", step=step))
    expected = files(alone), rows()
    asked = Asked()

    lent = run_lent(experiment(in_folder / "lent", step=step), SimulatedWorkers(asked, seed=workers, workers=workers))

    assert (files(lent), rows()) == expected
    assert lent.datasets["d"].yields == alone.datasets["d"].yields
    assert (lent.called, lent.found, lent.failed) == (alone.called, 0, {})
    assert set(asked.by_key.values()) == {1}


@pytest.mark.parametrize("seed", SEEDS)
def test_lost_and_late_workers_change_nothing(in_folder: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    expected = files(run_experiment(experiment(in_folder / "alone"))), rows()
    chance = random.Random(seed)
    lost = tuple(chance.randrange(2, 30) for _ in range(4))
    faults = Faults(rate=0.2, lost_after=lost, lives_on=bool(seed % 2), come_late=(2, 4, 8, 16, 32))
    asked = Asked()

    lent = run_lent(experiment(in_folder / "lent"), SimulatedWorkers(asked, seed=seed, workers=2, faults=faults))

    assert (files(lent), rows()) == expected
    said = [line for line in capsys.readouterr().err.splitlines() if " is lost " in line]
    at_most = sum(int(line.split("at most ")[1].split()[0]) for line in said)
    assert asked.by_key.total() - len(rows()) <= at_most
    assert (lent.called, lent.found) == (len(rows()), 0)


def test_a_spent_budget_is_not_exceeded_and_the_next_run_ends_with_the_same_set(in_folder: Path) -> None:
    expected = files(run_experiment(experiment(in_folder / "alone")))
    asked = Asked()
    path = experiment(in_folder / "lent", budget={"max_calls": 70})

    first = run_lent(path, SimulatedWorkers(asked, seed=1, faults=Faults(lost_after=(9,), lives_on=True)))

    assert first.stopped is StopReason.BUDGET
    assert asked.by_key.total() <= 70
    assert files(run_lent(experiment(in_folder / "lent"), SimulatedWorkers(asked, seed=2))) == expected


def test_an_interrupted_dataset_step_drains_and_asks_nothing_again(in_folder: Path) -> None:
    expected = files(run_experiment(experiment(in_folder / "alone")))
    asked = Asked()
    path = experiment(in_folder / "lent")

    first = run_lent(path, SimulatedWorkers(asked, seed=3, faults=Faults(interrupted_after=9)))
    second = run_lent(path, SimulatedWorkers(asked, seed=3))

    assert first.stopped is StopReason.INTERRUPTED
    assert "d" not in first.datasets
    assert files(second) == expected
    assert set(asked.by_key.values()) == {1}


def test_a_set_that_is_written_needs_no_worker(in_folder: Path) -> None:
    class NoWorkers(SimulatedWorkers):
        async def links(self, work: Any) -> Any:
            raise AssertionError("workers were started in vain")

    path = experiment(in_folder / "lent")
    first = files(run_experiment(path))
    (in_folder / "lent/runs/data/d/dataset/train.jsonl").unlink()

    assert files(run_lent(path, NoWorkers(Asked(), seed=1))) == first


def test_a_step_without_workers_waits_for_one_and_then_gives_up(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = files(run_experiment(experiment(in_folder / "alone")))
    path = experiment(in_folder / "lent")

    with pytest.raises(UserError, match="All workers were lost, and no other came"):
        run_lent(path, SimulatedWorkers(Asked(), seed=1, workers=2, faults=Faults(lost_after=(6, 8))))
    assert "another is waited for" in capsys.readouterr().err

    assert files(run_experiment(path)) == expected
