"""What `skillmix run` prints: scores, its cost, and three commands that work."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.experiment.costs import Price
from tests.commands.command_line import run
from tests.runs.databases import forget_steps


def experiment(folder: Path, *, grader: str, has_report: bool = False, stage: str = "evaluate") -> Path:
    evaluate = {"students": ["base"], "settings": ["all"], "k": [1, 2], "combinations": 3, "generations": 1}
    step: dict[str, Any] = {"name": "eval", "stage": "evaluate", "graders": ["judge"], **evaluate}
    if stage == "dataset":
        step = {"name": "d", "stage": "dataset", "writer": "base", "graders": ["judge"], "k": [1], "target": 2}
    document = {
        "name": "tiny",
        "catalog": "verifiable",
        "students": {"base": {"model": "scripted:student"}},
        "graders": {"judge": {"model": grader}},
        "steps": [step, *([{"name": "report", "stage": "report"}] if has_report else [])],
    }
    path = folder / "tiny file.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({"grader": "rules:", "has_report": True}, ["texts", "scores", "run"]),
        ({"grader": "scripted:grader"}, ["texts", "report", "scores"]),
        ({"grader": "scripted:grader", "stage": "dataset"}, ["run", "status", "export"]),
    ],
)
def test_a_run_ends_with_its_cost_and_three_commands_that_work(
    in_folder: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, Any], wanted: list[str]
) -> None:
    path = experiment(in_folder, **facts)
    assert main(["run", str(path), "--set", "seed=5"]) == 0

    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    [cost] = [line for line in lines if line.startswith("cost: ")]
    assert " calls made, 0 found, " in cost and "of CPU time" in cost and "dollars" not in cost
    assert any("report: open" in line for line in lines) == facts.get("has_report", False)
    commands = lines[lines.index("try next:") + 1 :]
    assert len(commands) == 3
    assert [command.split(" -m skillmix ")[1].split()[0] for command in commands] == wanted
    assert "noise" not in printed.out
    for command in commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=dict(os.environ))
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout.strip()


@pytest.mark.parametrize(("price", "wanted"), [(Price(1000.0, 1000.0), r"\d+\.\d\d US"), (None, "US dollars unknown")])
def test_a_priced_run_says_what_it_cost_and_an_unpriced_one_that_the_cost_is_unknown(
    in_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    price: Price | None,
    wanted: str,
) -> None:
    monkeypatch.setattr("skillmix.steps.estimates.price_of", lambda spec, prices: price)

    assert main(["run", str(experiment(in_folder, grader="rules:")), "--json"]) == 0

    assert re.search(rf"cost: .* of CPU time, {wanted}", capsys.readouterr().err)


def test_with_json_standard_output_is_json_alone(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(experiment(in_folder, grader="rules:")), "--json"]) == 0

    printed = capsys.readouterr()
    assert {row["student"] for row in json.loads(printed.out)} == {"base"}
    assert "cost: " in printed.err
    assert "try next" not in printed.err


def test_calls_found_are_those_of_the_step_and_count_once_in_the_sum(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = {"stage": "evaluate", "students": ["s"], "settings": ["train"], "k": [1], "combinations": 5}
    document = {
        "name": "steps",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {name: {"model": "scripted:grader", "rounds": 1} for name in ("g", "h")},
        "steps": [
            {"name": "one", **shared, "graders": ["g"], "generations": 1},
            {"name": "two", **shared, "graders": ["h"], "generations": 1},
        ],
    }
    (in_folder / "steps.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")

    _, _, first = run(capsys, "run", "steps.yaml")
    forget_steps("steps")
    _, _, again = run(capsys, "run", "steps.yaml")

    # Two turns and a vote of each grader on five texts; the second step finds the turns of the first.
    assert "one: 15 calls made, 0 found" in first and "two: 5 calls made, 10 found" in first
    assert "cost: 20 calls made, 0 found" in first
    assert "one: 0 calls made, 15 found" in again and "two: 0 calls made, 15 found" in again
    assert "cost: 0 calls made, 20 found" in again
