"""A small real model reaches a small target by itself; minutes on two cores, so only where time is."""

import os
from pathlib import Path

import pytest

from skillmix.grading.answers import RULES
from skillmix.grading.points import text_score
from skillmix.runs.texts import run_records
from skillmix.steps.run import run_experiment

QUICKSTART = Path(__file__).parents[2] / "experiments/dataset-quickstart.yaml"


@pytest.mark.skipif(not os.environ.get("SKILLMIX_LONG"), reason="minutes; set SKILLMIX_LONG=1")
def test_the_bundled_model_writes_20_texts_and_the_yield_is_true(in_folder: Path) -> None:
    result = run_experiment(QUICKSTART)

    made = result.datasets["d1"]
    (told,) = made.yields
    records = run_records(result.run)
    full = [text_score(b.points(RULES["default"], records.run.phrases), "full_marks") == 1.0 for b in records.ballots]
    assert result.is_complete
    assert made.texts == 20
    assert (told.written, told.full_marks) == (len(full), sum(full))
    assert "not those that the writers saw" in (made.folder / "README.md").read_text(encoding="utf-8")
