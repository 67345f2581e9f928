"""One read path: records and decisions agree on scripted, imported, refused, unfinished and re-asked conversations."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.calls import GradeKey
from skillmix.datasets.decisions import Decisions
from skillmix.errors import UserError
from skillmix.exchange.import_texts import import_texts
from skillmix.grading.points import earns_nothing, text_score
from skillmix.grading.reader import Reading
from skillmix.runs.journal import JournalReader
from skillmix.runs.run import Run, open_run
from skillmix.runs.texts import GradedConversation, RunRecords, graded_conversations, run_records, written_conversations
from skillmix.steps.run import run_experiment
from tests.runs.databases import rewrite_experiment

GRADERS = {
    "judge": {"model": "scripted:grader?unreadable=0.4", "rounds": 3, "attempts": 2},
    "code": {"model": "rules:"},
    "mixed": {"model": "rules:scripted:grader?noise=0.3&unreadable=0.3", "rounds": 1},
    "absent": {"model": "scripted:grader", "rounds": 5},
}


def scripted(folder: Path, *, marker: str = "whole") -> Run:
    """Conversations with refusals, unreadable votes and votes that were asked for again; one grader never voted."""
    document: dict[str, Any] = {
        "name": "scripted",
        "catalog": "verifiable",
        "answer": {"missing_marker": marker},
        "students": {
            "zoe": {"model": "scripted:student?skill=0.9&refusal=0.2"},
            "ann": {"model": "scripted:student?skill=0.7&marker=0.3"},
        },
        "graders": GRADERS,
        "steps": [
            {
                "name": "eval",
                "stage": "evaluate",
                "students": ["zoe", "ann"],
                "graders": ["judge", "code", "mixed"],
                "settings": ["all"],
                "k": [1, 3],
                "combinations": 12,
                "generations": 2,
            }
        ],
    }
    path = folder / "scripted.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    run_experiment(path)
    return open_run("scripted")


def without_a_marker(folder: Path) -> Run:
    return scripted(folder, marker="zero")


def unfinished(folder: Path) -> Run:
    """The same run, with calls missing at every stage and gradings of texts that are no longer extracted."""
    run = scripted(folder)
    with closing(sqlite3.connect(run.file)) as journal, journal:
        journal.execute("DELETE FROM call WHERE stage = 'generate' AND turn = 2 AND id % 3 = 0")
        journal.execute("DELETE FROM call WHERE stage = 'grade' AND id % 5 = 0")
        journal.execute("UPDATE call SET text = 'another' WHERE stage = 'grade' AND id % 7 = 0")
        journal.execute(
            "UPDATE call SET reply = NULL, status = 'problem', problem_kind = 'failed', problem = 'lost' "
            "WHERE stage = 'grade' AND id % 11 = 0"
        )
    return run


def with_fewer_rounds(folder: Path) -> Run:
    """A run whose grader had three rounds and now has one, and whose second grader was taken out."""
    run = scripted(folder)
    document = yaml.safe_load(run.yaml)
    document["graders"]["judge"]["rounds"] = 1
    document["graders"].pop("mixed")
    document["steps"][0]["graders"].remove("mixed")
    return rewrite_experiment("scripted", document)


def imported(folder: Path) -> Run:
    """Texts and conversations with different graders, even numbers of votes, and a student who earned nothing."""

    def line(number: int, student: str, *grades: str, **more: object) -> str:
        reply = "| metaphor | {0} |\n| Sewing | 1 |\n| makes sense | 1 |\n| at most 0 sentences | 1 |"
        gradings = {name: [reply.format(number % 2), "no idea", reply.format(1)][: 1 + number % 3] for name in grades}
        text = {"text": f"The loom, number {number}, is a river of thread."}
        return json.dumps(
            {"skills": ["metaphor"], "topic": "Sewing", "student": student, "gradings": gradings, **(more or text)}
        )

    turns = [
        {"role": "user", "content": "Write"},
        {"role": "assistant", "content": "Answer: The seam is a road.\n\nExplanation: as one travels it"},
    ]
    lines = [line(number, "ann", "gpt", *(["llama"] if number % 2 else [])) for number in range(6)]
    lines += [line(number, "bob", "llama") for number in range(3)]
    lines += [line(7, "cyd", "gpt", messages=turns), line(8, "cyd", "gpt", messages=[*turns, *turns])]
    lines += [line(9, "dan", text="!"), line(10, "dan", text="?")]
    file = folder / "texts.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    import_texts(file, "imported", catalog="paper")
    return open_run("imported")


WORLDS = [scripted, without_a_marker, unfinished, with_fewer_rounds, imported]


@pytest.fixture(params=WORLDS, ids=lambda world: str(world.__name__))
def run(request: pytest.FixtureRequest, in_folder: Path) -> Run:
    world: Callable[[Path], Run] = request.param
    return world(in_folder)


def test_every_kind_of_conversation_is_among_them(in_folder: Path) -> None:
    run = unfinished(in_folder)
    with run.read() as journal:
        written = list(written_conversations(run, journal))
        graded = list(graded_conversations(run, journal))

    statuses = {conversation.text.answer.status for conversation in written if conversation.text}
    assert statuses >= {"fine", "refused"}
    assert any(conversation.text is None for conversation in written)
    assert any(call.key.attempt for one in graded for call in one.calls if isinstance(call.key, GradeKey))
    assert any(None in one.readings for one in graded)
    assert any(reading and reading.problem for one in graded for reading in one.readings)


def test_a_run_has_a_ballot_of_each_of_its_graders_on_each_text(run: Run) -> None:
    records = run_records(run)
    ballots = [ballot for ballot in records.ballots if ballot.grader in run.graders]
    by_student: dict[str, set[str]] = defaultdict(set)
    for ballot in ballots:
        by_student[ballot.text.student].add(ballot.grader)

    assert len(records.texts) > 10
    if run.is_imported:
        assert by_student == {"ann": {"gpt", "llama"}, "bob": {"llama"}, "cyd": {"gpt"}, "dan": {"gpt", "llama"}}
    else:
        assert by_student == {"ann": set(run.experiment.graders), "zoe": set(run.experiment.graders)}
    assert len(ballots) == sum(len(by_student[text.student]) for text in records.texts)


def test_a_grader_that_was_taken_out_keeps_its_ballots(in_folder: Path) -> None:
    run = with_fewer_rounds(in_folder)
    with run.read() as journal:
        asked = {
            (one.text.conversation, call.key.grader)
            for one in graded_conversations(run, journal)
            for call in one.calls
            if isinstance(call.key, GradeKey)
        }

    kept = [ballot for ballot in run_records(run).ballots if ballot.grader not in run.graders]

    assert {ballot.grader for ballot in kept} == {"mixed"}
    assert {b.text.conversation for b in kept if b.readings} == {key for key, name in asked if name == "mixed"}
    assert all(earns_nothing(b.text.answer, run.rules()) for b in kept if not b.readings)


def test_a_vote_is_the_first_readable_attempt_of_its_round(run: Run) -> None:
    with run.read() as journal:
        votes = {one.text.conversation: raw_votes(run, one) for one in graded_conversations(run, journal)}

    for ballot in run_records(run).ballots:
        if not run.grader(ballot.grader).has_code:
            assert list(ballot.readings) == votes[ballot.text.conversation].get(ballot.grader, [])


def raw_votes(run: Run, conversation: GradedConversation) -> dict[str, list[Reading | None]]:
    """The votes, worked out in another way: readable attempts before unreadable ones before none, then the earliest."""
    attempts: dict[tuple[str, int], list[tuple[int, int, Reading | None]]] = defaultdict(list)
    for call, reading in zip(conversation.calls, conversation.readings, strict=True):
        assert isinstance(call.key, GradeKey)
        if reading is None:
            rank, order = 2, 0
        elif reading.points is None:
            rank, order = 1, -call.key.attempt
        else:
            rank, order = 0, call.key.attempt
        attempts[call.key.grader, call.key.round].append((rank, order, reading))
    votes: dict[str, list[Reading | None]] = defaultdict(list)
    for (grader, _), tried in sorted(attempts.items()):
        votes[grader].append(min(tried, key=lambda attempt: attempt[:2])[2])
    return votes


def test_calls_out_of_order_are_an_error_and_no_lost_votes(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = imported(in_folder)
    in_order = JournalReader.calls
    monkeypatch.setattr(JournalReader, "calls", lambda self, stage, **_: reversed(list(in_order(self, stage))))

    with pytest.raises(UserError, match="out of order"):
        run_records(run)


@pytest.mark.parametrize("rules", ["default", "paper"])
def test_records_and_decisions_agree(run: Run, rules: str) -> None:
    by_records = expected(run_records(run), rules)

    with Decisions(run, rules=rules) as chosen:
        by_decisions = {
            (*found.key, name): (ballot, earned)
            for found, ballots, earned_by in chosen.every()
            for name, ballot, earned in zip(chosen.names, ballots, earned_by, strict=bool(ballots))
        }

    assert by_records.keys() <= by_decisions.keys()
    assert {key[:3] for key in by_decisions} == {text.conversation for text in run_records(run).texts}
    for key, (earned, status, votes) in by_records.items():
        ballot, decided = by_decisions[key]
        readings = [list(reading.points) if reading and reading.points else None for reading in ballot.readings]
        assert (decided, ballot.text.answer.status, readings) == (earned, status, votes), key


def expected(records: RunRecords, rules: str) -> dict[tuple[str, str, int, str], tuple[object, ...]]:
    found: dict[tuple[str, str, int, str], tuple[object, ...]] = {}
    for ballot in (b for b in records.ballots if b.grader in records.run.graders):
        points = ballot.points(records.run.rules(rules), records.run.phrases)
        votes = [list(reading.points) if reading and reading.points else None for reading in ballot.readings]
        key = (*ballot.text.conversation, ballot.grader)
        found[key] = (text_score(points, "full_marks"), ballot.text.answer.status, votes)
    return found
