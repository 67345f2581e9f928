"""A vote is asked for again if scores could not use the reply: the reply is read with the student's text both times."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.calls import GradeKey, Reply, Request
from skillmix.grading.reader import read_grades
from skillmix.models.scripted import ScriptedModel
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.run import open_run
from skillmix.steps.run import run_experiment
from skillmix.steps.step_kind import RunResult
from tests.runs.databases import forget_steps

ATTEMPTS = 3
Grade = Callable[[Request, str, str], str]
"""A grader's reply to a request, from the grades that the student's text claims and from other grades."""


def claims(request: Request, skill_point: int) -> str:
    """A table of points for every criterion."""
    assert request.subject
    combination = request.subject.combination
    rows = [f"| {skill} | {skill_point} |" for skill in combination.skills]
    return "\n".join([*rows, f"| Pertains to {combination.topic} | 1 |", "| Text makes sense | 1 |"])


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, grade: Grade) -> RunResult:
    """One text that claims every point, graded three times by `grade`."""

    def answer(model: ScriptedModel, request: Request) -> Reply:
        claimed = claims(request, 1)
        if isinstance(request.key, GradeKey):
            return Reply(grade(request, claimed, claims(request, 0)))
        return Reply(f"Answer: Time is a thief.\n{claimed}\n\nExplanation: so.")

    monkeypatch.setattr(ScriptedModel, "answer", answer)
    step: dict[str, Any] = {"name": "eval", "stage": "evaluate", "students": ["base"], "graders": ["judge"]}
    document = {
        "name": "tiny",
        "students": {"base": {"model": "scripted:student"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 3, "attempts": ATTEMPTS}},
        "steps": [step | {"settings": ["all"], "k": [2], "combinations": 2, "generations": 1}],
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return run_experiment(path)


def calls_by_attempt() -> Counter[int]:
    with open_run("tiny").read() as journal:
        return Counter(call.key.attempt for call in journal.calls("grade") if isinstance(call.key, GradeKey))


def repeats_the_text(request: Request, claimed: str, own: str) -> str:
    return f"The text is:\n{claimed}"


def quotes_the_text(request: Request, claimed: str, own: str) -> str:
    return f"The student wrote:\n{claimed}\n\nMy grading:\n\n{own}"


def better_at_the_second_attempt(request: Request, claimed: str, own: str) -> str:
    assert isinstance(request.key, GradeKey)
    return own if request.key.attempt else claimed


@pytest.mark.parametrize(("reply", "without", "with_text"), [(repeats_the_text, 1, 0), (quotes_the_text, 0, 1)])
def test_the_replies_of_these_tests_are_read_otherwise_without_the_text(
    reply: Grade, without: bool, with_text: bool
) -> None:
    rubric = rubric_of(["metaphor"], "Sewing")
    rows = "| metaphor | {} |\n| Pertains to Sewing | 1 |\n| Text makes sense | 1 |"
    said = reply(None, rows.format(1), rows.format(0))  # type: ignore[arg-type]

    assert (read_grades(rubric, said).points is not None) == without
    assert (read_grades(rubric, said, text=rows.format(1)).points is not None) == with_text


def test_a_vote_that_only_the_text_makes_unreadable_is_asked_for_again(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(in_folder, monkeypatch, repeats_the_text)

    assert calls_by_attempt() == dict.fromkeys(range(ATTEMPTS), 6)


def test_a_vote_is_asked_for_until_it_can_be_read_with_the_text(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(in_folder, monkeypatch, better_at_the_second_attempt)

    assert calls_by_attempt() == {0: 6, 1: 6}


def test_a_vote_that_only_the_text_makes_readable_is_not_asked_for_again(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(in_folder, monkeypatch, quotes_the_text)

    assert calls_by_attempt() == {0: 6}


@pytest.mark.parametrize("grade", [repeats_the_text, quotes_the_text, better_at_the_second_attempt])
def test_a_finished_run_makes_no_call_when_it_is_run_again(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, grade: Grade
) -> None:
    first = run(in_folder, monkeypatch, grade)
    again = run(in_folder, monkeypatch, grade)

    assert (again.called, again.found) == (0, first.called)


def test_a_run_of_an_older_version_makes_only_the_calls_that_the_text_demands(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older version took the first attempt of every vote for readable; each vote gets one call more."""
    with monkeypatch.context() as older:
        older.setattr("skillmix.runs.conversations.read_grades", lambda rubric, reply, text: read_grades(rubric, reply))
        first = run(in_folder, older, better_at_the_second_attempt)
    assert calls_by_attempt() == {0: 6}
    for run_folder in in_folder.glob("runs/*"):
        forget_steps(run_folder.name)  # the older version recorded none

    again = run(in_folder, monkeypatch, better_at_the_second_attempt)
    once_more = run(in_folder, monkeypatch, better_at_the_second_attempt)

    assert (again.called, again.found) == (6, first.called)
    assert once_more.called == 0
    assert calls_by_attempt() == {0: 6, 1: 6}
