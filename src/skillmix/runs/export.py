"""`skillmix export`: texts, votes or raw calls of a run as JSON lines or Parquet."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from skillmix.calls import Call, CallProblem, GradeKey, Reply, was_cut
from skillmix.checkers.judge import Verdict
from skillmix.errors import UserError
from skillmix.grading.answers import Rules
from skillmix.grading.ballots import Ballot, StudentText
from skillmix.grading.points import METRICS, text_score, woven_full_marks
from skillmix.grading.reader import Reading
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.reading.graded_conversations import conversations
from skillmix.runs.reading.run_records import RunRecords, run_records
from skillmix.runs.reading.text_facts import TextFacts, TextFactsReader
from skillmix.runs.run import Run, open_run

What = Literal["texts", "votes", "calls"]
Format = Literal["jsonl", "parquet"]
Row = dict[str, Any]


def export(run_name: str, *, what: What, file_format: Format, rules: str | None, output: Path | None) -> Path:
    """Write one kind of record to a file; the run's own rules decide points unless others are named."""
    run = open_run(run_name)
    chosen = run.rules(rules)
    if output is not None and output.suffix != f".{file_format}":
        raise UserError(f"{str(output)!r} does not end in .{file_format}.", hint="Name the output by its format.")
    path = output or run.path / f"{what}.{file_format}"
    _require_replaceable(path, what, file_format)
    rows = _rows(run, what, chosen)
    try:
        with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as workshop:
            new = Path(workshop) / path.name
            _WRITERS[file_format](new, rows)
            new.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.", hint="Choose another --output.") from None
    return path


_OWN: dict[What, frozenset[str]] = {
    "texts": frozenset({"run", "student", "combination", "status", "grader", "full_marks"}),
    "votes": frozenset({"run", "student", "combination", "grader", "round", "reply"}),
    "calls": frozenset({"key", "model", "messages", "request_hash", "reply"}),
}
"""Columns by which an export is recognised."""


def _require_replaceable(path: Path, what: What, file_format: Format) -> None:
    """Refuse to replace any file but an earlier export of the same kind or an empty file."""
    if not path.exists():
        return
    try:
        names = _COLUMNS[file_format](path) if path.is_file() else frozenset({"a folder"})
    except (OSError, ValueError, RecursionError):
        names = frozenset({"something else"})
    if names and not names >= _OWN[what]:
        raise UserError(
            f"{path} is there, and is not an export of {what}.", hint="Nothing was changed. Choose another --output."
        )


def _columns_of_jsonl(path: Path) -> frozenset[str]:
    with path.open(encoding="utf-8") as file:
        line = file.readline()
    first = json.loads(line) if line else {}
    return frozenset(first) if isinstance(first, dict) else frozenset({"no record"})


def _columns_of_parquet(path: Path) -> frozenset[str]:
    if not path.stat().st_size:
        return frozenset()
    try:
        from pyarrow import parquet
    except ImportError:
        raise _no_parquet() from None
    return frozenset(parquet.read_schema(path).names)


_COLUMNS = {"jsonl": _columns_of_jsonl, "parquet": _columns_of_parquet}


def _rows(run: Run, what: What, rules: Rules) -> Iterator[Row]:
    if what == "calls":
        return _calls(run)
    return _texts(run, run_records(run), rules) if what == "texts" else vote_rows(run)


def _about(run: Run, text: StudentText, facts: TextFacts) -> Row:
    return {
        "run": run.name,
        "student": text.student,
        "combination": text.combination.id,
        "k": text.combination.k,
        "skills": list(text.combination.skills),
        "topic": text.combination.topic,
        "generation": text.generation,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in asdict(facts).items()},
    }


def _texts(run: Run, records: RunRecords, rules: Rules) -> Iterator[Row]:
    """One row for each text and grader; an ungraded text has one row without a grader."""
    by_text: dict[int, list[Ballot]] = {}
    for ballot in records.ballots:
        by_text.setdefault(id(ballot.text), []).append(ballot)
    reader = TextFactsReader(run, rules)
    for text in records.texts:
        shared = {
            **_about(run, text, reader.facts(text)),
            "text": text.answer.text,
            "format_valid": None if text.answer.status == "refused" else text.answer.status == "fine",
        }
        graded = [_graded(ballot, records, rules) for ballot in by_text.get(id(text), ())]
        for grades in graded or [_UNGRADED]:
            yield {**shared, **grades}


_UNGRADED: Row = {
    "grader": None,
    "rounds": None,
    "points": None,
    **dict.fromkeys(METRICS),
    "woven_full_marks": None,
    "evidence": None,
    "woven": None,
    "unrequested": None,
    "reasons": None,
}


def _graded(ballot: Ballot, records: RunRecords, rules: Rules) -> Row:
    points = ballot.points(rules, records.run.phrases)
    verdict = records.verdict(ballot)
    reasons = records.reasons(ballot, points, rules, verdict)
    names = [criterion.name for criterion in ballot.rubric(records.run.phrases).criteria]
    return {
        "grader": ballot.grader,
        "rounds": ballot.rounds,
        "points": [{"criterion": n, "earned": p} for n, p in zip(names, points, strict=True)],
        **{metric: None if records.run.has_outcomes else text_score(points, metric) for metric in METRICS},
        "woven_full_marks": None if verdict is None else woven_full_marks(points, ballot.is_woven),
        **_found_by_code(verdict),
        "reasons": [{"criterion": name, "reason": reason} for name, reason in reasons.items()],
    }


def _found_by_code(verdict: Verdict | None) -> Row:
    """The words that show each skill, whether they are on the topic, and unrequested skills; unknown without code."""
    if verdict is None:
        return {"evidence": None, "woven": None, "unrequested": None}
    found = [{"criterion": name, "words": verdict.quote(span)} for name, span in verdict.evidence.items()]
    woven = [{"criterion": name, "woven": woven} for name, woven in verdict.woven.items()]
    return {"evidence": found, "woven": woven, "unrequested": list(verdict.unrequested)}


def vote_rows(run: Run) -> Iterator[Row]:
    """One row for each grading call, with its reply and its reading."""
    reader = TextFactsReader(run, run.rules())
    with run.read() as journal:
        for text, calls, readings in conversations(run, journal):
            shared = _about(run, text, reader.facts(text))
            for call, reading in zip(calls, readings, strict=True):
                yield {**shared, **_vote(run, text, call, reading)}


def _vote(run: Run, text: StudentText, call: Call, reading: Reading | None) -> Row:
    key = call.key
    assert isinstance(key, GradeKey)  # conversations join grading calls only
    rubric = rubric_of(text.combination.skills, text.combination.topic, phrases=run.phrases)
    points = reading.by_name(rubric) if reading else None
    return {
        "grader": key.grader,
        "round": key.round,
        "attempt": key.attempt,
        "reply": call.outcome.text if isinstance(call.outcome, Reply) else None,
        "points": [{"criterion": n, "value": v} for n, v in points.items()] if points else None,
        "problem": reading.problem if reading else _problem_of(call),
        "notes": list(reading.notes) if reading else [],
    }


def _problem_of(call: Call) -> str | None:
    return call.outcome.reason if isinstance(call.outcome, CallProblem) else None


def _calls(run: Run) -> Iterator[Row]:
    """One row for each call, with its messages in full."""
    with run.read() as journal:
        messages = journal.messages()
        for call in (*journal.calls("generate"), *journal.calls("grade")):
            reply = call.outcome if isinstance(call.outcome, Reply) else None
            yield {
                "key": str(call.key),
                "model": call.model,
                "messages": [{"role": messages[h].role, "content": messages[h].content} for h in call.messages],
                **asdict(call.decoding),
                "seed": call.seed,
                "request_hash": call.request_hash,
                "origin": call.origin,
                "reply": reply.text if reply else None,
                "finish": reply.finish if reply else None,
                "cut": was_cut(reply.finish) if reply else None,
                "problem": _problem_of(call),
                "input_tokens": reply.input_tokens if reply else None,
                "output_tokens": reply.output_tokens if reply else None,
                "cost_usd": reply.cost_usd if reply else None,
                "at": call.at,
            }


def _write_jsonl(path: Path, rows: Iterator[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def _write_parquet(path: Path, rows: Iterator[Row]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise _no_parquet() from None
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def _no_parquet() -> UserError:
    return UserError("Parquet needs pyarrow.", hint="pip install 'skillmix[parquet]', or use --format jsonl.")


_WRITERS = {"jsonl": _write_jsonl, "parquet": _write_parquet}
