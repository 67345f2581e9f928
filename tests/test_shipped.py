"""Experiments that ship are found by name, and the user's own files come first."""

from pathlib import Path

import pytest

from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.experiment.experiment import load_experiment
from skillmix.files import experiment_file, own_or_shipped, shipped_experiments

ROOT = Path(__file__).parents[1]


def test_a_name_without_a_file_is_an_experiment_that_ships(in_folder: Path) -> None:
    assert load_experiment(Path("smoke")) == load_experiment(ROOT / "experiments/smoke.yaml")
    assert {"smoke", "quickstart", "people", "safety"} <= shipped_experiments().keys()


def test_a_file_of_the_user_comes_first_and_a_folder_does_not(in_folder: Path) -> None:
    Path("smoke").mkdir()
    Path("safety").write_text("name: own", encoding="utf-8")

    assert experiment_file(Path("smoke")) == ROOT / "experiments/smoke.yaml"
    assert experiment_file(Path("safety")) == Path("safety")
    assert experiment_file(Path("runs/smoke")) == Path("runs/smoke")
    assert experiment_file(Path("smoke.yaml")) == Path("smoke.yaml")


def test_the_path_of_an_experiment_that_ships_works_in_any_folder(in_folder: Path) -> None:
    assert experiment_file(Path("experiments/smoke.yaml")) == ROOT / "experiments/smoke.yaml"
    assert experiment_file(Path("experiments/smok.yaml")) == Path("experiments/smok.yaml")

    Path("experiments").mkdir()
    Path("experiments/smoke.yaml").write_text("name: own", encoding="utf-8")

    assert experiment_file(Path("experiments/smoke.yaml")) == Path("experiments/smoke.yaml")


def test_an_unknown_name_is_refused_with_the_nearest_one(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "smok", "--dry-run"]) == 2

    error = capsys.readouterr().err
    assert "There is no experiment or file 'smok'" in error
    assert 'Did you mean "smoke"?' in error


@pytest.mark.parametrize("name", ["data/other", "experiments/../x", "README.md", "x" * 5000, "experiments"])
def test_other_names_lead_only_into_the_users_folder(in_folder: Path, name: str) -> None:
    assert own_or_shipped(name) == Path(name)


def test_a_missing_name_is_an_error_and_no_traceback(in_folder: Path) -> None:
    with pytest.raises(UserError):
        load_experiment(Path("x" * 300))
