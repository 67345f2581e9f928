"""Woven full marks from a run to its scores, texts and exports, for a student that writes templates."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.calls import Subject
from skillmix.catalog.files import load_catalog
from skillmix.checkers.template_student import TemplateStudent
from skillmix.commands import main
from skillmix.models.scripted import ScriptedModel
from skillmix.runs.verdicts import judge_of
from skillmix.scores.scoring import run_scores
from skillmix.scores.table import wide_table
from skillmix.scores.text_rows import run_texts
from skillmix.steps.run import run_experiment


@cache
def template_student() -> TemplateStudent:
    catalog = load_catalog("verifiable")
    return TemplateStudent(catalog.templates, judge_of(catalog))


class TemplateWriter(ScriptedModel):
    """Writes the texts of the template student."""

    def _write(self, task: Subject, chance: Any) -> str:
        written = template_student().write(task.combination.skills, task.combination.topic)
        assert written is not None
        return f"Answer: {written.text}\n\nExplanation: so it is."


@pytest.fixture
def template_run(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose only student writes templates, graded by code and by a scripted model."""
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["code", "model"], "settings": ["all"]}
    document = {
        "name": "templates",
        "catalog": "verifiable",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {"code": {"model": "rules:"}, "model": {"model": "scripted:grader", "rounds": 1}},
        "steps": [{**step, "k": [1, 2, 3], "combinations": 12, "generations": 1}],
    }
    (in_folder / "templates.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    monkeypatch.setattr(
        "skillmix.runs.calling.open_model",
        lambda spec, _: (TemplateWriter if spec.name.startswith("student") else ScriptedModel)(spec),
    )
    run_experiment(in_folder / "templates.yaml")


@pytest.mark.usefixtures("template_run")
def test_templates_have_full_marks_and_no_woven_ones_and_a_model_leaves_woven_unknown() -> None:
    scores = [score for score in run_scores("templates") if score.metric == "full_marks"]

    code = {score.k: score for score in scores if score.grader == "code"}
    assert [code[k].value for k in (2, 3)] == [1.0, 1.0]
    assert [code[k].woven for k in (2, 3)] == [0.0, 0.0]
    assert {score.woven for score in scores if score.grader == "model"} == {None}
    table = wide_table(run_scores("templates"))
    assert "woven full marks" in table
    assert ".00 [.00, .24]" in table


@pytest.mark.usefixtures("template_run")
def test_texts_and_exports_say_which_skill_is_not_about_the_topic(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["texts", "templates", "--k", "2", "--n", "40"]) == 0
    assert "”; not about the topic" in capsys.readouterr().out
    assert main(["export", "templates", "--what", "texts"]) == 0
    lines = (in_folder / "runs" / "templates" / "texts.jsonl").read_text(encoding="utf-8").splitlines()

    rows = [row for row in map(json.loads, lines) if row["k"] == 2]

    by_code = [row for row in rows if row["grader"] == "code"]
    assert {(row["full_marks"], row["woven_full_marks"]) for row in by_code} == {(1.0, 0.0)}
    assert all(not all(entry["woven"] for entry in row["woven"]) for row in by_code)
    assert {(row["woven_full_marks"], row["woven"]) for row in rows if row["grader"] == "model"} == {(None, None)}
    assert all(text.woven_full_marks is None for text in run_texts("templates") if text.grader == "model")
