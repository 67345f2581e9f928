"""The shipped experiment with people: evaluate, annotate, graders and report, on scripted models."""

import csv
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import skillmix
from skillmix.commands import main
from skillmix.models.scripted import scripted_rater
from skillmix.runs.people import HumanAnswer
from skillmix.runs.run import open_run
from skillmix.validation.rater_answers import stored_answers
from skillmix.validation.task import AnnotationTask

FILE = str(Path(__file__).parents[2] / "experiments/people.yaml")
SMALL = [
    "--set",
    "steps.eval.combinations=6",
    "--set",
    "steps.read.n=10",
    "--set",
    "steps.4={name: again, stage: graders}",
]
BO_IS_A_PERSON = ["--set", "steps.read.raters={ann: 'scripted:rater', bo: human}"]
NO_REPORT = ["--set", "steps.4={name: other, stage: grade, of: [eval], graders: [strict]}"]
KNOWN = {"strict": (0.85, 0.98), "lenient": (0.97, 0.75)}
"""Sensitivity and specificity of the graders in the file."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the shipped file has run once."""
    folder = tmp_path_factory.mktemp("people")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("skillmix.report.contents.FIGURES", ())  # they take seconds
        assert main(["run", FILE]) == 0
    return folder


@pytest.fixture
def here(finished: Path, in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, to work in."""
    monkeypatch.setattr("skillmix.report.contents.FIGURES", ())
    shutil.copytree(finished / "runs", in_folder / "runs")
    return in_folder


def cards(step: str = "cards", run: str = "people") -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(Path(f"runs/{run}/{step}/cards.json").read_text(encoding="utf-8"))
    return read


def votes(*raters: str) -> dict[str, dict[tuple[str, str], object]]:
    folder = open_run("people").people
    return {
        rater: {key: one.latest and dict(one.latest.votes) for key, one in stored_answers(folder, rater).items()}
        for rater in raters
    }


def test_the_cards_hold_the_known_errors_of_the_graders(here: Path) -> None:
    """At 30 seeds, 118 of 120 intervals hold their rate; two seeds are enough to see an error."""
    holds = known_rates_held("people")
    assert main(["run", FILE, "--set", "seed=1", "--set", "name=other", *NO_REPORT]) == 0
    holds += known_rates_held("other")

    assert len(holds) == 8 and sum(holds) >= 7


def known_rates_held(run: str) -> list[bool]:
    """Whether the intervals on skills hold the sensitivity and the specificity of each grader."""
    found = {card["grader"]: card for card in cards(run=run)}
    assert found.keys() == KNOWN.keys()
    holds = []
    for name, rates in KNOWN.items():
        (skill,) = (row for row in found[name]["by_kind"] if row["criterion"] == "skill")
        assert skill["units"] > 250
        for measure, rate in zip((skill["sensitivity"], skill["specificity"]), rates, strict=True):
            assert measure["high"] - measure["low"] < 0.2
            holds.append(measure["low"] <= rate <= measure["high"])
    return holds


def test_cards_and_report_say_that_the_raters_are_simulated(here: Path) -> None:
    page = Path("runs/people/report/index.html").read_text(encoding="utf-8")
    table = Path("runs/people/report/tables/grader-cards.md").read_text(encoding="utf-8")

    assert all(card["simulated"] == ["human:ann", "human:bo"] for card in cards())
    assert "simulated raters, not people: human:ann, human:bo" in " ".join(
        Path("runs/people/cards/cards.txt").read_text(encoding="utf-8").split()
    )
    assert "The raters ann and bo are simulated: scripts with error rates set in advance, not people." in page
    assert "people (simulated: ann, bo)" in table


def test_a_second_run_makes_no_call_and_asks_nobody_twice(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.read_bytes() for file in Path("runs/people").rglob("*") if file.suffix in (".sqlite", ".json")}
    answers = votes("ann", "bo")

    assert main(["run", FILE]) == 0

    said = capsys.readouterr().err
    for step in ("eval", "read", "cards", "report"):
        assert f"{step}: finished in an earlier run" in said
    assert "cost: 0 calls made" in said
    assert votes("ann", "bo") == answers and sum(map(len, answers.values())) == 160
    assert [file.name for file, content in before.items() if file.read_bytes() != content] == []


def test_without_records_nobody_is_asked_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers, written = votes("ann", "bo"), cards()
    with closing(sqlite3.connect("runs/people/run.sqlite")) as database, database:
        database.execute("DELETE FROM step")

    assert main(["run", FILE, *NO_REPORT]) == 0

    assert "eval: 0 calls made, 640 found" in capsys.readouterr().err
    assert (votes("ann", "bo"), cards()) == (answers, written)


def test_a_person_leaves_the_run_unfinished_until_all_texts_are_answered(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", FILE, *SMALL, *BO_IS_A_PERSON]

    assert main(command) == 1
    said = capsys.readouterr().err
    assert "read: ann (simulated) has answered 10 of 10 texts" in said
    assert "missing: read: bo has 10 of 10 texts left: skillmix annotate people --step read --rater bo" in said
    assert Path("runs/people/read/bo.csv").exists() and not Path("runs/people/read/ann.csv").exists()
    assert [card["simulated"] for card in cards()] == [["human:ann"]] * 2  # later steps use the answers so far

    answer(skillmix.open_run("people").step_annotation("read"), "bo", texts=4)
    assert main(command) == 1
    assert "missing: read: bo has 6 of 10 texts left" in capsys.readouterr().err

    answer(skillmix.open_run("people").step_annotation("read"), "bo")
    assert main(command) == 0
    said = capsys.readouterr().err
    assert "missing" not in said and "eval: finished in an earlier run" in said
    assert "cards runs again" in said
    assert cards()[0]["labelled"] > 10

    assert main(command) == 0
    assert "read: finished in an earlier run; 2 raters answered all texts" in capsys.readouterr().err


def answer(task: AnnotationTask, rater: str, texts: int = 1000) -> None:
    """Answer open texts as a person who knows what scripted texts show."""
    knows = scripted_rater("scripted:rater")
    with task.answering(rater) as store:
        for item in task.open_texts(rater)[:texts]:
            names = [criterion.name for criterion in item.criteria]
            store.store(item, HumanAnswer(knows.votes(rater, item.combination, item.words, names)))


def test_cards_against_people_wait_for_the_first_answer(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", FILE, *SMALL, "--set", "steps.read.raters=[cy]"]) == 1

    assert "missing: cards: nobody has answered a question yet" in capsys.readouterr().err
    assert not Path("runs/people/cards").exists()
    assert cards("again")[0]["truth"] == "strict"  # without people, the default truth is another grader


KILLED = """
import os, signal, sys
from {module} import {owner}
original, left = {owner}.{method}, [{calls}]
def counted(self, *args, **named):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *args, **named)
{owner}.{method} = counted
from skillmix.commands import main
main(sys.argv[1:])
"""
IN_ANSWERS = {"module": "skillmix.validation.task", "owner": "AnswerStore", "method": "store", "calls": 15}
IN_CALLS = {"module": "skillmix.models.scripted", "owner": "ScriptedModel", "method": "answer", "calls": 50}


def test_a_killed_run_ends_as_if_nothing_had_happened(in_folder: Path) -> None:
    command = ["run", FILE, *SMALL]
    assert main(command) == 0
    undisturbed = votes("ann", "bo"), cards(), cards("again")
    shutil.rmtree("runs")

    for place in (IN_CALLS, IN_ANSWERS):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED.format(**place), *command], capture_output=True, check=False, env=os.environ
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr

    partly = votes("ann", "bo")
    assert (len(partly["ann"]), len(partly["bo"])) == (10, 0)
    assert main(command) == 0
    assert (votes("ann", "bo"), cards(), cards("again")) == undisturbed


def test_status_and_dry_run_know_the_steps(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "people"]) == 0
    assert "read: bo (simulated) has answered 80 of 80 texts" in capsys.readouterr().out

    assert main(["status", "people", "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert stated["annotations"][0] == {
        "step": "read", "rater": "ann", "texts": 80, "answered": 80, "is_simulated": True
    }  # fmt: skip

    assert main(["run", FILE, "--dry-run", "--json"]) == 0
    assert {row["step"] for row in json.loads(capsys.readouterr().out)} == {"eval"}


def test_two_people_have_one_agreement_in_card_and_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graders", "people", "--truth", "human:ann", "--json"]) == 0
    bo = next(card for card in json.loads(capsys.readouterr().out) if card["grader"] == "human:bo")
    on_card = {row["criterion"]: (row["units"], row["agreement"]["value"]) for row in bo["by_kind"]}

    with Path("runs/people/report/tables/graders-agreement.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["graders"] == "human:ann and human:bo"]

    assert {row["criterion"] for row in rows} == {"skill", "topic", "sense"}
    for row in rows:
        assert on_card[row["criterion"]] == (int(row["criteria of texts"]), pytest.approx(float(row["agree"])))
    # The two agree on every answer, also where neither ever denies the point.
    assert all(row["agreement"]["value"] is not None for row in bo["by_kind"])
