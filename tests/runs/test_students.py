"""Steps in order, and models that steps make: `step:NAME`, and what they may not be tested on."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, load_experiment
from skillmix.models import specs
from skillmix.models.scripted import ScriptedModel
from skillmix.runs.run import Run, new_run
from skillmix.runs.students import settings_for, with_trained
from skillmix.scores.scoring import run_scores
from skillmix.steps.run import run_experiment


def checkpoint(folder: Path, combinations: list[str], **more: Any) -> None:
    folder.mkdir(parents=True)
    told = {"kind": "model", "base": {"spec": "local:base", "hash": "0"}, "combinations": combinations, "k": [1]} | more
    (folder / "skillmix.json").write_text(json.dumps(told), encoding="utf-8")


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A trainer that remembers its data set's combinations, and checkpoints that are scripted students."""
    done: list[str] = []

    def train_step(experiment: Experiment, step: Any, run: Run, *_: object, **__: object) -> None:
        folder = run.step(step.name) / "model"
        done.append(step.name)
        if folder.exists():
            return
        data = [json.loads((run.step(name) / "dataset/skillmix.json").read_text("utf-8")) for name in step.data]
        told = [combination for document in data for combination in document["combinations"]]
        checkpoint(folder, told, dataset=[{"hash": document["hash"]} for document in data])

    monkeypatch.setattr("skillmix.steps.kinds.train_step", train_step)
    monkeypatch.setattr("skillmix.steps.kinds.check_base", lambda *_: None)  # the base is scripted
    plain = specs.open_model

    def opened(spec: Any, options: Any) -> Any:
        if spec.provider == "local":
            assert (Path(spec.name) / "skillmix.json").is_file()
            return ScriptedModel(specs.parse_spec("scripted:student?skill=0.95"))
        return plain(spec, options)

    monkeypatch.setattr("skillmix.runs.calling.open_model", opened)
    return done


def rounds(folder: Path, **more: Any) -> Path:
    document: dict[str, Any] = {
        "name": "rounds",
        "students": {"base": {"model": "scripted:student?skill=0.6", "max_tokens": 99}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            {"name": "d1", "stage": "dataset", "writer": "base", "graders": ["judge"], "k": [1], "target": 12},
            {"name": "m1", "stage": "train", "base": "base", "data": ["d1"]},
            {"name": "d2", "stage": "dataset", "writer": "step:m1", "graders": ["judge"], "k": [2], "target": 12},
            {"name": "d12", "stage": "dataset", "of": ["d1", "d2"]},
            {"name": "m12", "stage": "train", "base": "base", "data": ["d12"]},
            {
                "name": "eval",
                "stage": "evaluate",
                "students": ["base", "step:m1", "step:m12"],
                "graders": ["judge"],
                "settings": ["train"],
                "k": [1, 2],
                "combinations": 10,
                "generations": 1,
            },
        ],
    } | more
    path = folder / "rounds.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_rounds_are_done_in_order_and_tuned_models_write_and_are_evaluated(in_folder: Path, trainer: list[str]) -> None:
    result = run_experiment(rounds(in_folder))

    assert result.is_complete
    assert trainer == ["m1", "m12"]
    assert list(result.datasets) == ["d1", "d2", "d12"]
    told = json.loads((in_folder / "runs/rounds/d12/dataset/skillmix.json").read_text(encoding="utf-8"))
    assert told["writers"] == ["rounds#base", "rounds#m1"]
    models = {writer["student"]: writer["model"] for writer in told["written_by"]}
    assert models["m1"].startswith("local:runs/rounds/m1/model#")
    scores = run_scores("rounds")
    assert {score.student for score in scores} == {"base", "m1", "m12"}
    assert {score.student: score.trained_on for score in scores} == {"base": None, "m1": 0, "m12": 0}

    again = run_experiment(rounds(in_folder))
    assert again.called == 0
    assert run_scores("rounds") == scores


def test_a_step_alone_needs_the_model_it_names(
    in_folder: Path, trainer: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = rounds(in_folder)

    assert main(["dataset", str(path), "--step", "d2"]) == 2

    assert "The model of step 'm1' is not trained yet" in capsys.readouterr().err


def test_a_model_that_was_trained_anew_is_not_taken_for_the_old_one(in_folder: Path, trainer: list[str]) -> None:
    run_experiment(rounds(in_folder))
    told = in_folder / "runs/rounds/m1/model/skillmix.json"
    told.write_text(told.read_text(encoding="utf-8").replace('"hash": "0"', '"hash": "1"'), encoding="utf-8")

    with pytest.raises(
        UserError, match=r"calls of the student 'm1' with another model \(.* → .*\), such as generate/m1/"
    ):
        run_experiment(rounds(in_folder))


def test_a_tuned_student_is_asked_as_its_base_is(in_folder: Path) -> None:
    experiment = load_experiment(rounds(in_folder))
    run = new_run("rounds")
    checkpoint(run.step("m1") / "model", [])

    assert settings_for(experiment, "m12").max_tokens == 99
    tuned = with_trained(experiment, run)
    assert tuned.students["m1"].model == "local:runs/rounds/m1/model"
    assert "m12" not in tuned.students


def test_a_step_and_a_student_of_one_name_are_refused(in_folder: Path) -> None:
    students = {name: {"model": "scripted:student"} for name in ("base", "m1")}

    with pytest.raises(UserError, match="would have the same name"):
        load_experiment(rounds(in_folder, students=students))


def evaluation(folder: Path, **step: Any) -> Path:
    document = {
        "name": "check",
        "students": {"tuned": {"model": "local:tuned"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            {
                "name": "eval",
                "stage": "evaluate",
                "students": ["tuned"],
                "graders": ["judge"],
                "settings": ["train"],
                "k": [1],
                "combinations": 10,
                "generations": 1,
            }
            | step
        ],
    }
    path = folder / "check.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_a_student_is_not_tested_on_what_it_was_trained_on_unless_told(
    in_folder: Path, trainer: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["combinations", "--setting", "train", "--k", "1", "--n", "10", "--json"]) == 0
    drawn = [c["id"] for c in json.loads(capsys.readouterr().out)]
    checkpoint(in_folder / "tuned", [*drawn[:3], "0123456789abcdef"])

    assert main(["run", str(evaluation(in_folder))]) == 0
    assert "eval: skips 3 combinations that tuned was trained on" in capsys.readouterr().err
    assert {score.trained_on for score in run_scores("check")} == {0}

    assert main(["run", str(evaluation(in_folder, allow_trained=True))]) == 0
    assert {score.trained_on for score in run_scores("check") if score.setting == "train"} == {3}
    capsys.readouterr()
    assert main(["scores", "check"]) == 0
    assert "tuned was trained on 3 of the 10 combinations of train, k = 1." in capsys.readouterr().out


def test_scores_tell_reserved_and_seen_sets_apart(
    in_folder: Path, trainer: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run_experiment(rounds(in_folder))

    plain = run_scores("rounds")
    split = run_scores("rounds", by_sets=True)

    assert [score for score in split if score.sets == "all"] == plain
    for student in ("base", "m1", "m12"):
        parts = {s.sets: s for s in split if (s.student, s.k, s.metric) == (student, 2, "full_marks")}
        assert set(parts) == {"all", "reserved", "seen"}
        assert parts["reserved"].combinations + parts["seen"].combinations == parts["all"].combinations
    assert not any(score.sets != "all" for score in split if score.k == 1)
    capsys.readouterr()
    assert main(["scores", "rounds"]) == 0
    assert "full marks, reserved sets" in capsys.readouterr().out
