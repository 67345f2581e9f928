"""A run that has more votes than its grader is asked for now: only the first rounds count, everywhere."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.datasets.from_runs import FromRuns, dataset_of_runs
from skillmix.exchange.export import export
from skillmix.experiment.recipes import plain_recipe
from skillmix.scores.scoring import run_scores
from skillmix.scores.status import run_status
from skillmix.steps.run import run_experiment

JUDGES = {"judge": "scripted:grader?noise=0.2", "mixed": "rules:scripted:grader?noise=0.2&unreadable=0.2"}


def evaluated(folder: Path, rounds: int) -> None:
    document: dict[str, Any] = {
        "name": "votes",
        "leakage": {"reserved": 0.0},
        "students": {"base": {"model": "scripted:student"}},
        "graders": {name: {"model": model, "rounds": rounds} for name, model in JUDGES.items()},
        "steps": [
            {
                "name": "texts",
                "stage": "generate",
                "purpose": "training",
                "students": ["base"],
                "settings": ["train"],
                "k": [1, 2],
                "combinations": 25,
                "generations": 1,
            },
            {"name": "grades", "stage": "grade", "of": ["texts"], "graders": list(JUDGES)},
        ],
    }
    path = folder / "votes.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert run_experiment(path).is_complete


@pytest.fixture
def numbers_with_one_round(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a run prints that was never asked for more than one round."""
    alone = in_folder / "alone"
    alone.mkdir()
    monkeypatch.chdir(alone)
    evaluated(alone, rounds=1)
    found = numbers()
    monkeypatch.chdir(in_folder)
    return found


def numbers() -> dict[str, Any]:
    exported = {
        what: export("votes", what=what, file_format="jsonl", rules="default", output=None).read_text(encoding="utf-8")
        for what in ("texts", "votes")
    }
    made = dataset_of_runs(FromRuns(runs=["votes"], recipe=plain_recipe([1, 2]), graders=["judge"], reserved=0.0))
    assert main(["report", "votes", "--no-figures"]) == 0
    report = Path("runs/votes/report")
    spent = ("where-the-time-went", "calls-and-cost")  # all calls were made and paid, whatever counts
    files = [file for file in sorted(report.glob("tables/*.csv")) if file.stem not in spent]
    tables = {str(file.relative_to(report)): file.read_text("utf-8") for file in files}
    return {
        "scores": run_scores("votes"),
        "status": run_status("votes").unreadable,
        "data set": made.written.hash,
        "votes in the data set": json.dumps(made.as_json()["left_out"]),
        "report": tables,
        **exported,
    }


@pytest.mark.parametrize("rounds", [3, 5])
def test_votes_beyond_the_rounds_asked_for_count_nowhere(
    in_folder: Path, numbers_with_one_round: dict[str, Any], rounds: int
) -> None:
    evaluated(in_folder, rounds=rounds)
    with_all = numbers()
    evaluated(in_folder, rounds=1)

    found = numbers()

    assert with_all["scores"] != found["scores"]
    assert found["report"]
    for name, expected in numbers_with_one_round.items():
        assert found[name] == expected, name
    assert run_status("votes").missing == 0
