"""From an experiment file to its report: how often a reply is read and a combination is drawn."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.catalog import combinations
from skillmix.commands import main
from skillmix.experiment import plan
from skillmix.experiment.experiment import experiment_of
from skillmix.grading import reader
from skillmix.runs.run import open_run

STEPS: list[dict[str, Any]] = [
    {
        "name": "eval",
        "stage": "evaluate",
        "students": ["student"],
        "graders": ["grader", "mixed"],
        "settings": ["train", "held-out"],
        "k": [1, 2],
        "combinations": 4,
        "generations": 2,
    },
    {
        "name": "data",
        "stage": "dataset",
        "writer": "student",
        "graders": ["grader"],
        "k": [1, 2],
        "target": 6,
    },
    {"name": "report", "stage": "report"},
]


def experiment(folder: Path, steps: list[dict[str, Any]]) -> Path:
    document = {
        "name": "walk",
        "catalog": "verifiable",
        "students": {"student": {"model": "scripted:student?skill=0.9"}},
        "graders": {
            "grader": {"model": "scripted:grader?unreadable=0.2", "rounds": 3},
            "mixed": {"model": "rules:scripted:grader?noise=0.2", "rounds": 1},
        },
        "steps": steps,
    }
    path = folder / "walk.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any], Callable[..., object]], Counter[Any]]:
    """Counts the calls of a function, wherever a module of the package has imported it."""

    def wrap(function: Callable[..., Any], label: Callable[..., object]) -> Counter[Any]:
        calls: Counter[Any] = Counter()

        def counted(*arguments: Any, **named: Any) -> Any:
            calls[label(*arguments, **named)] += 1
            return function(*arguments, **named)

        for name, module in list(sys.modules.items()):
            if name.startswith("skillmix.") and getattr(module, function.__name__, None) is function:
                monkeypatch.setattr(module, function.__name__, counted)
        return calls

    return wrap


def gradings_with_a_reply() -> tuple[int, int]:
    """The number of all gradings, and of those that only the data set asked for."""
    run = open_run("walk")
    evaluated = {combination.id for cell in run.cells for combination in cell.combinations}
    with run.read() as journal:
        found = [call.key.combination for call in journal.calls("grade") if call.outcome is not None]
    return len(found), sum(combination not in evaluated for combination in found)


def test_a_reply_is_read_at_most_twice_and_a_cell_is_drawn_once(
    in_folder: Path, wrapped: Callable[..., Counter[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import skillmix.datasets.from_runs
    import skillmix.report.write
    import skillmix.steps.run  # noqa: F401

    monkeypatch.setattr("skillmix.report.contents.FIGURES", ())  # they take seconds
    plan._drawn.cache_clear()
    reads = wrapped(reader.read_grades, lambda rubric, reply, *, text=None: text is not None)
    drawn = wrapped(combinations.draw_combinations, lambda draw, count: (draw.purpose, draw.setting, draw.k))
    started = wrapped(combinations.all_combinations, lambda draw: (draw.purpose, draw.setting, draw.k))

    assert main(["run", str(experiment(in_folder, STEPS))]) == 0

    replies, of_data = gradings_with_a_reply()
    assert replies > 150 and of_data < replies / 3
    # Once to decide whether to ask again, once for the numbers, and once to choose the texts of the data set; each time
    # with the student's text.
    assert 0 < reads[True] <= 2 * replies + of_data
    assert reads[False] == 0
    assert (len(drawn), len(started)) == (4, 6)
    assert set(drawn.values()) == {1}
    assert set(started.values()) == {1, 2}  # the first combination of a data set is checked before the first call


def test_the_experiment_of_a_run_is_checked_at_most_once(in_folder: Path, wrapped: Callable[..., Counter[Any]]) -> None:
    file = str(experiment(in_folder, STEPS[:1]))
    assert main(["run", file]) == 0
    checked = wrapped(experiment_of, lambda document, *, source, checks_outside=False: source)
    own = "The experiment of runs/walk"

    assert main(["scores", "walk"]) == 0
    assert checked[own] == 1
    assert main(["status", "walk"]) == 0
    assert checked[own] == 2
    assert main(["report", "walk", "--no-figures"]) == 0
    assert checked[own] == 3
    assert main(["run", file]) == 0
    assert checked[own] == 4
