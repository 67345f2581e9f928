"""The joined form of a student from the file to the report: `joined:step:NAME`, and `joined: true` of a student."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.calls import GenerateKey
from skillmix.catalog.combinations import single_skills
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.report.records import ReportOptions
from skillmix.report.write import write_report
from skillmix.runs.run import open_run
from skillmix.runs.students import settings_for
from skillmix.scores.cells import CellKey
from skillmix.scores.lineages import student_lineages
from skillmix.scores.scoring import comparable_students, run_scores, scored_cells
from skillmix.steps.run import run_experiment
from tests.steps.estimating import dry_run

EVALUATE: dict[str, Any] = {
    "name": "eval", "stage": "evaluate", "students": ["teacher", "apart"], "graders": ["rules"], "settings": ["all"],
    "k": [1, 2, 3], "combinations": 6, "generations": 2,
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "name": "parts",
    "catalog": "figures",
    "prompts": "brief",
    "students": {
        "teacher": {"model": "composer:", "max_tokens": 80},
        "apart": {"model": "composer:", "max_tokens": 80, "joined": True},
        "scratch": {"model": "new:32x2x2", "max_tokens": 20},
    },
    "graders": {"rules": {"model": "rules:"}},
    "dataset": {"near_duplicates": None, "exact_duplicates": "keep", "example_copies": "keep", "validation": 0},
    "leakage": {"reserved": 0, "shown": "count"},
}
DATA = {"name": "texts", "stage": "dataset", "writer": "teacher", "graders": ["rules"], "k": [1, 2], "target": 30}
TRAIN = {"name": "m12", "stage": "train", "base": "scratch", "data": ["texts"], "steps": 2, "batch": 4}
ASK = {**EVALUATE, "students": ["step:m12", "joined:step:m12"], "settings": ["held-out"], "k": [2], "generations": 1}


def loaded(*steps: dict[str, Any], **changes: Any) -> Experiment:
    return experiment_of({**DOCUMENT, "steps": list(steps), **changes}, source="parts.yaml", checks_outside=True)


def written(folder: Path, *steps: dict[str, Any], **changes: Any) -> Path:
    path = folder / "parts.yaml"
    path.write_text(yaml.safe_dump({**DOCUMENT, "steps": list(steps), **changes}), encoding="utf-8")
    return path


def test_a_joined_student_is_asked_for_each_skill_alone_in_one_call(in_folder: Path) -> None:
    path = written(in_folder, EVALUATE)
    planned = {e.model: e for e in dry_run(path, prices=None) if e.role == "student"}

    assert run_experiment(path).is_complete

    run = open_run("parts")
    with run.read() as journal:
        combinations = journal.combinations()
        calls = [call for call in journal.calls("generate") if isinstance(call.key, GenerateKey)]
    apart = [call for call in calls if call.key.student == "apart"]
    assert len(apart) == len(calls) / 2 == planned["composer:"].calls == 36
    for call in apart:
        assert len(call.messages) == len(single_skills(combinations[call.key.combination]))
    values = {(s.student, s.k): s.value for s in run_scores(run) if s.metric == "full_marks"}
    assert values["teacher", 3] == 1 and (values["apart", 3] or 0) > 0.8
    assert run_experiment(path).counts["eval"].called == 0
    assert write_report([run], output=in_folder / "report", options=ReportOptions()).page.is_file()
    cells = scored_cells(run)
    assert {key.student for key in cells} == {"teacher", "apart"}
    assert [c.student for c in comparable_students(run, run.experiment, ["teacher", "apart"], {})] == ["teacher"]


def test_the_joined_form_of_a_trained_model_has_its_own_row_and_the_lineage_of_the_model(in_folder: Path) -> None:
    pytest.importorskip("torch", reason="the extra `train` is not installed")
    path = written(in_folder, DATA, TRAIN, ASK, {"name": "report", "stage": "report"}, partition="nested:1")

    assert run_experiment(path).is_complete

    run = open_run("parts")
    cells = scored_cells(run)
    assert list(cells) == [CellKey("parts", name, "rules", "held-out", 2) for name in ("m12", "m12-joined")]
    assert all(len(cell.combinations) == 6 and cell.scores["full_marks"].complete for cell in cells.values())
    lineages = student_lineages(run, run.experiment, ["m12", "m12-joined"], {})
    assert lineages["m12"].identity == lineages["m12-joined"].identity
    assert [c.student for c in comparable_students(run, run.known_experiment, list(lineages), lineages)] == ["m12"]
    assert run_experiment(path).counts["eval"].called == 0
    run_without = run_experiment(
        written(in_folder, DATA, TRAIN, {**ASK, "students": ["step:m12"]}, partition="nested:1")
    )
    assert run_without.is_complete
    assert write_report([open_run("parts")], output=in_folder / "later", options=ReportOptions()).page.is_file()


def test_a_joined_model_is_repeated_with_the_model_that_it_asks() -> None:
    experiment = loaded(
        DATA, TRAIN, {**ASK, "settings": ["random-cells"]}, partitions=["nested:101", "nested:102"], seeds=[0, 1]
    )
    found = {step.name: step.model_references for step in experiment.steps if step.stage == "evaluate"}
    assert found["eval-p102-s1"] == ("step:m12-p102-s1", "joined:step:m12-p102-s1") and len(found) == 4
    settings = settings_for(experiment, "m12-p102-s1-joined")
    assert settings.joined and not settings_for(experiment, "m12-p102-s1").joined
    assert settings.max_tokens == 20
    again = experiment_of(experiment.model_dump(mode="json"), source="stored")
    assert again == experiment and again.students["apart"].joined
    assert "joined" not in experiment.model_dump(mode="json")["students"]["teacher"]


@pytest.mark.parametrize(
    ("steps", "changes", "fault"),
    [
        ([DATA | {"writer": "apart"}], {}, "only generate and evaluate steps can use"),
        ([DATA, TRAIN, {**TRAIN, "name": "m2", "base": "joined:step:m12"}], {}, "only generate and evaluate steps"),
        ([DATA, TRAIN, {**TRAIN, "name": "m12-joined"}, ASK], {}, "like another student or step"),
        ([{**EVALUATE, "students": ["joined:teacher"]}], {}, "there is no student 'joined:teacher'"),
        ([{**EVALUATE, "students": ["joined:step:m9"]}], {}, "there is no earlier train step 'm9'"),
        (
            [EVALUATE],
            {"students": {**DOCUMENT["students"], "apart": {"model": "openai:m", "joined": True, "batch": True}}},
            "joined students have no batches",
        ),
    ],
)
def test_faults_of_joined_students(steps: list[dict[str, Any]], changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError) as caught:
        loaded(*steps, **changes)
    assert fault in str(caught.value)


def test_a_prompt_set_with_two_turns_is_refused_before_any_call(in_folder: Path) -> None:
    with pytest.raises(UserError, match="Prompt set 'standard' has several turns"):
        run_experiment(written(in_folder, EVALUATE, prompts="standard"))
    assert not (in_folder / "runs" / "parts").exists()
