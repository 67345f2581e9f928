"""A journal that vanished is no empty journal: nothing is paid a second time without a word."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import skillmix
from skillmix.errors import UserError
from skillmix.scores.scoring import run_scores
from skillmix.scores.status import run_status

FOLDER = Path("runs/lost")


def evaluated() -> Any:
    models: dict[str, Any] = {"student": "scripted:student", "grader": {"model": "scripted:grader", "rounds": 1}}
    return skillmix.evaluate(name="lost", **models, k=[1], settings=["all"], combinations=2, generations=1)


def test_a_run_whose_journal_is_gone_stops_and_says_how_to_begin_again(in_folder: Path) -> None:
    evaluated()
    (FOLDER / "run.sqlite").unlink()

    for command in (evaluated, lambda: run_scores("lost"), lambda: run_status("lost")):
        with pytest.raises(UserError, match=r"its journal is missing: there is no runs/lost/run\.sqlite") as caught:
            command()
        assert f"delete {FOLDER} and rerun the command" in str(caught.value.hint)

    assert not (FOLDER / "run.sqlite").exists()
    shutil.rmtree(FOLDER)
    assert evaluated() and run_status("lost").done == 6
