"""The kinds of step: what each answers, and dataset steps that contradict themselves."""

from typing import Any

import pytest

from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of
from skillmix.experiment.step_base import Step, UndrawnCell

STEPS: list[dict[str, Any]] = [
    {"name": "write", "stage": "generate", "students": ["base"], "settings": ["all"], "k": [1, 2], "combinations": 5},
    {"name": "data", "stage": "dataset", "writer": "base", "graders": ["judge"], "target": {1: 5, 2: 7}, "k": [1, 2]},
    {"name": "both", "stage": "dataset", "of": ["data"]},
    {"name": "tuned", "stage": "train", "base": "base", "data": ["both", "./more.jsonl"]},
    {
        "name": "eval",
        "stage": "evaluate",
        "students": ["step:tuned", "base", "base"],
        "graders": ["judge"],
        "settings": ["train", "all", "all"],
        "k": [3],
        "combinations": 10,
        "generations": 2,
        "stop_below": 0.1,
        "exclude": ["red herring"],
    },
    {"name": "again", "stage": "grade", "of": ["write", "eval"], "graders": ["second"]},
    {
        "name": "some",
        "stage": "grade",
        "of": ["write", "eval"],
        "graders": ["second"],
        "students": ["step:tuned"],
        "settings": ["train"],
        "k": [3],
    },
    {"name": "report", "stage": "report"},
]


@pytest.fixture(scope="module")
def steps() -> dict[str, Step]:
    document = {
        "name": "x",
        "students": {"base": {"model": "scripted:student"}},
        "graders": {"judge": {"model": "scripted:grader"}, "second": {"model": "scripted:grader"}},
        "steps": STEPS,
    }
    return {step.name: step for step in experiment_of(document, source="test").steps}


def cell(source: str, student: str, grader: str, setting: Any, k: int) -> UndrawnCell:
    combinations, generations = (5, 3) if source == "write" else (10, 2)
    exclude = ("red herring",) if source == "eval" else ()
    graders = (grader,) if grader else ()
    return UndrawnCell(
        source=source,
        student=student,
        graders=graders,
        setting=setting,
        k=k,
        count=combinations,
        generations=generations,
        exclude=exclude,
    )


def test_a_step_names_the_students_and_graders_that_it_asks(steps: dict[str, Step]) -> None:
    asked = {
        name: (step.student_names, step.grader_names)
        for name, step in steps.items()
        if step.student_names or step.grader_names
    }

    assert asked == {
        "write": (("base",), ()),
        "data": (("base",), ("judge",)),
        "eval": (("tuned", "base", "base"), ("judge",)),
        "again": ((), ("second",)),
        "some": ((), ("second",)),
    }


def test_a_step_names_the_models_and_steps_that_it_needs(steps: dict[str, Step]) -> None:
    assert {name: step.model_references for name, step in steps.items() if step.model_references} == {
        "write": ("base",),
        "data": ("base",),
        "tuned": ("base",),
        "eval": ("step:tuned", "base", "base"),
    }
    assert {name: [i.step for i in step.inputs] for name, step in steps.items() if step.inputs} == {
        "both": ["data"],
        "tuned": ["both"],
        "again": ["write", "eval"],
        "some": ["write", "eval"],
    }
    assert [name for name, step in steps.items() if step.trains_model] == ["tuned"]


def test_a_grade_step_has_the_cells_of_other_steps_with_its_own_graders(steps: dict[str, Step]) -> None:
    cells = steps["again"].undrawn_cells(list(steps.values()))

    assert set(cells) == {
        cell("write", "base", "second", "all", 1),
        cell("write", "base", "second", "all", 2),
        *(cell("eval", student, "second", setting, 3) for student in ("tuned", "base") for setting in ("train", "all")),
    }


def test_a_grade_step_takes_only_the_wanted_students_settings_and_k(steps: dict[str, Step]) -> None:
    assert set(steps["some"].undrawn_cells(list(steps.values()))) == {cell("eval", "tuned", "second", "train", 3)}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"students": ["base", "nobody"]}, "the steps in `of` have no texts with student nobody"),
        ({"settings": ["held-out"]}, "the steps in `of` have no texts with setting held-out"),
        ({"k": [2, 9]}, "the steps in `of` have no texts with k = 9"),
        ({"k": []}, "the list is empty"),
    ],
)
def test_a_grade_step_that_would_grade_nothing_is_a_fault(change: dict[str, Any], fault: str) -> None:
    document = {
        "name": "x",
        "students": {"base": {"model": "scripted:student"}},
        "graders": {"judge": {"model": "scripted:grader"}},
        "steps": [STEPS[0], {"name": "again", "stage": "grade", "of": ["write"], "graders": ["judge"], **change}],
    }
    with pytest.raises(UserError, match=fault):
        experiment_of(document, source="test")


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        ({"writer": "base", "of": ["d0"]}, "give one of them"),
        ({}, "give one of them"),
        ({"writer": "base", "k": [1]}, "needs graders, a target"),
        ({"writer": "base", "graders": ["judge"], "target": 5, "recipe": "D(x)"}, "no recipe"),
        ({"writer": "base", "graders": ["judge"], "target": 5, "recipe": "D(1)", "k": [1]}, "determines k"),
        ({"writer": "base", "graders": ["judge"], "target": {1: 5}, "k": [1, 2]}, "target has k"),
        ({"of": ["d0"], "target": 3}, "target need a writer"),
        ({"of": ["d0"], "shares": {1: 1}}, "need a size"),
        ({"of": ["nowhere"]}, "no earlier dataset step"),
        (
            {"writer": "base", "graders": ["judge"], "target": 5, "k": [1], "per_skill": {"floor": 3, "ceiling": 2}},
            "above",
        ),
    ],
)
def test_a_dataset_step_that_makes_no_sense_is_refused(step: dict[str, Any], fault: str) -> None:
    first = {"name": "d0", "stage": "dataset", "writer": "base", "graders": ["judge"], "target": 5, "k": [1]}
    document = {
        "name": "x",
        "students": {"base": {"model": "scripted:student"}},
        "graders": {"judge": {"model": "scripted:grader"}},
        "steps": [first, {"name": "d", "stage": "dataset"} | step],
    }

    with pytest.raises(UserError, match=fault):
        experiment_of(document, source="test")


def test_a_catalog_that_was_not_loaded_is_refused_with_the_nearest_name() -> None:
    joined = load_catalog("paper", "safety")

    assert (joined.member(None).name, joined.member("safety").name) == ("paper", "safety")
    with pytest.raises(UserError, match="no catalog 'safty' besides 'paper'") as refused:
        joined.member("safty")
    assert 'Did you mean "safety"?' in str(refused.value.hint)
    with pytest.raises(UserError):
        load_catalog("paper").member("safety")
