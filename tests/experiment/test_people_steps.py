"""Annotate and graders steps in experiment files: names, numbers, and all faults at once."""

from typing import Any

import pytest

from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of
from skillmix.experiment.steps import AnnotateStep

EVAL = {"name": "eval", "stage": "evaluate", "students": ["base"], "graders": ["judge"], "k": [2], "settings": ["all"]}


def document(*steps: dict[str, Any], model: str = "scripted:student") -> dict[str, Any]:
    return {
        "name": "people",
        "students": {"base": {"model": model}, "silent": {"model": model}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [EVAL, *steps],
    }


def faults_of(*steps: dict[str, Any], model: str = "scripted:student") -> str:
    with pytest.raises(UserError) as error:
        experiment_of(document(*steps, model=model), source="file")
    return error.value.message


def test_a_list_of_raters_means_people_and_survives_being_stored() -> None:
    step = {"name": "read", "stage": "annotate", "raters": ["ann", "bo"], "students": ["base"], "k": [2]}

    experiment = experiment_of(document(step), source="file")
    again = experiment_of(experiment.model_dump(mode="json"), source="file")

    (_, read) = again.steps
    assert again == experiment and isinstance(read, AnnotateStep)
    assert (read.people, read.simulated) == (("ann", "bo"), {})


def test_all_faults_of_raters_come_at_once() -> None:
    raters = {"Ann": "human", "bo": "scripted:ratr", "cy": "scripted:rater?sens=1", "d" * 61: "human"}
    cards = {"name": "cards", "stage": "graders", "truth": "juge"}

    said = faults_of({"name": "read", "stage": "annotate", "raters": raters, "n": 0, "overlap": 2}, cards)

    assert "has 7 faults" in said
    for part in (
        "steps.read.raters.Ann: ",
        "steps.read.raters.bo: 'scripted:ratr' is not a rater",
        "steps.read.raters.cy: The rates 'sens=1' of a scripted rater are invalid: there is no rate 'sens'",
        "is too long for a rater",
        "steps.read.n: 0 is below 1",
        "steps.read.overlap: 2",
        "steps.cards: there is no grader 'juge'. Did you mean \"judge\"?",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"raters": []}, "there are no raters"),
        ({"raters": ["ann", "ann"]}, "'ann' is listed twice"),
        ({"raters": ["ann"], "n": 5, "width": 0.1}, "n and width both determine"),
        ({"raters": ["ann"], "width": 1.5}, "steps.read.width"),
        ({"raters": ["ann"], "students": ["bse"]}, "no step has texts by a student 'bse'. Did you mean \"base\"?"),
        ({"raters": ["ann"], "students": ["silent"]}, "no step has texts by a student 'silent'"),
        ({"raters": ["ann"], "k": [2, 3]}, "no step has texts with k = 3"),
    ],
)
def test_a_step_that_nobody_can_do_is_a_fault(keys: dict[str, Any], fault: str) -> None:
    assert fault in faults_of({"name": "read", "stage": "annotate", **keys})


def test_a_step_does_not_take_the_folder_of_the_report() -> None:
    assert "the name is reserved for a folder of the run" in faults_of({"name": "report", "stage": "graders"})


def test_a_simulated_rater_reads_scripted_texts_only() -> None:
    read = {"name": "read", "stage": "annotate", "raters": {"ann": "scripted:rater"}}

    said = faults_of(read, model="openai:gpt-4o")

    assert "the simulated rater ann can only read texts of scripted students, and base is not scripted" in said


def test_the_truth_may_be_people_a_grader_or_a_rater_and_code_only_if_a_grader_is_code() -> None:
    read = {"name": "read", "stage": "annotate", "raters": ["ann"]}
    for truth in ("people", "judge", "human:ann"):
        experiment_of(document(read, {"name": "cards", "stage": "graders", "truth": truth}), source="file")

    assert "there is no grader 'rules'" in faults_of({"name": "cards", "stage": "graders", "truth": "rules"})


@pytest.mark.parametrize(
    ("first", "second"), [("human", "scripted:rater"), ("scripted:rater", "scripted:rater?unsure=0.5")]
)
def test_a_name_stands_for_one_rater_in_the_whole_file(first: str, second: str) -> None:
    one = {"name": "read", "stage": "annotate", "raters": {"ann": first}}
    other = {"name": "again", "stage": "annotate", "raters": {"ann": second}}

    said = faults_of(one, other)

    assert "steps.again: ann is the script " in said and "in the step read; rename one of them" in said
    experiment_of(document(one, {**other, "raters": {"ann": first}}), source="file")


@pytest.mark.parametrize("width", [1e-300, 0.0009, float("nan")])
def test_a_width_that_needs_too_many_texts_is_a_fault(width: float) -> None:
    assert "steps.read.width: " in faults_of({"name": "read", "stage": "annotate", "raters": ["ann"], "width": width})


@pytest.mark.parametrize("name", ["-x", "ann."])
def test_the_name_of_a_rater_begins_and_ends_with_a_letter_or_a_digit(name: str) -> None:
    said = faults_of({"name": "read", "stage": "annotate", "raters": [name]})

    assert "Begin and end it with a letter or a digit" in said
