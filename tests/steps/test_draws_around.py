"""What evaluations draw around is a part of the run: no stop, refusal, second process or lost record changes it."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.catalog.files import load_catalog
from skillmix.datasets.leakage import bars_for
from skillmix.errors import UserError
from skillmix.experiment.experiment import load_experiment
from skillmix.experiment.steps import DatasetStep
from skillmix.runs.calling import make_calls
from skillmix.runs.rows import StepRecord
from skillmix.runs.run import new_run, open_run
from skillmix.scores.scoring import run_scores
from skillmix.steps.run import run_experiment
from skillmix.steps.step_kind import StepInputs, of_calls
from tests.runs.test_declared_lineages import data, drawn, experiment, model

TUNED = {"tuned_from": "base", "trained_on": "d12"}


def evaluation(folder: Path, students: tuple[str, ...] = ("base", "tuned"), **more: Any) -> Path:
    """An evaluation of five pairs; the tuned student was trained on three of the first five."""
    data(folder / "d12", drawn("held-out", 2, 3))
    top = {"budget": more.pop("budget")} if "budget" in more else None
    return experiment(folder, TUNED, top=top, students=list(students), k=[2], combinations=5, **more)


def pairs() -> set[tuple[str, ...]]:
    return {tuple(c.id for c in cell.combinations) for cell in open_run("served").cells}


def ids(first: int, last: int) -> set[tuple[str, ...]]:
    return {tuple(c.id for c in drawn("held-out", 2, last)[first:])}


def test_the_records_of_finished_steps_may_be_deleted(in_folder: Path) -> None:
    path = evaluation(in_folder)
    run_experiment(path)
    assert pairs() == ids(3, 8)

    with closing(sqlite3.connect("runs/served/run.sqlite")) as database, database:
        database.execute("DELETE FROM step")

    assert pairs() == ids(3, 8)
    again = run_experiment(path)
    assert (again.called, again.is_complete) == (0, True)


def test_a_stopped_run_with_allow_trained_does_not_leave_its_draws_to_a_finished_step(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_experiment(evaluation(in_folder))
    calls = open_run("served").finished("eval")
    assert calls is not None and calls.result is not None
    stopped = run_experiment(evaluation(in_folder, allow_trained=True, budget={"max_calls": calls.result["calls"] + 1}))
    assert stopped.stopped

    back = run_experiment(evaluation(in_folder))

    assert pairs() == ids(3, 8)
    assert (back.called, back.taken, back.is_complete) == (0, set(), True)
    assert "eval runs again: what its draws skip changed" in capsys.readouterr().err
    assert run_experiment(evaluation(in_folder)).taken == {"eval"}


def test_a_stopped_run_with_another_student_does_not_leave_a_finished_step_without_calls(in_folder: Path) -> None:
    first = run_experiment(evaluation(in_folder, ("base",)))
    assert run_experiment(evaluation(in_folder, budget={"max_calls": first.called + 1})).stopped

    back = run_experiment(evaluation(in_folder, ("base",)))

    assert back.is_complete
    assert {(s.student, s.ungraded) for s in run_scores("served") if s.setting == "held-out"} == {("base", 0)}
    assert pairs() == ids(3, 8)


def test_a_grade_step_runs_again_if_the_draws_that_it_grades_changed(in_folder: Path) -> None:
    texts: dict[str, Any] = {
        "name": "texts",
        "stage": "generate",
        "students": ["base"],
        "settings": ["held-out"],
        "k": [2],
    }
    texts |= {"combinations": 5, "generations": 1}
    grades = {"name": "grades", "stage": "grade", "of": ["texts"], "graders": ["judge"]}
    path = experiment(in_folder, {}, top={"steps": [texts, grades]})
    run_experiment(path)
    run = open_run("served")
    with run.write():
        run.exclude("texts", frozenset(c.id for c in drawn("held-out", 2, 2)))

    again = run_experiment(path)

    assert again.taken == set()
    assert again.is_complete


def test_a_refused_run_leaves_the_draws_as_they_were(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_experiment(evaluation(in_folder, ("base",)))
    before = {file: file.read_bytes() for file in Path("runs/served").glob("*.yaml")}

    def refused(*_: Any, **__: Any) -> None:
        raise UserError("The model cannot be opened.")

    with monkeypatch.context() as patch:
        patch.setattr("skillmix.steps.calls.make_calls", refused)
        with pytest.raises(UserError, match="cannot be opened"):
            run_experiment(evaluation(in_folder))

    assert {file: file.read_bytes() for file in Path("runs/served").glob("*.yaml")} == before
    assert pairs() == ids(0, 5)
    assert run_experiment(evaluation(in_folder, ("base",))).taken == {"eval"}


def test_a_step_whose_combinations_are_others_now_runs_again(in_folder: Path) -> None:
    path = evaluation(in_folder)
    run_experiment(path)
    run = open_run("served")
    record = run.finished("eval")
    assert record is not None and record.result is not None
    with run.write():
        run.record_step("eval", replace(record, result={**record.result, "combinations": "others"}))

    assert run_experiment(path).taken == set()


def test_a_process_that_waited_for_the_lock_keeps_what_the_other_process_wrote(in_folder: Path) -> None:
    run_experiment(evaluation(in_folder, ("base",)))
    waiting = open_run("served")
    assert waiting.finished("other") is None
    assert waiting.excluded == {}
    assert {tuple(c.id for c in cell.combinations) for cell in waiting.cells} == ids(0, 5)

    other = open_run("served")
    with other.write():
        other.record_step("other", StepRecord({}, {"by": "the other process"}))
        other.exclude("eval", frozenset(c.id for c in drawn("held-out", 2, 3)))
    with waiting.write():
        assert {tuple(c.id for c in cell.combinations) for cell in waiting.cells} == ids(3, 8)
        waiting.record_step("own", StepRecord({}, {}))
        waiting.exclude("second", frozenset({"c"}))

    assert open_run("served").finished("other") is not None
    assert open_run("served").excluded.keys() == {"eval", "second"}


def test_a_process_that_waited_for_the_lock_continues_the_experiment_of_the_other_process(in_folder: Path) -> None:
    run_experiment(evaluation(in_folder, ("base",)))
    waiting = open_run("served")
    assert len(waiting.experiment.steps) == 1
    run_experiment(evaluation(in_folder))

    with waiting.write():
        assert waiting.experiment.steps[0].student_names == ("base", "tuned")


def test_a_step_whose_inputs_change_while_it_runs_is_not_recorded(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = evaluation(in_folder)

    async def meanwhile(*arguments: Any) -> None:
        data(in_folder / "d12", drawn("held-out", 2, 8), hash="another")
        await make_calls(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("skillmix.steps.calls.make_calls", meanwhile)
        assert run_experiment(path).is_complete
    assert open_run("served").finished("eval") is None

    assert run_experiment(path).is_complete
    assert pairs() == ids(8, 13)
    assert run_experiment(path).taken == {"eval"}


def test_a_joined_data_set_keeps_the_members_of_its_data_sets(in_folder: Path) -> None:
    texts = drawn("held-out", 2, 3)
    data(in_folder / "runs/served/d/dataset", texts)
    path = evaluation(in_folder)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["steps"] += [
        {"name": "d", "stage": "dataset", "writer": "base", "graders": ["judge"], "k": [2], "target": 3},
        {"name": "all", "stage": "dataset", "of": ["d"]},
    ]
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    loaded = load_experiment(path)
    joined = next(step for step in loaded.steps if isinstance(step, DatasetStep) and step.name == "all")

    bars = bars_for(joined, loaded, load_catalog("paper"), new_run("served"))

    assert not bars.evaluations.keys() & {c.id for c in texts}
    assert drawn("held-out", 2, 5)[4].id in bars.evaluations


def test_a_grader_that_was_trained_again_in_the_same_folder_is_another_grader(in_folder: Path) -> None:
    path = experiment(in_folder, {}, top={"graders": {"judge": {"model": "local:m", "rounds": 1}}})

    def inputs() -> dict[str, Any]:
        source = StepInputs(load_experiment(path), load_catalog("paper"), new_run("served"))
        return of_calls([], ["judge"], source)

    model(in_folder / "m", identity="first")
    first = inputs()
    model(in_folder / "m", identity="second")

    changed = {name for name, value in inputs().items() if value != first[name]}
    assert changed == {"the model of the grader judge"}


def small(folder: Path, students: list[str], **more: Any) -> Path:
    """An evaluation of all but three of the single skills of a side; the students were trained on three each."""
    pool = load_catalog("paper").pool("held-out", partition=None)
    count = len(pool.skills) * len(pool.topics)
    texts = drawn("held-out", 1, count)
    data(folder / "first", texts[:3])
    data(folder / "second", texts[3:6])
    tuned = {"model": "scripted:student", "tuned_from": "base"}
    names = {"first": tuned | {"trained_on": "first"}, "second": tuned | {"trained_on": "second"}}
    top = {"students": {"base": {"model": "scripted:student"}, **names}}
    return experiment(folder, {}, top=top, **{"students": students, "k": [1], "combinations": count - 3, **more})


@pytest.mark.parametrize("more", [{"allow_trained": True}, {"students": ["second"]}])
def test_stored_skips_refuse_no_draw_that_is_possible_without_them(in_folder: Path, more: dict[str, Any]) -> None:
    path = small(in_folder, ["first"])
    assert run_experiment(path).is_complete
    size = load_experiment(path).steps[0].model_dump()["combinations"]
    now = size + 3 if "allow_trained" in more else size

    assert run_experiment(small(in_folder, **{"students": ["first"], "combinations": now, **more})).is_complete

    assert {len(cell.combinations) for cell in open_run("served").cells} == {now}
