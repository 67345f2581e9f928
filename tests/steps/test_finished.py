"""Finished steps are taken from their records: at once, if nothing changed, and never on the word of a bad file."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.runs.journal.journal import JournalWriter
from skillmix.runs.journal.locking import locked
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
    """The record file of a run that is done."""
    assert run(in_folder).is_complete
    return in_folder / "runs/done/finished.json"


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


@pytest.mark.parametrize(
    "content",
    [b"{", b"null", b'{"format": 1, "digest": ""}', b"\xff\xfe", b"[" * 100_000],
)
def test_a_damaged_record_means_that_steps_look_again(record: Path, content: bytes) -> None:
    whole = record.read_bytes()
    record.write_bytes(content)

    again = run_experiment(Path("done.yaml"))

    assert (again.called, again.taken, again.is_complete) == (0, set(), True)
    assert json.loads(record.read_bytes())["steps"].keys() == json.loads(whole)["steps"].keys()
    assert run_experiment(Path("done.yaml")).taken == {"d", "all", "eval"}


def test_an_edited_or_missing_record_is_not_trusted(record: Path) -> None:
    edited = record.read_text(encoding="utf-8").replace('"calls": ', '"calls": 9')
    record.write_text(edited, encoding="utf-8")
    assert run_experiment(Path("done.yaml")).taken == set()

    record.unlink()  # as in runs of older versions
    assert run_experiment(Path("done.yaml")).taken == set()
    assert run_experiment(Path("done.yaml")).taken == {"d", "all", "eval"}


def test_rows_that_are_gone_are_asked_for_again(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connection = sqlite3.connect("runs/done/journal/calls.sqlite")
    evaluated = open_run("done").cells[0].combinations[1].id
    with connection:
        gone = connection.execute("DELETE FROM calls WHERE combination = ?", (evaluated,)).rowcount
    connection.close()

    again = run_experiment(Path("done.yaml"))

    assert again.called == gone > 0
    assert "eval runs again: the journal changed" in capsys.readouterr().err


def test_a_data_set_that_was_edited_or_removed_is_made_again(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Path("runs/done/d/dataset/train.jsonl")
    content = rows.read_bytes()
    rows.write_bytes(content.replace(b"a", b"b", 1))

    again = run_experiment(Path("done.yaml"))

    assert "d runs again: what it made changed" in capsys.readouterr().err
    assert rows.read_bytes() == content
    assert (again.called, again.taken) == (0, {"all", "eval"})


def test_a_copy_of_a_run_is_finished_too(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Path("runs/done/journal/calls.sqlite")
    content = journal.read_bytes()
    journal.unlink()
    journal.write_bytes(content)  # other times, the same rows

    assert run_experiment(Path("done.yaml")).taken == {"d", "all", "eval"}
    assert "runs again" not in capsys.readouterr().err


def test_a_step_that_did_not_end_has_no_record(in_folder: Path) -> None:
    stopped = run(in_folder, EVALUATE, budget={"max_calls": 10})
    assert stopped.stopped
    assert open_run("done").finished.record("eval") is None

    whole = run(in_folder, EVALUATE)
    assert whole.is_complete
    assert open_run("done").finished.record("eval") is not None


def test_a_finished_run_is_left_alone_while_another_process_writes_to_it(record: Path) -> None:
    with (
        locked(Path("runs/done/journal/calls.sqlite")),
        pytest.raises(UserError, match="Another process is writing"),
    ):
        run_experiment(Path("done.yaml"))


def test_a_refused_run_does_not_lose_its_records(record: Path) -> None:
    before = record.read_bytes()
    with pytest.raises(UserError, match="another"):
        run_experiment(Path("done.yaml"), changes=["students.base.temperature=0.1"])

    assert record.read_bytes() == before
    assert run_experiment(Path("done.yaml")).taken == {"d", "all", "eval"}
