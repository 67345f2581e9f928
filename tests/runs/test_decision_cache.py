"""What is kept beside a journal is never believed once it was edited, damaged or moved."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.datasets.from_runs import FromRuns, dataset_of_runs
from skillmix.experiment.recipes import plain_recipe
from skillmix.runs.reading import decisions
from skillmix.steps.run import run_experiment

DERIVED = Path("runs/data/derived.sqlite")


@pytest.fixture
def members(in_folder: Path) -> str:
    """The hash of the data set of a run whose decisions are all kept."""
    document: dict[str, Any] = {
        "name": "data",
        "students": {"w": {"model": "scripted:student"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            {
                "name": "texts",
                "stage": "generate",
                "purpose": "training",
                "students": ["w"],
                "settings": ["train"],
                "k": [1],
                "combinations": 40,
                "generations": 1,
            },
            {"name": "grades", "stage": "grade", "of": ["texts"], "graders": ["judge"]},
        ],
    }
    (in_folder / "data.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    run_experiment(in_folder / "data.yaml")
    return made()


def made() -> str:
    return dataset_of_runs(FromRuns(runs=["data"], recipe=plain_recipe([1]))).written.hash


def table(connection: sqlite3.Connection) -> str:
    [[name]] = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return str(name)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE {t} SET earned = 1",
        "UPDATE {t} SET earned = 0",
        "UPDATE {t} SET earned = NULL",
        "UPDATE {t} SET votes = '[[1.0, 1.0, 1.0, 1.0]]'",
        "UPDATE {t} SET text = '0000000000000000'",
        "UPDATE {t} SET status = 'empty'",
        "UPDATE {t} SET (earned, text, status, votes) = (SELECT earned, text, status, votes FROM {t} WHERE earned = 1)",
        "DELETE FROM {t} WHERE earned = 1",
    ],
)
def test_an_edited_decision_is_worked_out_anew(members: str, sql: str) -> None:
    rows = Path("runs/data/dataset/rows.parquet").read_bytes()
    with closing(sqlite3.connect(DERIVED)) as derived, derived:
        assert derived.execute(sql.format(t=table(derived))).rowcount > 5

    assert made() == members
    assert Path("runs/data/dataset/rows.parquet").read_bytes() == rows


def test_a_decision_under_another_key_is_not_believed(members: str) -> None:
    with closing(sqlite3.connect(DERIVED)) as derived, derived:
        name = table(derived)
        keys = derived.execute(f"SELECT earned, key FROM {name} ORDER BY earned").fetchall()
        (_, failed), (_, full) = keys[0], keys[-1]
        assert (keys[0][0], keys[-1][0]) == (0, 1)
        derived.execute(f"DELETE FROM {name} WHERE key = ?", (failed,))
        derived.execute(f"UPDATE {name} SET key = ? WHERE key = ?", (failed, full))

    assert made() == members


def test_decisions_that_nobody_touched_are_not_worked_out_again(members: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions.OpenDecisions, "_worked_out", None)

    assert made() == members


def test_decisions_of_an_older_version_are_worked_out_anew(members: str) -> None:
    with closing(sqlite3.connect(DERIVED)) as derived, derived:
        name = table(derived)
        derived.execute(f"CREATE TABLE decisions AS SELECT key, 1 AS earned, text, status, votes FROM {name}")
        derived.execute(f"DROP TABLE {name}")

    assert made() == members
