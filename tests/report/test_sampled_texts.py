"""The report of a large run shows a sample of its texts, and its scores count all of them."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.report.read import sampled_combinations
from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from skillmix.runs.run import open_run
from skillmix.runs.texts import text_table
from skillmix.scores.scoring import table_rows
from skillmix.steps.run import run_experiment

EXPERIMENT: dict[str, Any] = {
    "name": "r",
    "catalog": "paper",
    "students": {
        "zoe": {"model": "scripted:student?skill=0.6&empty=0.1"},
        "ann": {"model": "scripted:student?skill=0.9"},
    },
    "graders": {
        "judge": {"model": "scripted:grader", "rounds": 1},
        "other": {"model": "scripted:grader?noise=0.2", "rounds": 1},
    },
    "steps": [
        {
            "name": "e",
            "stage": "evaluate",
            "students": ["zoe", "ann"],
            "graders": ["judge", "other"],
            "settings": ["all"],
            "k": [1, 2],
            "combinations": 12,
            "generations": 2,
        }
    ],
}


@pytest.fixture
def many_texts(in_folder: Path) -> Path:
    """A run of 96 texts."""
    (in_folder / "r.yaml").write_text(yaml.safe_dump(EXPERIMENT), encoding="utf-8")
    run_experiment(in_folder / "r.yaml")
    return in_folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def data(folder: Path, kind: str) -> list[Any]:
    texts = [path.read_text(encoding="utf-8") for path in sorted((folder / "data").glob(f"{kind}-*.js"))]
    return [item for text in texts for item in json.loads(text.split(",", 2)[2].removesuffix(");\n"))]


def test_scores_of_a_sampled_report_count_all_texts(many_texts: Path) -> None:
    whole = report(["r"], output=many_texts / "whole", options=ReportOptions(figures=False))

    sampled = report(["r"], output=many_texts / "sampled", options=ReportOptions(figures=False, texts=40))

    tables = [files(many_texts / name / "tables") for name in ("whole", "sampled")]
    assert {name for name in tables[0] if name.startswith("scores")}
    assert all(tables[1][name] == content for name, content in tables[0].items() if name.startswith("scores"))
    assert sampled.texts == whole.texts == 96
    shown = [text for *_, texts in data(many_texts / "sampled", "texts") for text in texts]
    assert len(shown) == 40
    assert any("the pages show 40 of its 96 texts" in gap for gap in sampled.gaps)


def test_a_smaller_sample_is_part_of_a_larger_one(many_texts: Path) -> None:
    run = open_run("r")
    table = text_table(run, run.rules())
    rows = list(table_rows(run, table))

    samples = [sampled_combinations(rows, table, most) for most in (8, 24, 40, 96, 1000)]

    assert [len(sample) for sample in samples] == [2, 6, 10, 24, 24]
    assert all(one <= other for one, other in pairwise(samples))


def test_texts_that_no_table_counts_fill_the_room_that_is_left(many_texts: Path) -> None:
    run = open_run("r")
    table = text_table(run, run.rules())

    sample = sampled_combinations([], table, 9)

    assert len(sample) == 2  # of two students and two generations each
    assert max(sample) < min(c.id for cell in run.cells for c in cell.combinations if c.id not in sample)
