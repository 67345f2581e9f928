"""Scores that are kept beside a run: the same as new ones, for the same state of the run only."""

import json
import os
from pathlib import Path

import pytest
import yaml

from skillmix.runs.run import open_run
from skillmix.scores import kept_scores as module
from skillmix.scores.kept_scores import kept_scores
from skillmix.scores.scoring import ScoredRun, scored_run
from skillmix.steps.run import run_experiment

FILE = Path("runs/kept/derived-scores.json")


@pytest.fixture
def scored(in_folder: Path) -> ScoredRun:
    """The scores of a base and a tuned student, some of whose texts lack the marker."""
    facts = {"kind": "dataset", "hash": "0", "k": [1], "combinations": ["c"], "partition": "category"}
    (in_folder / "d").mkdir()
    (in_folder / "d/skillmix.json").write_text(json.dumps(facts), encoding="utf-8")
    step = {"name": "eval", "stage": "evaluate", "students": ["base", "tuned"], "graders": ["judge"], "k": [1, 2]}
    document = {
        "name": "kept",
        "students": {
            "base": {"model": "scripted:student?skill=0.3&marker=0.7"},
            "tuned": {"model": "scripted:student?skill=0.9", "tuned_from": "base", "trained_on": "d"},
        },
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [step | {"settings": ["train"], "combinations": 15, "generations": 2}],
    }
    (in_folder / "kept.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    run_experiment(in_folder / "kept.yaml")
    return scored_run("kept")


def test_kept_scores_are_the_scores(scored: ScoredRun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scored.changes
    assert any(change.format and change.format.among_valid for change in scored.changes)
    assert kept_scores(open_run("kept")) == scored

    monkeypatch.setattr(module, "scored_run", lambda _: pytest.fail("the journal was read"))
    assert kept_scores(open_run("kept")) == scored


@pytest.mark.parametrize("damage", ["{", "null", "[]", '{"state": 1}'])
def test_a_damaged_file_is_written_again(scored: ScoredRun, damage: str) -> None:
    kept_scores(open_run("kept"))
    whole = FILE.read_text(encoding="utf-8")
    for content in (damage, whole.replace('"value": 0.', '"value": 0.9')):
        FILE.write_text(content, encoding="utf-8")
        assert kept_scores(open_run("kept")) == scored
        assert FILE.read_text(encoding="utf-8") == whole


@pytest.mark.parametrize("file", ["journal/calls.sqlite", "../../d/skillmix.json"])
def test_another_journal_or_lineage_is_another_state(
    scored: ScoredRun, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_scores(open_run("kept"))
    os.utime(Path("runs/kept") / file, ns=(1, 1))

    monkeypatch.setattr(module, "scored_run", lambda _: ScoredRun([], [], ["read again"]))
    assert kept_scores(open_run("kept")).notes == ["read again"]
