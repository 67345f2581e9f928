"""The calls of a plan: dry run, status, progress and run count the same."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of, load_experiment
from skillmix.experiment.plan import cells_of
from skillmix.runs.run import Run, new_run, open_run
from skillmix.scores.planned_work import PlannedCalls
from skillmix.scores.status import run_status
from skillmix.steps.run import StepFilter, planned_work, run_experiment
from tests.steps.estimating import dry_run

READABLE = ["graders.judge.model=scripted:grader?noise=0.05", "steps.eval.combinations=12"]
"""Changes of the smoke experiment after which every grade can be read."""


def stored(name: str) -> int:
    try:
        with open_run(name).read() as journal:
            return journal.extent()[0]
    except UserError:
        return 0


def killed_after(calls: int, path: str, changes: Sequence[str]) -> None:
    """Run an experiment in another process and kill it once it has stored so many calls."""
    settings = [word for change in changes for word in ("--set", change)]
    process = subprocess.Popen(
        [sys.executable, "-m", "skillmix", "evaluate", path, *settings],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while stored("smoke") < calls and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_status_after_a_kill_counts_the_calls_that_the_next_run_makes(in_folder: Path) -> None:
    total = 2 * 5 * 3 * 12 * 3 * (2 + 3)  # students, k, settings, combinations, generations, calls
    found = []
    for calls in (1, 300, 1500):
        killed_after(calls, "smoke", READABLE)
        status = run_status("smoke")
        found.append(status.missing)
        assert status.missing_bound == "about" if status.missing else status.missing_bound is None

        run = run_experiment(Path("smoke"), changes=READABLE, wanted=StepFilter(stage="evaluate"))

        assert run.called == status.missing
        assert run.called + run.found == run_status("smoke").done
        assert (run_status("smoke").missing, run_status("smoke").missing_bound) == (0, None)
        assert dry_calls(READABLE, attempts=3) == run_status("smoke").done <= total
        new_run("smoke").path.rename(f"old-{calls}")
    assert sum(found) > 0


def dry_calls(changes: Sequence[str], *, attempts: int) -> int:
    """The calls of a dry run, whose upper bound takes all attempts of graders."""
    estimates = dry_run(Path("smoke"), prices=None, changes=changes)
    return sum(e.calls // (attempts if e.role == "grader" else 1) for e in estimates)


def document(**steps: Any) -> dict[str, Any]:
    evaluation = {
        "name": "eval",
        "stage": "evaluate",
        "students": ["base"],
        "graders": ["judge"],
        "settings": ["all"],
        "k": [1],
        "combinations": 5,
        "generations": 2,
    }
    return {
        "name": "plan",
        "students": {"base": {"model": "scripted:student"}},
        "graders": {
            "judge": {"model": "scripted:grader", "attempts": 1},
            "second": {"model": "scripted:grader", "rounds": 1, "attempts": 1},
        },
        "steps": [evaluation, {**evaluation, "name": "again", "graders": ["judge", "second"], "combinations": 8}],
    }


def test_calls_that_two_steps_share_are_counted_once(in_folder: Path) -> None:
    path = in_folder / "plan.yaml"
    path.write_text(yaml.safe_dump(document()), encoding="utf-8")
    experiment = load_experiment(path)
    calls = 8 * 2 * (2 + 3 + 1)

    assert PlannedCalls(cells_of(experiment, load_catalog("paper")), experiment).total == calls
    assert sum(estimate.calls for estimate in dry_run(path, prices=None)) == calls
    assert run_experiment(path).called == calls
    assert run_status("plan").done == calls


def test_the_plan_of_a_step_counts_settings_that_share_combinations_once(in_folder: Path) -> None:
    plan = document()
    plan["steps"] = [{**plan["steps"][0], "settings": ["all", "held-out", "train"], "combinations": 300}]
    experiment = experiment_of(plan, source="test")
    catalog = load_catalog("paper")
    different = {combination.id for cell in cells_of(experiment, catalog) for combination in cell.combinations}

    [work] = planned_work(experiment, catalog, experiment.steps, Run(in_folder / "runs/plan"))

    assert len(different) < 900
    assert work.total == len(different) * 2 * (2 + 3)


def test_a_data_set_that_was_stopped_misses_at_least_what_reaches_its_targets(in_folder: Path) -> None:
    plan = document()
    plan["steps"] = [
        {
            "name": "d",
            "stage": "dataset",
            "writer": "base",
            "graders": ["judge"],
            "k": [1],
            "target": 20,
            "validation": 0,
        }
    ]
    plan["budget"] = {"max_calls": 40}
    path = in_folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan), encoding="utf-8")
    with suppress(UserError):  # no text has full marks yet
        run_experiment(path)
    status = run_status("plan")

    rest = run_experiment(path, changes=["budget.max_calls=100000"])

    assert (status.missing, status.missing_bound) == (20 * 5 - 40, "at least")
    assert rest.called >= status.missing
    assert run_status("plan").missing == 0


def test_an_unreadable_grade_with_attempts_left_is_missing(in_folder: Path) -> None:
    plan = document()
    plan["graders"]["judge"] = {"model": "scripted:grader?unreadable=1", "rounds": 1, "attempts": 2}
    plan["steps"] = plan["steps"][:1]
    path = in_folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan), encoding="utf-8")
    run_experiment(path, changes=["graders.judge.attempts=1"])
    assert run_status("plan").missing == 0

    run = open_run("plan")
    with run.write():
        run.continue_with(load_experiment(path), load_catalog("paper"))

    status = run_status("plan")
    assert status.missing == run_experiment(path).called == 5 * 2


def test_students_with_one_turn_are_planned_and_missed_as_such(in_folder: Path) -> None:
    plan = document()
    plan["students"]["short"] = {"model": "scripted:student?marker=0", "prompts": "brief"}
    plan["steps"] = [{**plan["steps"][0], "students": ["base", "short"]}]
    path = in_folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan), encoding="utf-8")
    experiment = load_experiment(path)
    calls = 5 * 2 * (2 + 3) + 5 * 2 * (1 + 3)

    assert PlannedCalls(cells_of(experiment, load_catalog("paper")), experiment).total == calls
    assert sum(estimate.calls for estimate in dry_run(path, prices=None)) == calls
    for most in (1, 33, 81):
        run_experiment(path, changes=[f"budget.max_calls={most}"])
        assert run_status("plan").missing == calls - most
    assert run_experiment(path).called == calls - 81
    assert (run_status("plan").done, run_status("plan").missing) == (calls, 0)


def test_a_data_set_of_one_turn_plans_one_call_for_each_text(in_folder: Path) -> None:
    plan = document()
    plan["prompts"] = "brief"
    step = {"name": "d", "stage": "dataset", "writer": "base", "graders": ["judge"], "k": [1], "target": 20}
    experiment = experiment_of({**plan, "steps": [step]}, source="test")

    [work] = planned_work(experiment, load_catalog("paper"), experiment.steps, Run(in_folder / "runs/plan"))

    assert work.total == 20 * (1 + 3)
