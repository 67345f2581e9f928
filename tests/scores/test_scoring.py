"""From a journal to the table: rounds, attempts, rules, and what is missing."""

from pathlib import Path

import pytest

from skillmix.calls import CallProblem, Decoding, GenerateKey, GradeKey, Message, Outcome, Reply, Request, text_id
from skillmix.catalog.combinations import combination_of
from skillmix.errors import UserError
from skillmix.exchange.export import export
from skillmix.runs.run import Run
from skillmix.scores.scoring import run_scores

COMBINATION = combination_of(["metaphor"], "Sewing")
READABLE = "| metaphor | {0} |\n| topic | 1 |\n| sense | 1 |\n| length | 1 |"


def student_call(outcome: Outcome, *, turn: int = 2, generation: int = 0) -> tuple[Request, Outcome]:
    key = GenerateKey("base", COMBINATION.id, generation, turn)
    return Request(key, "scripted:x", (Message("user", "Write"),), Decoding(), 1), outcome


def grade_call(
    reply: Outcome, *, round_number: int, attempt: int = 0, text: str = "Time is a thief."
) -> tuple[Request, Outcome]:
    key = GradeKey("base", COMBINATION.id, 0, text_id(text), "g", round_number, attempt)
    return Request(key, "scripted:y", (Message("user", "Grade"),), Decoding(), round_number), reply


def run_with(folder: Path, *calls: tuple[Request, Outcome]) -> str:
    run = Run(folder / "r")
    with run.write() as journal:
        run.begin_import({"name": "r", "seed": 3, "catalog": "paper"})
        journal.add_combinations([COMBINATION])
        journal.record_all(calls)
    return str(run.path)


WRITTEN = student_call(Reply("Answer: Time is a thief."))


def test_the_majority_of_three_rounds_decides(tmp_path: Path) -> None:
    rounds = [grade_call(Reply(READABLE.format(v)), round_number=r) for r, v in enumerate((1, 0, 1))]

    assert run_scores(run_with(tmp_path, WRITTEN, *rounds))[0].value == 1.0


def test_the_first_readable_attempt_is_the_rounds_vote(tmp_path: Path) -> None:
    calls = [
        grade_call(Reply("I cannot grade this."), round_number=0),
        grade_call(Reply(READABLE.format(0)), round_number=0, attempt=1),
        grade_call(Reply(READABLE.format(1)), round_number=0, attempt=2),
    ]

    score = run_scores(run_with(tmp_path, WRITTEN, *calls))[0]

    assert (score.value, score.ungraded) == (0.0, 0)


def test_an_unreadable_grade_is_ungraded_not_zero(tmp_path: Path) -> None:
    score = run_scores(run_with(tmp_path, WRITTEN, grade_call(Reply("No."), round_number=0)))[0]

    assert (score.value, score.ungraded, score.bound_low, score.bound_high) == (None, 1, 0.0, 1.0)


def test_a_failed_grading_call_is_ungraded(tmp_path: Path) -> None:
    calls = [WRITTEN, grade_call(CallProblem("passing", "HTTP 500"), round_number=0)]

    assert run_scores(run_with(tmp_path, *calls))[0].value is None


def test_a_refusal_of_the_student_scores_zero(tmp_path: Path) -> None:
    calls = [
        student_call(CallProblem("final", "content filter"), turn=1, generation=1),
        grade_call(Reply(READABLE.format(1)), round_number=0),
    ]

    score = run_scores(run_with(tmp_path, WRITTEN, *calls))[0]

    assert (score.value, score.one_try, score.ungraded, score.format_failures) == (1.0, 0.5, 0, 0)


def test_a_grade_of_another_text_is_not_taken(tmp_path: Path) -> None:
    calls = [WRITTEN, grade_call(Reply(READABLE.format(1)), round_number=0, text="An older extraction")]

    assert run_scores(run_with(tmp_path, *calls)) == []


def test_paper_rules_rescore_a_run(tmp_path: Path) -> None:
    text = "Time is a thief\nIt steals"
    calls = [
        student_call(Reply(f"Answer: {text}")),
        grade_call(Reply(READABLE.format(1)), round_number=0, text=text),
    ]
    run = run_with(tmp_path, *calls)

    assert run_scores(run)[0].value == 0.0
    assert run_scores(run, rules="paper")[0].value == 1.0


def test_unknown_rules_and_runs_are_refused(tmp_path: Path, in_folder: Path) -> None:
    with pytest.raises(UserError, match="no rules"):
        run_scores(run_with(tmp_path, WRITTEN), rules="lenient")
    with pytest.raises(UserError, match="no run"):
        run_scores("nowhere")


def test_scores_carry_what_the_experiment_says(tmp_path: Path) -> None:
    score = run_scores(run_with(tmp_path, WRITTEN, grade_call(Reply(READABLE.format(1)), round_number=0)))[0]

    assert (score.run, score.catalog, score.seed) == ("r", "paper", 3)


@pytest.mark.parametrize("what", ["texts", "votes", "calls"])
def test_exports_hold_every_record_in_both_formats(tmp_path: Path, what: str) -> None:
    import json

    import pyarrow.parquet as parquet

    run = run_with(
        tmp_path,
        WRITTEN,
        student_call(Reply("Answer:"), generation=1),
        grade_call(Reply(READABLE.format(1)), round_number=0),
        grade_call(Reply("No."), round_number=1),
    )

    lines = export(run, what=what, file_format="jsonl", rules="default", output=None)  # type: ignore[arg-type]
    table = export(run, what=what, file_format="parquet", rules="default", output=None)  # type: ignore[arg-type]

    rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == {"texts": 2, "votes": 2, "calls": 4}[what]
    assert parquet.read_table(table).to_pylist() == rows
    assert not list(Path(run).glob("*.partial"))


def test_an_export_to_nowhere_is_refused(tmp_path: Path) -> None:
    run = run_with(tmp_path, WRITTEN)

    with pytest.raises(UserError, match="cannot be written"):
        export(run, what="texts", file_format="jsonl", rules="default", output=tmp_path / "no/such/file.jsonl")
