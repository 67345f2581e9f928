"""A large run is read by several processes, and nobody can tell from what they find."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.datasets import from_journal
from skillmix.datasets.build import Writers
from skillmix.datasets.from_journal import KeptOfRun, RunSource, found_in
from skillmix.errors import UserError
from skillmix.steps.run import run_experiment


@pytest.fixture
def source(in_folder: Path) -> RunSource:
    """Two writers, two graders, some votes that cannot be read and some refusals."""
    document: dict[str, Any] = {
        "name": "data",
        "students": {
            "zoe": {"model": "scripted:student?skill=0.9&refusal=0.05"},
            "ann": {"model": "scripted:student?skill=0.8"},
        },
        "graders": {
            "judge": {"model": "scripted:grader", "rounds": 1},
            "other": {"model": "scripted:grader?unreadable=0.6", "rounds": 3},
        },
        "steps": [
            {
                "name": "texts",
                "stage": "generate",
                "purpose": "training",
                "students": ["zoe", "ann"],
                "settings": ["train"],
                "k": [1, 2],
                "combinations": 40,
                "generations": 2,
            },
            {"name": "grades", "stage": "grade", "of": ["texts"], "graders": ["judge", "other"]},
        ],
    }
    (in_folder / "data.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    run = run_experiment(in_folder / "data.yaml").run
    return RunSource(run, None, None, Writers(run.name, {}, {}))


@pytest.fixture
def with_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the run were large, and read in many parts."""
    monkeypatch.setattr(from_journal, "WORTH_IT", 1)
    monkeypatch.setattr(from_journal, "_AT_ONCE", 7)
    monkeypatch.setattr(from_journal, "_BLOCK", 3)
    monkeypatch.setattr(from_journal, "is_there_a_second_core", lambda: True)
    monkeypatch.setattr(from_journal, "cores", lambda: 2)


def lines(found: KeptOfRun) -> list[str]:
    return [repr(kept) for kept in found.kept]


def test_several_processes_find_what_one_finds(source: RunSource, request: pytest.FixtureRequest) -> None:
    alone = found_in(source)
    request.getfixturevalue("with_help")

    together = found_in(source)

    assert {kept.writer for kept in alone.kept} == {"ann", "zoe"}
    assert alone.kinds.total() == 320
    assert min(alone.kinds[kind] for kind in ("full", "less", "undecided")) > 0
    assert lines(together) == lines(alone)
    assert (together.kinds, together.decided) == (alone.kinds, alone.decided)


def test_without_other_processes_the_first_one_reads_all(
    source: RunSource, with_help: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = found_in(source)
    monkeypatch.setattr(from_journal, "_parts_there", _gone)

    assert lines(found_in(source)) == lines(together)


def _gone(source: RunSource, ids: object) -> Any:
    import os

    os._exit(1)


def test_damage_that_the_second_process_meets_is_told(source: RunSource, with_help: None) -> None:
    import sqlite3

    with closing(sqlite3.connect(source.run.journal / "calls.sqlite")) as journal, journal:
        journal.execute("DELETE FROM combinations WHERE id >= '8'")

    with pytest.raises(UserError, match="does not say what"):
        found_in(source)
