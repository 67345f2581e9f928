"""A journal that vanished is no empty journal: nothing is paid a second time without a word."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skillmix
from skillmix.errors import UserError
from skillmix.runs.run import open_run
from skillmix.scores.scoring import run_scores
from skillmix.scores.status import run_status

FOLDER = Path("runs/lost")


def evaluated() -> Any:
    models: dict[str, Any] = {"student": "scripted:student", "grader": {"model": "scripted:grader", "rounds": 1}}
    return skillmix.evaluate(name="lost", **models, k=[1], settings=["all"], combinations=2, generations=1)


def only_manifest() -> None:
    (FOLDER / "finished.json").unlink()


@pytest.mark.parametrize("notes", [lambda: None, only_manifest])
def test_a_run_whose_journal_is_gone_stops_and_says_how_to_begin_again(
    in_folder: Path, notes: Callable[[], None]
) -> None:
    evaluated()
    notes()
    shutil.rmtree(FOLDER / "journal")

    for command in (evaluated, lambda: run_scores("lost"), lambda: run_status("lost")):
        with pytest.raises(UserError, match="its journal is gone") as caught:
            command()
        assert f"delete {FOLDER} first" in str(caught.value.hint)

    assert not (FOLDER / "journal/calls.sqlite").exists()
    shutil.rmtree(FOLDER)
    assert evaluated() and run_status("lost").done == 6


def test_a_part_of_a_journal_that_is_gone_is_named(in_folder: Path) -> None:
    evaluated()
    run = open_run("lost")
    run.finished.note_journal([*run.finished.journal, ["calls-2.sqlite", 4096, 1]])

    with pytest.raises(UserError, match=r"there is no runs/lost/journal/calls-2\.sqlite"):
        evaluated()
