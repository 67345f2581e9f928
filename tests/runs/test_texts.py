"""The table of graded texts has the points of every ballot, whatever kind of run it is made of."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import skillmix
from skillmix.calls import is_human
from skillmix.commands import main
from skillmix.runs.run import Run, open_run
from skillmix.runs.texts import run_records, text_table
from skillmix.scores.scoring import scored_cells
from skillmix.steps.run import run_experiment
from tests.runs.databases import rewrite_experiment
from tests.runs.test_old_runs import NAMES, unpack
from tests.runs.test_reading import WORLDS

STEP: dict[str, Any] = {
    "name": "e",
    "stage": "evaluate",
    "students": ["zoe", "ann"],
    "graders": ["judge", "strict", "code"],
    "settings": ["train", "all"],
    "k": [1, 2],
    "combinations": 8,
    "generations": 2,
}
WHOLE: dict[str, Any] = {
    "name": "r",
    "catalog": "verifiable",
    "students": {
        "zoe": {"model": "scripted:student?skill=0.6&empty=0.1&refusal=0.1"},
        "ann": {"model": "scripted:student?skill=0.9"},
    },
    "graders": {
        "judge": {"model": "scripted:grader", "rounds": 1},
        "strict": {"model": "scripted:grader?noise=0.3&unreadable=0.5", "rounds": 3},
        "code": {"model": "rules:"},
    },
    "steps": [STEP],
}


def run(folder: Path, **step: Any) -> Run:
    """Run the experiment with another step, in the same run."""
    (folder / "r.yaml").write_text(yaml.safe_dump({**WHOLE, "steps": [{**STEP, **step}]}), encoding="utf-8")
    run_experiment(folder / "r.yaml")
    return open_run("r")


def with_an_earlier_experiment(folder: Path) -> Run:
    run(folder)
    return run(folder, combinations=5, graders=["judge", "code"], students=["ann"])


def with_unplanned_texts(folder: Path) -> Run:
    run(folder)
    document = yaml.safe_load(open_run("r").yaml)
    document["steps"][0].update(combinations=3, k=[1], generations=1)
    return rewrite_experiment("r", document)


def old(name: str) -> Callable[[Path], Run]:
    def unpacked(folder: Path) -> Run:
        unpack(name, folder)
        return open_run(name)

    unpacked.__name__ = name
    return unpacked


EVERY = [*WORLDS, with_an_earlier_experiment, with_unplanned_texts, *map(old, NAMES)]


@pytest.mark.parametrize("world", EVERY, ids=lambda world: str(world.__name__))
def test_the_cells_have_the_points_of_the_ballots(in_folder: Path, world: Callable[[Path], Run]) -> None:
    run = world(in_folder)
    records = run_records(run)
    for name in ("default", "paper"):
        rules = run.rules(name)
        table = text_table(run, rules)
        ballots = {(*b.text.conversation, b.grader): b for b in records.ballots if not is_human(b.grader)}
        counted = 0
        for key, cell in scored_cells(run, rules=name).items():
            for combination, points in zip(cell.combinations, cell.points, strict=True):
                written = sorted(n for s, c, n, g in ballots if (s, c, g) == (key.student, combination.id, key.grader))
                for generation, own in zip(written if run.is_imported else range(len(points)), points, strict=True):
                    ballot = ballots.get((key.student, combination.id, generation, key.grader))
                    assert own == (ballot and ballot.points(rules, run.phrases))
                    counted += ballot is not None
        assert counted or run.makes_data or not ballots  # texts for data sets are in no score
        assert table.texts == len(records.texts)
        assert table.students == sorted({text.student for text in records.texts})


def test_a_table_takes_a_few_bytes_for_each_text(in_folder: Path) -> None:
    own = run(in_folder)

    table = text_table(own, own.rules())

    assert len(table.grades) < table.texts
    assert text_table(own, own.rules()) is table


def test_a_run_that_was_stopped_has_every_missing_call_in_its_status(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "r.yaml").write_text(yaml.safe_dump({**WHOLE, "budget": {"max_calls": 150}}), encoding="utf-8")
    run_experiment(in_folder / "r.yaml")
    missing = _missing(capsys)
    assert missing > 50

    run_experiment(in_folder / "r.yaml", changes=["budget.max_calls=10000"])

    assert _missing(capsys) == 0


def _missing(capsys: pytest.CaptureFixture[str]) -> int:
    capsys.readouterr()
    assert main(["status", "r", "--json"]) == 0
    return int(json.loads(capsys.readouterr().out)["calls"]["missing"])


def test_texts_become_a_data_frame(in_folder: Path) -> None:
    pytest.importorskip("pandas")
    run(in_folder)

    texts = skillmix.open_run("r").texts(student="zoe")
    frame = texts.to_pandas()

    assert len(frame) == len(texts) > 0
    assert list(frame["text"]) == [text.text for text in texts]
    assert frame["full_marks"].sum() == sum(text.full_marks or 0 for text in texts)
