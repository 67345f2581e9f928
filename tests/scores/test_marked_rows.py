"""A large run is scored by marks instead of ballots, on several cores, and the table is the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.runs.reading import marks
from skillmix.runs.run import open_run
from skillmix.scores import pairs, scoring
from skillmix.scores.grader_card import graded_runs
from skillmix.scores.grader_card.graded_runs import graded_run
from skillmix.steps.run import run_experiment

STEP: dict[str, Any] = {
    "name": "e",
    "stage": "evaluate",
    "students": ["zoe", "ann"],
    "graders": ["judge", "strict", "code"],
    "settings": ["train", "all"],
    "k": [1, 2],
    "combinations": 8,
    "generations": 2,
}
WHOLE: dict[str, Any] = {
    "name": "r",
    "catalog": "verifiable",
    "students": {
        "zoe": {"model": "scripted:student?skill=0.6&empty=0.1&refusal=0.1"},
        "ann": {"model": "scripted:student?skill=0.9"},
    },
    "graders": {
        "judge": {"model": "scripted:grader", "rounds": 1},
        "strict": {"model": "scripted:grader?noise=0.3&unreadable=0.5", "rounds": 3},
        "code": {"model": "rules:"},
    },
    "steps": [STEP],
}


STATUS = ["status", "r", "--json"]


def run(folder: Path, **step: Any) -> None:
    """Run the experiment with another step, in the same run."""
    (folder / "r.yaml").write_text(yaml.safe_dump({**WHOLE, "steps": [{**STEP, **step}]}), encoding="utf-8")
    run_experiment(folder / "r.yaml")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    capsys.readouterr()
    assert main(list(words)) == 0
    output = capsys.readouterr()
    return json.loads(output.out), output.err


@pytest.fixture(params=["here", "by helpers"])
def as_if_large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which every run counts as large."""

    def become_large() -> None:
        monkeypatch.setattr(marks, "WORTH_IT", 1)
        monkeypatch.setattr(marks, "_AT_ONCE", 7)
        monkeypatch.setattr(marks, "is_there_a_second_core", lambda: request.param == "by helpers")
        monkeypatch.setattr(marks, "cores", lambda: 2)

    return become_large


def test_a_large_run_has_the_scores_of_a_small_one(
    in_folder: Path, capsys: pytest.CaptureFixture[str], as_if_large: Any
) -> None:
    run(in_folder)
    run(in_folder, combinations=5, graders=["judge", "code"], students=["ann"])
    commands = (["scores", "r", "--json", "--sets"], ["scores", "r", "--json", "--rules", "paper"], STATUS)
    small = [printed(capsys, *words) for words in commands]

    as_if_large()

    assert [printed(capsys, *words) for words in commands] == small
    assert {row["grader"] for row in small[0][0]} == {"judge", "strict", "code"}
    assert any(row["ungraded"] for row in small[0][0])


def test_students_and_graders_of_a_large_run_are_compared_as_in_a_small_one(
    in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(in_folder)
    run(in_folder, combinations=5, graders=["judge", "code"])
    commands = (
        ["compare", "r", "zoe", "ann", "--json", "--texts", "3"],
        ["compare", "r", "zoe", "ann", "--json"],
        ["graders", "r", "--json"],
        ["graders", "r", "--json", "--truth", "judge", "--rules", "paper"],
    )
    small = [printed(capsys, *words) for words in commands]
    items = graded_run(open_run("r"))

    monkeypatch.setattr(marks, "WORTH_IT", 1)
    monkeypatch.setattr(marks, "is_there_a_second_core", lambda: False)
    for module in (graded_runs, pairs, scoring):
        monkeypatch.setattr(module, "run_records", None)  # all texts in memory

    assert [printed(capsys, *words) for words in commands] == small
    assert len(small[0][0]["texts"]) == 3
    assert graded_run(open_run("r")) == items


def test_a_large_run_that_was_stopped_has_the_status_of_a_small_one(
    in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (in_folder / "r.yaml").write_text(yaml.safe_dump({**WHOLE, "budget": {"max_calls": 150}}), encoding="utf-8")
    run_experiment(in_folder / "r.yaml")
    small = printed(capsys, *STATUS)
    assert small[0]["calls"]["missing"] > 50

    monkeypatch.setattr(marks, "WORTH_IT", 1)

    assert printed(capsys, *STATUS) == small


def test_texts_that_no_experiment_plans_are_scored_as_in_a_small_run(
    in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(in_folder)
    (in_folder / "runs/r/earlier.yaml").unlink(missing_ok=True)
    document = yaml.safe_load((in_folder / "runs/r/experiment.yaml").read_text(encoding="utf-8"))
    document["steps"][0].update(combinations=3, k=[1], generations=1)
    (in_folder / "runs/r/experiment.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    small = printed(capsys, "scores", "r", "--json")
    assert {row["setting"] for row in small[0]} >= {"not-in-file"}

    monkeypatch.setattr(marks, "WORTH_IT", 1)
    monkeypatch.setattr(marks, "is_there_a_second_core", lambda: False)

    assert printed(capsys, "scores", "r", "--json") == small
