"""One file for many seeds, partitions and settings: which steps are repeated, under which names, and what they read."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, experiment_of, load_experiment
from skillmix.experiment.steps import DatasetStep, EvaluateStep
from skillmix.experiment.train_step import TrainStep
from tests.steps.estimating import dry_run

DATA: dict[str, Any] = {"stage": "dataset", "writer": "writer", "graders": ["code"], "k": [1, 2], "target": 20}
STUDY: dict[str, Any] = {
    "name": "study",
    "students": {"writer": {"model": "scripted:student"}, "base": {"model": "local:weights"}},
    "graders": {"code": {"model": "scripted:grader", "rounds": 1}},
    "steps": [
        {"name": "rich", **DATA},
        {"name": "any", "stage": "dataset", "of": ["rich"], "requests": "one"},
        {"name": "m123", "stage": "train", "base": "base", "data": ["rich"], "steps": 5},
        {"name": "any1", "stage": "train", "base": "base", "data": ["any"], "steps": 5},
        {"name": "eval", "stage": "evaluate", "students": ["step:m123", "step:any1", "base"], "graders": ["code"]},
        {"name": "whole", "stage": "evaluate", "students": ["writer"], "graders": ["code"], "settings": ["all"]},
        {"name": "read", "stage": "annotate", "raters": ["ann"], "students": ["step:m123"]},
        {"name": "report", "stage": "report"},
    ],
}
PARTITIONS = ["random-skills:101", "random-skills:102"]


def study(**more: Any) -> Experiment:
    return experiment_of(STUDY | more, source="study.yaml")


def named(experiment: Experiment, name: str) -> Any:
    return next(step for step in experiment.steps if step.name == name)


def test_a_file_without_lists_is_as_it_was() -> None:
    assert [step.name for step in study().steps] == [step["name"] for step in STUDY["steps"]]
    assert study().variants == {}
    assert "variants" not in study().model_dump(mode="json")


def test_each_step_is_repeated_for_what_it_depends_on() -> None:
    experiment = study(partitions=PARTITIONS, seeds=[0, 7])

    branches = [f"-p{p}-s{s}" for p in (101, 102) for s in (0, 7)]
    assert [step.name for step in experiment.steps] == [
        *(f"{name}-p{p}" for name in ("rich", "any") for p in (101, 102)),
        *(f"{name}{branch}" for name in ("m123", "any1", "eval") for branch in branches),
        *("whole", "read", "report"),
    ]
    data, model, evaluation = (named(experiment, name) for name in ("any-p102", "m123-p102-s7", "eval-p102-s7"))
    assert isinstance(data, DatasetStep) and isinstance(model, TrainStep) and isinstance(evaluation, EvaluateStep)
    assert data.of == ["rich-p102"] and data.partition == "random-skills:102"
    assert model.data == ["rich-p102"] and model.seed == 7
    assert evaluation.students == ["step:m123-p102-s7", "step:any1-p102-s7", "base"]
    assert evaluation.partition == "random-skills:102"
    assert named(experiment, "whole").partition is None
    assert named(experiment, "read").students == [f"step:m123{branch}" for branch in branches]
    about = experiment.variants["m123-p102-s7"]
    assert (about.family, about.partition, about.seed) == ("m123", "random-skills:102", 7)
    assert "whole" not in experiment.variants


def test_a_matrix_fills_settings_and_varies_what_reads_them() -> None:
    students = STUDY["students"] | {
        "tuned": {"model": "openai:tuned-{size}@http://localhost:1/v1", "timeout": "{size}"}
    }
    steps = [*STUDY["steps"][:4], {"name": "half", "stage": "dataset", "of": ["rich"], "size": "{size}"}]
    steps += [{"name": "m", "stage": "train", "base": "base", "data": ["half"], "steps": 5}]
    steps += [{"name": "eval", "stage": "evaluate", "students": ["step:m", "tuned"], "graders": ["code"]}]
    experiment = study(students=students, steps=steps, matrix={"size": [10, 20]})

    assert [step.name for step in experiment.steps][4:] == [
        f"{n}-size{s}" for n in ("half", "m", "eval") for s in (10, 20)
    ]
    assert [named(experiment, f"half-size{size}").size for size in (10, 20)] == [10, 20]
    assert named(experiment, "eval-size20").students == ["step:m-size20", "tuned-size20"]
    assert experiment.students["tuned-size20"].model == "openai:tuned-20@http://localhost:1/v1"
    assert experiment.students["tuned-size20"].timeout == 20
    assert dict(experiment.variants["m-size10"].values) == {"size": 10}


def test_a_stored_experiment_opens_as_it_was_expanded() -> None:
    experiment = study(partitions=PARTITIONS, seeds=[0, 1])

    stored = experiment.model_dump(mode="json")

    assert not {"seeds", "partitions", "matrix"} & stored.keys()
    assert experiment_of(stored, source="run") == experiment_of(stored, source="run")
    assert experiment_of(stored, source="run").model_dump() == experiment.model_dump()


def test_faults_have_the_names_of_the_file() -> None:
    steps = [dict(step) for step in STUDY["steps"]]
    steps[0]["target"], steps[4]["students"] = "many", ["step:m12"]
    with pytest.raises(UserError) as caught:
        study(partitions=PARTITIONS, seeds=[0, 1], steps=steps)

    lines = caught.value.message
    assert "steps.rich.target: " in lines and "steps.eval: there is no earlier train step 'm12'" in lines
    assert "-p101" not in lines


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"seeds": [1, 1]}, "seeds: 1 is given twice"),
        ({"seeds": []}, "seeds: the list is empty"),
        ({"seeds": 3}, "seeds: "),
        ({"partitions": ["category"], "partition": "category"}, "partition: cannot be combined with partitions"),
        ({"matrix": {"size": [1, 2]}}, r"matrix.size: no setting of a step or student contains {size}"),
        ({"matrix": {"seed": [1, 2]}}, "matrix.seed"),
        ({"seeds": [0, 1], "steps": STUDY["steps"][5:6]}, "seeds: no train step depends"),
        ({"partitions": PARTITIONS, "steps": STUDY["steps"][5:6]}, "partitions: no step depends on the partition"),
        ({"steps": [*STUDY["steps"][:4], {"name": "x", "stage": "dataset", "of": ["rich"], "size": "{size}"}],
          "matrix": {"size": [5, 0]}}, "steps.x-size0.size: "),
    ],
)  # fmt: skip
def test_lists_that_are_wrong_or_vary_nothing_are_errors(more: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        study(**more)


def test_one_dry_run_counts_the_steps_of_all_values(in_folder: Path) -> None:
    step = {"name": "eval", "stage": "evaluate", "students": ["writer"], "graders": ["code"], "settings": ["held-out"]}
    steps = [step | {"k": [2], "combinations": 10, "generations": 1}]
    path = in_folder / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY | {"steps": steps, "partitions": PARTITIONS}), encoding="utf-8")

    assert [(e.step, e.calls) for e in dry_run(path, prices=None) if e.role == "student"] == [
        ("eval-p101", 20),
        ("eval-p102", 20),
    ]
    changed = load_experiment(path, changes=["steps.eval.k=[1]", "partitions=[random-skills:9]"])
    assert [(step.name, step.model_dump()["k"]) for step in changed.steps] == [("eval-p9", [1])]
