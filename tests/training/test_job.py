"""What data sets say of themselves: checked as a whole, and never believed about their own content."""

import json
from pathlib import Path
from typing import Any

import pytest

from skillmix.errors import UserError
from skillmix.experiment.train_step import TrainStep
from skillmix.steps.run import StepFilter, run_experiment
from skillmix.training.job import check_data, sources_of

LINE = json.dumps({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]})
ABOUT: dict[str, Any] = {"kind": "dataset", "hash": "0" * 32, "k": [1], "combinations": ["aa"]}


def step(folder: Path) -> TrainStep:
    return TrainStep(name="m1", stage="train", base="base", data=[f"{folder}/"])


def made(folder: Path, about: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.jsonl").write_text(f"{LINE}\n", encoding="utf-8")
    (folder / "skillmix.json").write_text(about if isinstance(about, str) else json.dumps(about), encoding="utf-8")
    return folder


def test_the_hash_of_an_untouched_set_is_the_one_it_was_written_with(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["steps.rich.target=4"]
    folder = run_experiment(Path("quickstart"), changes=few, wanted=StepFilter(step="rich")).datasets["rich"].folder
    capsys.readouterr()

    [source] = sources_of(step(folder), Path("runs/none"))

    assert source.hash == json.loads((folder / "skillmix.json").read_text(encoding="utf-8"))["hash"]
    assert source.about is not None
    assert source.about.combinations
    assert capsys.readouterr().err == ""


def test_the_hash_is_of_what_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path / "data", ABOUT)
    found = [sources_of(step(folder), tmp_path)[0].hash]
    for name in ("train.jsonl", "validation.jsonl"):
        with (folder / name).open("a", encoding="utf-8") as lines:
            lines.write(f"{LINE}\n")
        found.append(sources_of(step(folder), tmp_path)[0].hash)

    assert len({*found, ABOUT["hash"]}) == 4
    assert "its conversations differ from those described in its skillmix.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("about", "places"),
    [
        ({}, ["kind", "hash", "k", "combinations"]),
        ({**ABOUT, "kind": "model"}, ["kind"]),
        (
            {**ABOUT, "hash": 7, "k": [0, -1, "2", True]},
            ["hash", "k, entry 1", "k, entry 2", "k, entry 3", "k, entry 4"],
        ),
        ({**ABOUT, "k": 3, "combinations": "aa"}, ["k", "combinations"]),
        ({**ABOUT, "combinations": [None, 1]}, ["combinations, entry 1", "combinations, entry 2"]),
        ({**ABOUT, "counts": {"train": -4, "k": {"1": -1}, "full_marks": [3]}}, ["counts, train", "counts, k, 1"]),
        ({**ABOUT, "counts": {"generated": {"one": 1}}}, ["counts, generated, one"]),
        (
            {**ABOUT, "counts": {"pairs": [["a", "b"]]}, "skill_sets": [[1]]},
            ["counts, pairs, entry 1", "skill_sets, entry 1, entry 1"],
        ),
        (
            {**ABOUT, "written_by": [{"run": "r", "texts": -1}]},
            ["written_by, entry 1, student", "written_by, entry 1, texts"],
        ),
        ([], ["JSON object"]),
        ("{", ["JSON"]),
        ("[" * 100_000, ["nested too deeply"]),
        ('{"k": NaN}', ["JSON"]),
    ],
)
def test_odd_values_are_told_all_at_once_before_anything_is_trained(
    tmp_path: Path, about: object, places: list[str]
) -> None:
    folder = made(tmp_path / "data", about)

    for refuse in (lambda: sources_of(step(folder), tmp_path), lambda: check_data(step(folder))):
        with pytest.raises(UserError) as error:
            refuse()
        assert all(place in error.value.message for place in places), error.value.message
