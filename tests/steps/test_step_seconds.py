"""A run keeps the wall seconds of each step, and says them after the step, in `status` and in the report."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.runs.run import open_run
from skillmix.steps.run import run_experiment, train_steps
from skillmix.steps.step_kind import RunResult

DATASET = {"name": "d", "stage": "dataset", "writer": "one", "graders": ["judge"], "k": [1], "target": 5}
JOINED = {"name": "all", "stage": "dataset", "of": ["d"]}
EVALUATE: dict[str, Any] = {
    "name": "eval",
    "stage": "evaluate",
    "students": ["one"],
    "graders": ["judge"],
    "settings": ["train"],
    "k": [1],
    "combinations": 4,
    "generations": 2,
}
REPORT = {"name": "report", "stage": "report"}


def run(folder: Path, *steps: dict[str, Any], **more: Any) -> RunResult:
    document = {
        "name": "timed",
        "catalog": "verifiable",
        "students": {"one": {"model": "scripted:student?skill=0.9"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": list(steps),
    } | more
    path = folder / "timed.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return run_experiment(path)


def kept() -> dict[str, float]:
    run = open_run("timed")
    return run.step_seconds


def test_each_step_ends_with_a_line_and_its_record_has_its_seconds(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(in_folder, DATASET, JOINED, EVALUATE)

    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.endswith(": 1 s")] == ["d: 1 s", "all: 1 s", "eval: 1 s"]
    assert list(kept()) == ["d", "all", "eval"]
    assert 0 < sum(kept().values()) < result.seconds


def test_a_step_that_ends_a_second_time_adds_its_seconds(in_folder: Path) -> None:
    run(in_folder, EVALUATE)
    first = kept()["eval"]
    run(in_folder, {**EVALUATE, "combinations": 5})

    assert kept()["eval"] > first


def test_a_step_that_stopped_has_no_seconds(in_folder: Path) -> None:
    assert run(in_folder, EVALUATE, budget={"max_calls": 9}).stopped

    assert kept() == {}


def test_a_finished_step_keeps_its_seconds_and_its_bytes(
    in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillmix.report.contents.FIGURES", ())
    run(in_folder, DATASET, EVALUATE, REPORT)
    folder = in_folder / "runs/timed"
    before = {
        file: file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.endswith(("-wal", "-shm"))
    }
    capsys.readouterr()
    result = run(in_folder, DATASET, EVALUATE, REPORT)

    assert result.taken == {"d", "eval", "report"}
    assert "eval: 1 s" not in capsys.readouterr().err
    assert {file: file.read_bytes() for file in before} == before
    assert main(["report", "timed"]) == 0
    pages = {file: content for file, content in before.items() if "report" in file.parts}
    assert {file: file.read_bytes() for file in pages} == pages


def test_status_and_the_report_show_the_seconds(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(in_folder, EVALUATE)
    capsys.readouterr()
    assert main(["status", "timed"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "eval: 1 s"

    assert main(["report", "timed", "--no-figures"]) == 0
    [row] = json.loads((in_folder / "runs/timed/report/tables/where-the-time-went.json").read_text(encoding="utf-8"))
    assert row == {"step": "eval", "wall time": kept()["eval"]}


def test_a_training_says_its_seconds(in_folder: Path, small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [{"role": "user", "content": "Write."}, {"role": "assistant", "content": "Answer: a text of some words."}]
    (in_folder / "rows.jsonl").write_text(4 * (json.dumps({"messages": turns}) + "\n"), encoding="utf-8")
    document = {
        "name": "timed",
        "students": {"base": {"model": f"local:{small_model}"}},
        "steps": [{"name": "m", "stage": "train", "base": "base", "data": ["./rows.jsonl"], "steps": 1, "batch": 2}],
    }
    (in_folder / "timed.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    train_steps(in_folder / "timed.yaml")

    assert capsys.readouterr().err.splitlines()[-1].startswith("m: ")
