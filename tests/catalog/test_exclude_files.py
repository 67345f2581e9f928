"""Exclude lists in files: read as a whole, and replaced by the names they list."""

from pathlib import Path

import pytest

from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of
from skillmix.files import with_listed_skills


def write(file: Path, content: str) -> str:
    file.write_text(content, encoding="utf-8")
    return f"file:{file}"


@pytest.mark.parametrize("content", ["[metaphor, simile]", "skills: [metaphor, simile]\nthreshold: 0.05\n"])
def test_a_list_is_read_with_or_without_its_key(tmp_path: Path, content: str) -> None:
    assert with_listed_skills([write(tmp_path / "a.yaml", content)]) == ["metaphor", "simile"]


def test_an_empty_list_leaves_nothing_out(tmp_path: Path) -> None:
    assert with_listed_skills([write(tmp_path / "a.yaml", "skills: []")]) == []


def test_every_fault_of_a_list_is_reported_at_once(tmp_path: Path) -> None:
    name = write(tmp_path / "a.yaml", "skils: 1\nskills: [1, '', good]\n")

    with pytest.raises(UserError) as error:
        with_listed_skills([name])

    assert "3 faults" in error.value.message
    assert "there is no key 'skils'. Did you mean \"skills\"?" in error.value.message
    assert "good" not in error.value.message


def test_lists_of_an_experiment_and_of_its_steps_are_replaced_and_other_names_stay(tmp_path: Path) -> None:
    name = write(tmp_path / "a.yaml", "[metaphor, simile]")
    step = {"stage": "evaluate", "students": ["s"], "graders": ["g"], "k": [1]}
    document = {
        "name": "x",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {"g": {"model": "scripted:grader"}},
        "exclude": ["common", name],
        "steps": [{"name": "a", **step, "exclude": [name, "simile"]}, {"name": "b", **step}],
    }

    found = experiment_of(document, source="test").model_dump()

    assert found["exclude"] == ["common", "metaphor", "simile"]
    assert [step["exclude"] for step in found["steps"]] == [["metaphor", "simile"], []]
    assert document["exclude"] == ["common", name]


def test_faults_of_lists_are_reported_with_all_other_faults_of_an_experiment(tmp_path: Path) -> None:
    document = {
        "name": "x",
        "sed": 1,
        "exclude": [f"file:{tmp_path}/gone.yaml"],
        "steps": [{"name": "eval", "stage": "evaluate", "students": ["s"], "k": [-1], "exclude": [f"file:{tmp_path}"]}],
    }

    with pytest.raises(UserError) as error:
        experiment_of(document, source="test")

    for fault in ("exclude: There is no file", "steps.eval.exclude:", "sed", "is below 0"):
        assert fault in error.value.message


def test_an_unknown_skill_of_a_list_is_a_fault_with_the_nearest_name(tmp_path: Path) -> None:
    document = {"name": "x", "exclude": [write(tmp_path / "a.yaml", "[metaphr]")], "steps": []}

    with pytest.raises(UserError, match=r"exclude: No skill named 'metaphr'.*metaphor"):
        experiment_of(document, source="test", checks_outside=True)
