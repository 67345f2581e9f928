"""Settings that an experiment gives to its dataset steps, and that a step may change."""

from typing import Any

import pytest

from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, experiment_of
from skillmix.experiment.steps import DatasetStep

WRITTEN = {"stage": "dataset", "writer": "w", "graders": ["g"], "k": [2], "target": 5}


def experiment(steps: list[dict[str, Any]], **more: Any) -> Experiment:
    document = {
        "name": "x",
        "students": {"w": {"model": "scripted:student"}},
        "graders": {"g": {"model": "scripted:grader"}},
        "steps": steps,
    } | more
    return experiment_of(document, source="test")


def dataset_step(experiment: Experiment, name: str) -> DatasetStep:
    (step,) = (step for step in experiment.steps if step.name == name)
    assert isinstance(step, DatasetStep)
    return step


PAPER = {"near_duplicates": None, "exact_duplicates": "keep", "example_copies": "keep", "validation": 0}


def test_the_filters_of_an_experiment_hold_for_all_its_dataset_steps_unless_a_step_has_its_own() -> None:
    loaded = experiment(
        [
            {"name": "d1", **WRITTEN},
            {"name": "d2", **WRITTEN, "example_copies": "drop", "validation": 0.1},
            {"name": "both", "stage": "dataset", "of": ["d1", "d2"]},
        ],
        dataset=PAPER,
    )

    for name, own in {"d1": {}, "d2": {"example_copies": "drop", "validation": 0.1}, "both": {}}.items():
        assert dataset_step(loaded, name).model_dump(include=set(PAPER)) == {**PAPER, **own}


def test_the_safer_filters_stay_the_default() -> None:
    defaults = dataset_step(experiment([{"name": "d1", **WRITTEN}]), "d1").model_dump(include=set(PAPER))

    assert defaults == {
        "near_duplicates": 0.7,
        "exact_duplicates": "drop",
        "example_copies": "drop",
        "validation": 0.05,
    }


def test_a_step_changes_single_leakage_rules_of_its_experiment() -> None:
    loaded = experiment(
        [{"name": "d1", **WRITTEN}, {"name": "d2", **WRITTEN, "leakage": {"reserved": 0}}],
        leakage={"names": "strict", "reserved": 0.3},
    )

    own = dataset_step(loaded, "d2").leakage
    assert dataset_step(loaded, "d1").leakage is None
    assert own is not None and (own.names, own.reserved) == ("strict", 0.0)
    # What one data set may contain is reserved no more.
    assert (loaded.leakage.reserved, loaded.reserved) == (0.3, 0.0)


def test_a_stored_experiment_loads_as_it_was() -> None:
    steps = [{"name": "d1", **WRITTEN, "leakage": {"reserved": 0}}, {"name": "d2", **WRITTEN, "validation": 0.2}]
    loaded = experiment(steps, dataset=PAPER, leakage={"shown": "count"})

    assert experiment_of(loaded.model_dump(mode="json"), source="stored") == loaded


@pytest.mark.parametrize(
    ("more", "faults"),
    [
        ({"dataset": {"exact_duplicates": "keep"}}, ["dataset: exact_duplicates: keep needs near_duplicates: null"]),
        (
            {"dataset": {"near_copies": 1}},
            ["dataset.near_copies: there is no such key", "Keys of dataset: near_duplicates, exact_d"],
        ),
        ({"dataset": {"validation": 2}}, ["dataset.validation: 2 is above 1"]),
    ],
)
def test_a_fault_in_the_filters_of_an_experiment_is_reported_once(more: dict[str, Any], faults: list[str]) -> None:
    with pytest.raises(UserError) as error:
        experiment([{"name": "d1", **WRITTEN}, {"name": "d2", **WRITTEN}], **more)

    message = f"{error.value.message} {error.value.hint}"
    assert all(fault in message for fault in faults)
    assert "steps" not in message


def test_rules_and_skills_do_not_apply_to_joined_data_sets() -> None:
    joined = {"name": "both", "stage": "dataset", "of": ["d1"], "rules": "paper", "exclude": ["common"]}

    with pytest.raises(UserError, match="exclude, rules need a writer"):
        experiment([{"name": "d1", **WRITTEN}, joined])


def test_reserved_sets_cannot_be_evaluated_if_a_data_set_may_contain_them() -> None:
    evaluate = {"name": "e", "stage": "evaluate", "students": ["w"], "graders": ["g"], "k": [2], "sets": "reserved"}

    with pytest.raises(UserError, match="and in every dataset step"):
        experiment([{"name": "d1", **WRITTEN, "leakage": {"reserved": 0}}, evaluate])
