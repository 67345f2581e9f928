"""Students whose training the experiment declares: findings, comparisons and leak checks as for local models."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.catalog.combinations import Combination, Draw, draw_combinations
from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.experiment.experiment import load_experiment
from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from skillmix.runs.run import open_run
from skillmix.scores.lineages import lineage_of_student
from skillmix.scores.scoring import run_scores
from skillmix.scores.sentences import scored_run
from skillmix.steps.run import run_experiment


def write(folder: Path, document: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "skillmix.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def data(folder: Path, combinations: list[Combination] | None = None, **more: Any) -> Path:
    """A data set of some combinations, made under the default partition of the catalog paper."""
    texts = combinations or []
    document = {
        "kind": "dataset",
        "hash": folder.name,
        "catalog": "paper",
        "partition": "category",
        "k": [1, 2],
        "combinations": [c.id for c in texts],
        "skill_sets": [list(c.skills) for c in texts if c.k > 1],
        "counts": {"train": 70},
    }
    return write(folder, document | more)


def model(folder: Path, **more: Any) -> Path:
    document = {"kind": "model", "base": {"spec": BASE}, "k": [1, 2], "combinations": ["c"], "partition": "category"}
    return write(folder, document | {"catalog": "paper"} | more)


BASE = "scripted:student?skill=0.3"
TUNED = {"model": "scripted:student?skill=0.95"}


def experiment(folder: Path, tuned: dict[str, Any], *, top: dict[str, Any] | None = None, **step: Any) -> Path:
    """An evaluation of a base and a tuned student, both behind something that has no weights here."""
    evaluation = {"name": "eval", "stage": "evaluate", "students": ["base", "tuned"], "graders": ["judge"]}
    document = {
        "name": "served",
        "catalog": "paper",
        "students": {"base": {"model": BASE}, "tuned": {**TUNED, **tuned}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [{**evaluation, "settings": ["held-out"], "k": [2, 3], "combinations": 20, "generations": 1, **step}],
    }
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump(document | (top or {})), encoding="utf-8")
    return path


def drawn(setting: Any, k: int, n: int, partition: str | None = None) -> list[Combination]:
    catalog = load_catalog("paper")
    return draw_combinations(Draw(catalog.pool(setting, partition=partition), setting, k, 0), n)


@pytest.mark.parametrize("form", ["folder", "file", "list"])
def test_a_served_model_is_not_tested_on_the_data_set_that_it_declares(in_folder: Path, form: str) -> None:
    folder = data(in_folder / "d12", drawn("held-out", 2, 3))
    declared = {"folder": str(folder), "file": str(folder / "skillmix.json"), "list": ["d12"]}[form]

    run_experiment(experiment(in_folder, {"tuned_from": "base", "trained_on": declared}))
    around = drawn("held-out", 2, 23)[3:]
    assert {(c.student, c.k): c.combinations for c in open_run("served").cells if c.k == 2} == {
        ("base", 2): tuple(around),
        ("tuned", 2): tuple(around),
    }
    assert {s.trained_on for s in run_scores("served") if s.student == "tuned"} == {0}

    run_experiment(experiment(in_folder, {"tuned_from": "base", "trained_on": declared}, allow_trained=True))
    planned = [score for score in run_scores("served") if score.setting == "held-out"]
    assert {(s.student, s.k): s.trained_on for s in planned} == {
        ("base", 2): None,
        ("base", 3): None,
        ("tuned", 2): 3,
        ("tuned", 3): 0,
    }


def test_a_served_model_with_a_declared_lineage_gets_findings_and_changes(in_folder: Path) -> None:
    data(in_folder / "d12")

    run_experiment(experiment(in_folder, {"tuned_from": "base", "trained_on": "d12"}))

    assert {(c.student, c.base, c.row.k, c.row.verdict) for c in scored_run("served").changes} == {
        ("tuned", "base", 2, "a gain"),
        ("tuned", "base", 3, "a gain"),
    }
    page = report(["served"], options=ReportOptions(figures=False)).page
    findings = (page.parent / "tables" / "findings.csv").read_text(encoding="utf-8")
    assert "held-out" in findings
    assert "tuned − base" in findings
    lineage = (page.parent / "tables" / "lineage.csv").read_text(encoding="utf-8")
    assert f"tuned,{BASE}" in lineage
    assert ',"D(1,2)",70,' in lineage


@pytest.mark.parametrize("form", ["m", "m/skillmix.json"])
def test_a_student_may_name_the_file_of_its_model(in_folder: Path, form: str) -> None:
    model(in_folder / "m", combinations=[c.id for c in drawn("held-out", 3, 2)])

    run_experiment(experiment(in_folder, {"lineage": form}))
    assert {c.combinations for c in open_run("served").cells if c.k == 3} == {tuple(drawn("held-out", 3, 22)[2:])}

    model(in_folder / "m")
    run_experiment(experiment(in_folder, {"lineage": form}))
    assert {c.base for c in scored_run("served").changes} == {"base"}


def test_a_declared_lineage_continues_that_of_its_base(in_folder: Path) -> None:
    data(in_folder / "d1", combinations=None, k=[1], partition="tables")
    data(in_folder / "d2", drawn("train", 2, 4), k=[2])
    students = {
        "base": {"model": BASE},
        "first": {"model": "scripted:student", "tuned_from": "base", "trained_on": "d1"},
        "tuned": {**TUNED, "tuned_from": "first", "trained_on": ["d2"]},
    }
    loaded = load_experiment(experiment(in_folder, {}, top={"students": students}))

    lineage = lineage_of_student(loaded, "tuned")

    assert lineage is not None
    assert (lineage.base, lineage.k, lineage.datasets, lineage.rows) == (BASE, (1, 2), ("d1", "d2"), 140)
    assert lineage.combinations == {c.id for c in drawn("train", 2, 4)}
    assert {p.name for p in lineage.partitions} == {"tables", "category"}
    assert lineage.skill_sets == frozenset(frozenset(c.skills) for c in drawn("train", 2, 4))
    assert lineage_of_student(loaded, "base") is None


def test_a_data_set_without_a_base_is_enough_for_leak_checks(in_folder: Path) -> None:
    data(in_folder / "d12", drawn("held-out", 2, 3))

    run_experiment(experiment(in_folder, {"trained_on": "d12"}))

    assert {s.trained_on for s in run_scores("served") if s.student == "tuned"} == {0}


def test_a_step_that_trains_a_declared_base_continues_its_lineage(in_folder: Path) -> None:
    data(in_folder / "d1", drawn("train", 2, 4))
    step = {"name": "m", "stage": "train", "base": "tuned", "data": ["./d1"]}
    path = experiment(in_folder, {"tuned_from": "base", "trained_on": "d1"}, top={"steps": [step]})
    loaded = load_experiment(path)
    own = model(in_folder / "own", base={"spec": TUNED["model"]}, combinations=["later"], k=[3])
    trained = loaded.students["tuned"].model_copy(
        update={"model": f"local:{own}", "tuned_from": None, "trained_on": []}
    )
    now = loaded.model_copy(update={"students": {**loaded.students, "m": trained}})

    lineage = lineage_of_student(now, "m")

    assert lineage is not None
    assert (lineage.base, lineage.k) == (BASE, (1, 2, 3))
    assert lineage.combinations == {"later", *(c.id for c in drawn("train", 2, 4))}


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "both ways": (
        {"lineage": "m", "tuned_from": "base", "trained_on": "d1"},
        "lineage already records the base",
        "`skillmix schema`",
    ),
    "a base without data": ({"tuned_from": "base"}, "tuned_from needs trained_on", "`skillmix schema`"),
    "an unknown base": (
        {"tuned_from": "basis", "trained_on": "d1"},
        "there is no student 'basis'",
        "`skillmix schema`",
    ),
    "its own base": ({"tuned_from": "tuned", "trained_on": "d1"}, "'tuned' is tuned from itself", "`skillmix schema`"),
    "no such data": (
        {"tuned_from": "base", "trained_on": "no"},
        "students.tuned: There is no skillmix.json of a data set in no",
        "skillmix dataset",
    ),
    "a model as data": ({"trained_on": "m"}, "m is a model, not a data set", "lineage"),
    "data as a model": ({"lineage": "d1"}, "d1 is a data set, not a model", "trained_on"),
    "no such model": ({"lineage": "no"}, "There is no skillmix.json of a model in no", "folder of a model"),
    "its own file": ({"model": "local:m", "trained_on": "d1"}, "already has a skillmix.json", "the model's file"),
}


@pytest.mark.parametrize(("tuned", "error", "hint"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_contradiction_is_refused_before_the_first_call(
    in_folder: Path, tuned: dict[str, Any], error: str, hint: str, is_allowed: bool
) -> None:
    data(in_folder / "d1")
    model(in_folder / "m")

    with pytest.raises(UserError) as refused:
        run_experiment(experiment(in_folder, tuned, allow_trained=is_allowed))

    assert error in refused.value.message
    assert hint in f"{refused.value.message} {refused.value.hint}"
    assert not Path("runs").exists()


def test_a_student_of_another_partition_is_refused_or_its_pairs_are_counted(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = drawn("train", 2, 2000, "random-skills:3")
    data(in_folder / "d12", trained, partition="random-skills:3")
    declared = {"tuned_from": "base", "trained_on": "d12"}

    assert main(["run", str(experiment(in_folder, declared))]) == 2
    refused = capsys.readouterr().err
    assert "tuned was trained on data of the partition random-skills:3, but step eval evaluates under cat" in refused
    assert "hint: Set partition: random-skills:3" in refused

    assert main(["run", str(experiment(in_folder, declared, allow_trained=True))]) == 0
    pairs = {frozenset(c.skills) for c in trained}
    by_hand = sum(frozenset(c.skills) in pairs for c in drawn("held-out", 2, 20))
    scores = {(s.student, s.k): s.seen_pairs for s in run_scores("served")}
    assert scores["tuned", 2] == by_hand > 0
    assert scores["base", 2] is None
    capsys.readouterr()
    assert main(["scores", "served"]) == 0
    note = capsys.readouterr().err
    assert "note: tuned was trained under the partition random-skills:3; combinations with two skills that it" in note
    assert f"{by_hand} of 20 (held-out, k = 2)" in note


@pytest.mark.parametrize(
    ("more", "step", "top"),
    [
        ({}, {}, {"partition": "tables"}),
        ({}, {"settings": ["all"]}, {}),
        ({"partition": None}, {}, {}),
        ({"catalog": "verifiable"}, {}, {}),
    ],
    ids=["the same partition", "no side of a partition", "unknown partition", "another catalog"],
)
def test_a_student_whose_partition_does_not_matter_is_evaluated(
    in_folder: Path, more: dict[str, Any], step: dict[str, Any], top: dict[str, Any]
) -> None:
    data(in_folder / "d12", **{"partition": "tables", **more})
    declared = {"tuned_from": "base", "trained_on": "d12"}

    assert run_experiment(experiment(in_folder, declared, top=top, **step)).is_complete


def test_the_data_sets_of_a_model_decide_its_partition_where_they_are_found(in_folder: Path) -> None:
    data(in_folder / "d12", partition="tables")
    model(in_folder / "m", dataset=[{"path": str(in_folder / "d12"), "hash": "d12"}])

    with pytest.raises(UserError, match="of the partition tables"):
        run_experiment(experiment(in_folder, {"lineage": "m"}))
