"""Finished steps are taken from their records: at once, if nothing changed, and never on the word of a bad file."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

import skillmix
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.runs.journal import JournalWriter
from skillmix.runs.run import open_run
from skillmix.steps.run import run_experiment
from skillmix.steps.step_kind import RunResult

EVALUATE: dict[str, Any] = {
    "name": "eval",
    "stage": "evaluate",
    "students": ["base"],
    "graders": ["judge"],
    "settings": ["train"],
    "k": [1, 2],
    "combinations": 4,
    "generations": 2,
}
DATASET = {"name": "d", "stage": "dataset", "writer": "base", "graders": ["judge"], "k": [1], "target": 5}
JOINED = {"name": "all", "stage": "dataset", "of": ["d"]}
REPORT = {"name": "report", "stage": "report"}


def document(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "done",
        "catalog": "verifiable",
        "students": {"base": {"model": "scripted:student?skill=0.9"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": list(steps or (DATASET, JOINED, EVALUATE)),
    } | more


def run(folder: Path, *steps: dict[str, Any], **more: Any) -> RunResult:
    path = folder / "done.yaml"
    path.write_text(yaml.safe_dump(document(*steps, **more)), encoding="utf-8")
    return run_experiment(path)


@pytest.fixture
def record(in_folder: Path) -> Path:
    """The database of a run that is done."""
    assert run(in_folder).is_complete
    return in_folder / "runs/done/run.sqlite"


def test_a_finished_run_ends_without_opening_its_journal_for_writing(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("skillmix.report.contents.FIGURES", ())  # they take seconds
    steps = (DATASET, JOINED, EVALUATE, REPORT)
    path = in_folder / "done.yaml"
    path.write_text(yaml.safe_dump(document(*steps)), encoding="utf-8")
    assert main(["run", str(path)]) == 0
    first = capsys.readouterr()

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("the journal was opened for writing")

    monkeypatch.setattr(JournalWriter, "__init__", refused)
    assert main(["run", str(path)]) == 0

    again = capsys.readouterr()
    assert again.out == first.out
    made = next(line for line in first.err.splitlines() if line.startswith("cost: "))
    found = next(line for line in again.err.splitlines() if line.startswith("cost: "))
    calls = made.split()[1]
    assert found.startswith(f"cost: 0 calls made, {calls} found")
    assert "report: open runs/done/report/index.html in a browser" in again.err
    assert all(f"{step['name']}: finished in an earlier run" in again.err for step in steps)


@pytest.mark.parametrize(
    ("change", "reopened"),
    [
        ("steps.eval.combinations=5", {"eval": "its combinations"}),
        ("steps.d.target=6", {"d": "its target"}),
        ("graders.judge.rounds=3", dict.fromkeys(("d", "eval"), "the rounds of the grader judge")),
        ("leakage.names=strict", {"d": "leakage.names", "all": "leakage.names"}),
        ("answer.missing_marker=zero", dict.fromkeys(("d", "eval"), "the treatment of missing markers")),
        ("students.base.concurrency=3", {}),
        ("budget.max_calls=100000", {}),
    ],
)
def test_a_step_runs_again_only_for_what_it_depends_on(
    record: Path, change: str, reopened: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Path("runs/done/d/dataset/train.jsonl")
    before = rows.read_bytes()
    result = run_experiment(Path("done.yaml"), changes=[change])

    shown = [line for line in capsys.readouterr().err.splitlines() if "runs again" in line]
    if rows.read_bytes() != before:
        reopened = {"all": "the data set d", **reopened}
    assert sorted(shown) == sorted(f"{name} runs again: {why} changed" for name, why in reopened.items())
    assert result.taken == {"d", "all", "eval"} - reopened.keys()


def test_another_code_version_looks_through_the_journal_again(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("skillmix.steps.step_kind.code_version", lambda: "another")

    result = run_experiment(Path("done.yaml"))

    assert (result.called, result.taken) == (0, set())
    assert "eval runs again: the code that reads replies and checks texts changed" in capsys.readouterr().err


def test_a_data_set_that_was_edited_or_removed_is_made_again(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Path("runs/done/d/dataset/train.jsonl")
    content = rows.read_bytes()
    rows.write_bytes(content.replace(b"a", b"b", 1))

    again = run_experiment(Path("done.yaml"))

    assert "d runs again: its output changed" in capsys.readouterr().err
    assert rows.read_bytes() == content
    assert (again.called, again.taken) == (0, {"all", "eval"})


def test_a_copy_of_a_run_is_finished_too(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Path("runs/done/run.sqlite")
    content = journal.read_bytes()
    journal.unlink()
    journal.write_bytes(content)  # other times, the same rows

    assert run_experiment(Path("done.yaml")).taken == {"d", "all", "eval"}
    assert "runs again" not in capsys.readouterr().err


def test_a_step_that_did_not_end_has_no_record(in_folder: Path) -> None:
    stopped = run(in_folder, EVALUATE, budget={"max_calls": 10})
    assert stopped.stopped
    assert open_run("done").finished("eval") is None

    whole = run(in_folder, EVALUATE)
    assert whole.is_complete
    assert open_run("done").finished("eval") is not None


def test_a_refused_run_does_not_lose_its_records(record: Path) -> None:
    before = open_run("done").state
    with pytest.raises(UserError, match="another"):
        run_experiment(Path("done.yaml"), changes=["students.base.temperature=0.1"])

    assert open_run("done").state == before
    assert run_experiment(Path("done.yaml")).taken == {"d", "all", "eval"}


def test_a_step_whose_record_is_deleted_looks_through_the_journal_again(record: Path) -> None:
    with closing(sqlite3.connect(record)) as connection, connection:
        connection.execute("DELETE FROM step WHERE name = 'eval'")

    again = run_experiment(Path("done.yaml"))

    assert (again.called, again.taken, again.is_complete) == (0, {"d", "all"}, True)
    assert run_experiment(Path("done.yaml")).taken == {"d", "all", "eval"}


def test_inputs_hold_no_version_path_or_time(record: Path) -> None:
    inputs = json.dumps([dict(step.inputs) for step in open_run("done").state.steps.values()])

    assert skillmix.__version__ not in inputs
    assert str(record.parent) not in inputs and "runs/done" not in inputs
    assert str(record.stat().st_mtime_ns) not in inputs
