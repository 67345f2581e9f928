"""One run with everything in it, and its report, made once."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from skillmix.grading.answers import count_sentences
from skillmix.report.records import ReportOptions
from skillmix.report.write import WrittenReport
from tests.report.cases import Reported, code_case, reported, run_document, trained_experiment
from tests.report.expected_scores import Case
from tests.report.second_run import SecondRun
from tests.report.worlds import ROWS, World, make_world, write_dataset

GRADERS = {
    "judge": {"model": "scripted:grader?noise=0.08&unreadable=0.15", "rounds": 3, "attempts": 2},
    "strict": {"model": "scripted:grader?noise=0.15&unreadable=0.1", "rounds": 1, "attempts": 1},
}
RATES = {
    "base": "skill=0.55&marker=0.85&empty=0.05&refusal=0.03&cut=0.3",
    "m1": "skill=0.7",
    "m12": "skill=0.8&sense=0.8",
    "m123": "skill=0.95",
}


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    with inside(folder):
        made = make_world(
            folder,
            "world",
            RATES,
            graders=GRADERS,
            k=[1, 2, 3, 5],
            combinations=12,
            generations=2,
            settings=["train", "held-out", "all"],
        )
    write_dataset(made.run / "d123" / "dataset", "d123", ROWS["d123"], skill_sets=every_other_set(made))
    return made


def every_other_set(world: World) -> list[list[str]]:
    """Half of the skill sets of the run, as if m123 had been trained on them."""
    with closing(sqlite3.connect(world.run / "run.sqlite")) as connection, connection:
        rows = sorted(json.loads(row[0]) for row in connection.execute("SELECT skills FROM combination"))
    return [skills for skills in rows if len(skills) > 1][::2]


@pytest.fixture(scope="session")
def scripted(world: World) -> Reported:
    with inside(world.run.parents[1]):
        run = SecondRun(world.run)
        # Scripted sentences are plain and name no skill: the rules agree on them.
        return reported(Case(run, by_rules={"default": run, "paper": run}), ReportOptions(rules="both", published=True))


@pytest.fixture(scope="session")
def made(scripted: Reported) -> WrittenReport:
    return scripted.made


@pytest.fixture(scope="session")
def folder(made: WrittenReport) -> Path:
    return made.page.parent


@pytest.fixture(scope="session")
def trained(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    folder = tmp_path_factory.mktemp("trained")
    with inside(folder):
        run = run_document(folder, trained_experiment(small_model))
        # A model with random weights writes anything; how sentences are counted in it is tested elsewhere.
        second = SecondRun(run, sentences=lambda text: count_sentences(text, "robust"))
        return reported(Case(second), ReportOptions())


@pytest.fixture(scope="session")
def by_code(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    folder = tmp_path_factory.mktemp("code")
    with inside(folder):
        return reported(code_case(folder), ReportOptions(rules="both"))


@pytest.fixture(params=["scripted", "trained", "by_code"])
def any_report(request: pytest.FixtureRequest) -> Reported:
    """Each of the three."""
    found: Reported = request.getfixturevalue(request.param)
    return found
