"""What evaluations draw around is a part of the run: no stop, refusal, second process or lost record changes it."""

from pathlib import Path
from typing import Any

import pytest

from skillmix.errors import UserError
from skillmix.runs.run import open_run
from skillmix.steps.run import run_experiment
from tests.runs.test_declared_lineages import data, drawn, experiment

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

    Path("runs/served/finished.json").unlink()

    assert pairs() == ids(3, 8)
    again = run_experiment(path)
    assert (again.called, again.is_complete) == (0, True)


@pytest.mark.parametrize("content", ["{", "[]", '{"eval": "c"}', '{"eval": [1]}'])
def test_a_damaged_file_is_an_error(in_folder: Path, content: str) -> None:
    run_experiment(evaluation(in_folder))
    Path("runs/served/around.json").write_text(content, encoding="utf-8")

    with pytest.raises(UserError, match=r"around\.json is damaged"):
        pairs()
