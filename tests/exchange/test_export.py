"""Exports carry all that the scores are made of."""

import json
from pathlib import Path
from typing import Any

import pytest

from skillmix.exchange.export import What, export
from skillmix.experiment.experiment import experiment_of
from skillmix.scores.scoring import run_scores
from skillmix.scores.text_rows import run_texts
from skillmix.steps.run import run_checked

GRADERS = {"judge": "scripted:grader?noise=0.05", "other": "scripted:grader?noise=0.2"}


@pytest.fixture
def run_name(in_folder: Path) -> str:
    """Two students, two graders, two settings; a reply without the marker earns nothing in this run."""
    students = {"weak": "skill=0.6&marker=0.6&cut=0.2", "strong": "skill=0.9"}
    document = {
        "name": "pair",
        "catalog": "paper",
        "rules": "paper",
        "answer": {"missing_marker": "zero"},
        "students": {name: {"model": f"scripted:student?{rates}"} for name, rates in students.items()},
        "graders": {name: {"model": model, "rounds": 1} for name, model in GRADERS.items()},
        "steps": [
            {
                "name": "eval",
                "stage": "evaluate",
                "students": list(students),
                "graders": list(GRADERS),
                "settings": ["train", "all"],
                "k": [1, 2],
                "combinations": 12,
                "generations": 2,
            }
        ],
    }
    run_checked(experiment_of(document, source="pair"))
    return "pair"


def exported(run: str, what: What = "texts") -> list[dict[str, Any]]:
    path = export(run, what=what, file_format="jsonl", rules=None, output=None)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_full_marks_by_k_can_be_worked_out_from_an_export(run_name: str) -> None:
    pandas = pytest.importorskip("pandas")
    path = export(run_name, what="texts", file_format="jsonl", rules=None, output=None)

    texts = pandas.read_json(path, lines=True).explode("settings")
    cell = ["student", "grader", "settings", "k"]
    best = texts.groupby([*cell, "combination"])["full_marks"].max()
    full_marks = best.groupby(cell).mean()

    expected = {(s.student, s.grader, s.setting, s.k): s.value for s in run_scores("pair") if s.metric == "full_marks"}
    assert len(expected) == 16
    assert full_marks.to_dict() == pytest.approx(expected)


def test_an_export_follows_the_rule_for_a_missing_marker(run_name: str) -> None:
    texts = exported(run_name)

    without = [text for text in texts if text["status"] == "no marker"]

    assert without
    assert {text["full_marks"] for text in without} == {0.0}
    assert {reason["reason"] for text in without for reason in text["reasons"]} >= {'the reply has no "Answer:"'}


@pytest.mark.parametrize("what", ["texts", "votes"])
def test_rows_carry_setting_category_finish_and_length(run_name: str, what: What) -> None:
    rows = exported(run_name, what)

    assert {setting for row in rows for setting in row["settings"]} == {"train", "all"}
    assert all(len(row["categories"]) == row["k"] and all(row["categories"]) for row in rows)
    assert {row["finish"] for row in rows} == {"stop", "length"}
    assert all(row["cut"] == (row["finish"] == "length") for row in rows)
    assert all(row["sentence_limit"] == 1 and row["sentences"] >= 1 for row in rows)
    if what == "texts":
        assert all((row["characters"], row["words"]) == (len(row["text"]), len(row["text"].split())) for row in rows)


def test_texts_carry_the_same_facts(run_name: str) -> None:
    rows = {(t.student, t.combination, t.generation, t.grader): t for t in run_texts(run_name)}

    for text in exported(run_name):
        row = rows[text["student"], text["combination"], text["generation"], text["grader"]]
        assert (list(row.settings), list(row.categories)) == (text["settings"], text["categories"])
        assert (row.k, row.finish, row.words, row.sentences) == (
            text["k"],
            text["finish"],
            text["words"],
            text["sentences"],
        )
