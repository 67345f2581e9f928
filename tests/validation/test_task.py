"""Answers of people in the journal: stored once, corrected by a further attempt, and excluded from scores."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from skillmix.calls import GradeKey
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.exchange.export import vote_rows
from skillmix.runs.people import HumanAnswer
from skillmix.runs.run import Run, open_run
from skillmix.runs.texts import run_records
from skillmix.runs.verdicts import PERSON
from skillmix.scores.graders import grader_agreement
from skillmix.scores.scoring import run_scores
from skillmix.scores.status import run_status
from skillmix.scores.text_rows import run_texts
from skillmix.steps.run import run_experiment
from skillmix.validation.sample import items_of
from skillmix.validation.task import TaskSettings, make_task
from tests.validation.run_for_people import copied_run, skills_and_topic


@pytest.fixture
def people(in_folder: Path) -> Run:
    return copied_run(texts=12)


def all_yes(item: Any, **changes: Any) -> HumanAnswer:
    return HumanAnswer({**{criterion.name: 1 for criterion in item.criteria}, **changes})


def human_ballots(run: Run) -> list[Any]:
    return [ballot for ballot in run_records(run).ballots if ballot.grader.startswith("human:")]


def test_an_answer_is_a_vote_of_the_person_and_unsure_is_unknown(people: Run) -> None:
    task = make_task(people, TaskSettings(("ann",), n=3))
    item = task.texts("ann")[0]

    with task.answering("ann") as store:
        assert store.store(item, all_yes(item, topic=None, sense=0))

    (ballot,) = human_ballots(people)
    points = ballot.points(people.rules(), people.phrases)
    k = item.combination.k
    assert (ballot.grader, ballot.text) == ("human:ann", item.text)
    assert points[k : k + 2] == (None, False)
    assert people.grader("human:ann").model == PERSON != people.grader("juror").model
    assert "human:ann" not in open_run("people").graders


def test_the_same_answer_is_stored_once_and_a_correction_counts(people: Run) -> None:
    task = make_task(people, TaskSettings(("ann",), n=3))
    item = task.texts("ann")[0]
    first = HumanAnswer({criterion.name: 1 for criterion in item.criteria}, seconds=2.5, id="a")
    second = HumanAnswer({criterion.name: 0 for criterion in item.criteria}, comment="I misread it.", id="b")

    with task.answering("ann") as store:
        stored = [store.store(item, answer) for answer in (first, first, second, second, first)]
    with task.answering("ann") as store:  # after a restart, the page repeats unconfirmed answers
        stored += [store.store(item, answer) for answer in (second, first)]
        assert store.latest(item) == second

    assert stored == [True, False, True, False, False, False, False]
    (ballot,) = human_ballots(people)
    assert ballot.readings[0].points == (*[0.0] * (item.combination.k + 2), None)
    assert ballot.readings[0].notes == ("I misread it.",)
    rows = [row for row in vote_rows(people) if row["grader"] == "human:ann"]
    assert [row["attempt"] for row in rows] == [0, 1]
    assert json.loads(rows[0]["reply"])["seconds"] == 2.5


def test_another_attempt_may_say_the_first_thing_again(people: Run) -> None:
    task = make_task(people, TaskSettings(("ann",), n=1))
    (item,) = task.texts("ann")
    votes = [HumanAnswer({c.name: vote for c in item.criteria}, id=f"{n}") for n, vote in enumerate((1, 0, 1))]

    with task.answering("ann") as store:
        assert [store.store(item, answer) for answer in votes] == [True] * 3

    assert human_ballots(people)[0].readings[0].points[0] == 1.0


@pytest.mark.parametrize(
    ("changes", "comment"),
    [({"sense": None}, ""), ({"unknown": 1}, ""), ({"sense": 2}, ""), ({"sense": True}, ""), ({}, "x" * 5001)],
    ids=["no vote on sense", "an unknown criterion", "2", "true", "a long comment"],
)
def test_an_answer_that_does_not_fit_is_refused(people: Run, changes: dict[str, Any], comment: str) -> None:
    task = make_task(people, TaskSettings(("ann",), n=1))
    (item,) = task.texts("ann")
    votes = {criterion.name: 1 for criterion in item.criteria} | changes
    if changes == {"sense": None}:
        del votes["sense"]

    with task.answering("ann") as store, pytest.raises(UserError, match="cannot be stored"):
        store.store(item, HumanAnswer(votes, comment))

    assert human_ballots(people) == []


def test_people_change_no_score_no_status_and_no_finding(people: Run) -> None:
    before = (run_scores(people), run_status(people), people.graders)
    task = make_task(people, TaskSettings(("ann", "bo"), n=6))
    for rater in ("ann", "bo"):
        with task.answering(rater) as store:
            for item in task.texts(rater):
                store.store(item, all_yes(item))

    again = open_run("people")

    assert (run_scores(again), run_status(again), again.graders) == before
    assert {row.grader for row in run_texts(again)} == {"juror", "human:ann", "human:bo"}
    ballots = [(b, b.points(again.rules(), again.phrases)) for b in run_records(again).ballots]
    pairs = {(a.first, a.second) for a in grader_agreement("people", ballots)[0]}
    assert {("human:ann", "juror"), ("human:bo", "juror")} <= pairs


def experiment(**changes: Any) -> dict[str, Any]:
    return {
        "name": "exam",
        "students": {"base": {"model": "scripted:student?skill=0.5&marker=0.8"}},
        "graders": {"judge": {"model": "scripted:grader?unreadable=0.2", "rounds": 3}},
        "steps": [
            {
                "name": "eval",
                "stage": "evaluate",
                "students": ["base"],
                "graders": ["judge"],
                "settings": ["all"],
                "k": [2],
                "combinations": 6,
                "generations": 2,
            }
        ],
    } | changes


def test_people_grade_an_experiment_while_the_run_continues(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = in_folder / "exam.yaml"
    file.write_text(json.dumps(experiment()), encoding="utf-8")
    run_experiment(file)
    run = open_run("exam")
    before = (run_scores(run), run_status(run))
    task = make_task(run, TaskSettings(("ann",), n=4))
    with task.answering("ann") as store:  # a person's file has a separate lock, so the run is not locked
        for item in task.texts("ann"):
            store.store(item, all_yes(item))
        assert main(["run", str(file)]) == 0
    out = capsys.readouterr()

    again = open_run("exam")
    assert (run_scores(again), run_status(again)) == before
    assert "human" not in out.out
    assert len(human_ballots(again)) == 4
    assert main(["report", "exam", "--no-figures"]) == 0
    page = (in_folder / "runs/exam/report/index.html").read_text(encoding="utf-8")
    scores = (in_folder / "runs/exam/report/tables/scores-all.csv").read_text(encoding="utf-8")
    assert "human:ann" not in scores and "human:ann" in page  # in the table of agreement


def test_texts_that_earn_nothing_are_not_shown_and_equal_texts_are_one_item(in_folder: Path) -> None:
    combination = skills_and_topic("metaphor", topic="Sewing")
    lines = [
        {"student": student, "skills": list(combination.skills), "topic": combination.topic, "text": text}
        for student, text in (("a", "One text."), ("b", "One text."), ("a", "Another."), ("b", "  "))
    ]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert main(["import-texts", "texts.jsonl", "--run", "people"]) == 0
    run = open_run("people")

    items = items_of(run_records(run))
    assert sorted(item.words for item in items) == ["Another.", "One text."]

    # The answer belongs to the text, so it also counts for a task with only the other student.
    (one,) = [item for item in items if item.words == "One text."]
    for student in ("a", "b"):
        task = make_task(run, TaskSettings(("ann",), students=(student,)))
        (item,) = [item for item in task.texts("ann") if item.words == "One text."]
        assert item.id == one.id and item.text.student == student
        with task.answering("ann") as store:
            assert store.store(item, all_yes(item)) == (student == "a")


def test_the_id_of_a_text_does_not_depend_on_the_student(people: Run) -> None:
    items = items_of(run_records(people))

    assert len({item.id for item in items}) == len(items) == 12
    assert all(item.text.student not in item.id for item in items)


def test_two_processes_cannot_answer_for_one_person_and_can_for_two(people: Run) -> None:
    task = make_task(people, TaskSettings(("ann", "bo"), n=2))

    with task.answering("ann"), task.answering("bo"):
        with pytest.raises(UserError, match="Another process is writing"), task.answering("ann"):
            pass
        with people.write():  # a run of the experiment
            pass


def test_answers_of_another_machine_count_when_their_file_is_copied(people: Run, tmp_path: Path) -> None:
    task = make_task(people, TaskSettings(("ann",), n=2))
    with task.answering("ann") as store:
        for item in task.texts("ann"):
            store.store(item, all_yes(item))
    file = people.people / "ann.sqlite"
    kept = file.read_bytes()
    file.unlink()
    assert human_ballots(open_run("people")) == []

    file.write_bytes(kept)

    assert len(human_ballots(open_run("people"))) == 2


def test_a_killed_process_keeps_every_answer_that_it_confirmed(people: Run) -> None:
    code = (
        "import os\n"
        "from skillmix.validation.task import TaskSettings, make_task\n"
        "from skillmix.runs.people import HumanAnswer\n"
        "from skillmix.runs.run import open_run\n"
        "task = make_task(open_run('people'), TaskSettings(('ann',), n=5))\n"
        "with task.answering('ann') as store:\n"
        "    for item in task.texts('ann')[:3]:\n"
        "        store.store(item, HumanAnswer({c.name: 1 for c in item.criteria}))\n"
        "    os.kill(os.getpid(), 9)\n"
    )

    ended = subprocess.run([sys.executable, "-c", code], check=False)

    assert ended.returncode == -9
    assert len(human_ballots(people)) == 3
    task = make_task(people, TaskSettings(("ann",), n=5))
    assert [task.answer("ann", item) is not None for item in task.texts("ann")].count(True) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"raters": ()},
        {"raters": ("ann", "ann")},
        {"raters": ("Ann Lee",)},
        {"raters": ("../x",)},
        {"raters": ("a" * 61,)},
        {"raters": ("-x",)},
        {"raters": ("ann.",)},
        {"raters": ("ann",), "agreement": 7.0},
        {"raters": ("ann",), "n": 5, "agreement": float("nan")},
        {"raters": ("ann",), "width": 1e-300},
        {"raters": ("ann",), "overlap": 1.5},
        {"raters": ("ann",), "n": 0},
        {"raters": ("ann",), "n": 5, "width": 0.1},
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        TaskSettings(**settings)
    assert error.value.hint


def test_an_unknown_student_gets_a_hint(people: Run) -> None:
    with pytest.raises(UserError, match="no student 'littlebrd'") as error:
        make_task(people, TaskSettings(("ann",), students=("littlebrd",)))
    assert error.value.hint is not None and 'Did you mean "littlebird"?' in error.value.hint


def test_no_experiment_and_no_import_can_name_a_person_as_grader(in_folder: Path) -> None:
    lines = {
        "student": "a",
        "skills": ["metaphor"],
        "topic": "Sewing",
        "text": "One.",
        "gradings": {"human:ann": ["x"]},
    }
    Path("texts.jsonl").write_text(json.dumps(lines), encoding="utf-8")
    assert main(["import-texts", "texts.jsonl", "--run", "people"]) == 2

    named = {"human:ann": {"model": "scripted:grader"}}
    Path("exam.yaml").write_text(json.dumps(experiment(graders=named)), encoding="utf-8")
    assert main(["run", "exam.yaml"]) == 2


def test_the_journal_keeps_what_the_person_was_shown(people: Run) -> None:
    task = make_task(people, TaskSettings(("ann",), n=1))
    (item,) = task.texts("ann")
    with task.answering("ann") as store:
        store.store(item, all_yes(item))

    with people.read() as journal:
        (call,) = [c for c in journal.calls("grade") if isinstance(c.key, GradeKey) and c.key.grader == "human:ann"]
        shown = journal.message(call.messages[0]).content
    assert item.words in shown and item.combination.topic in shown and item.text.student not in shown
    skill = people.catalog.skill(item.combination.skills[0])
    assert skill.definition in shown and skill.example in shown
    assert call.origin == "imported" and call.model == "person"  # no call, so no cost and no tokens


def test_an_answer_is_stored_while_somebody_reads_and_is_in_the_one_file_with_the_next(people: Run) -> None:
    task = make_task(people, TaskSettings(("ann",), n=3))
    first, second, third = task.texts("ann")
    file = people.people / "ann.sqlite"

    def answers_in_a_copy() -> int:
        """Count the answers in a copy of the file without its log."""
        copy = people.path / "copy.sqlite"
        copy.write_bytes(file.read_bytes())
        with closing(sqlite3.connect(copy)) as reader:
            return int(reader.execute("SELECT count(*) FROM call").fetchone()[0])

    with task.answering("ann") as store:
        store.store(first, all_yes(first))
        assert answers_in_a_copy() == 1
        with closing(sqlite3.connect(file, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM call").fetchall()
            assert store.store(second, all_yes(second))
            assert answers_in_a_copy() == 1
        assert store.store(third, all_yes(third))
        assert answers_in_a_copy() == 3
