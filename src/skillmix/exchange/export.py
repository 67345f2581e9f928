"""`skillmix export` writes the texts, votes or raw calls of a run as JSON Lines or Parquet, row by row."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, fields
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from skillmix.calls import Call, CallProblem, Reply, was_cut
from skillmix.errors import UserError
from skillmix.files import require_package
from skillmix.grading.answers import Rules
from skillmix.grading.points import METRICS, Ballot, StudentText, text_score, woven_full_marks
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.run import Run, open_run
from skillmix.runs.texts import grade_key, graded_conversations, reasons_for, texts_with_ballots, verdict_on
from skillmix.scores.text_rows import TextFacts, TextFactsReader

What = Literal["texts", "votes", "calls"]
Format = Literal["jsonl", "parquet"]
Row = dict[str, Any]


def export(run_name: str, *, what: What, file_format: Format, rules: str | None, output: Path | None) -> Path:
    """Write one kind of record to a file; points follow the run's rules unless `rules` is given."""
    run = open_run(run_name)
    chosen = run.rules(rules)
    if output is not None and output.suffix != f".{file_format}":
        raise UserError(
            f"The output {str(output)!r} does not end in .{file_format}.", hint="Change the name or --format."
        )
    if file_format == "parquet":
        require_package("pyarrow", "Parquet", extra="parquet")
    path = output or run.path / f"{what}.{file_format}"
    _require_replaceable(path, what, file_format)
    try:
        with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as workshop:
            new = Path(workshop) / path.name
            rows = text_rows(run, chosen) if what == "texts" else vote_rows(run) if what == "votes" else call_rows(run)
            write_rows(new, rows, file_format)
            new.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.", hint="Choose another --output.") from None
    return path


_OWN: Final[dict[What, frozenset[str]]] = {
    "texts": frozenset({"run", "student", "combination", "status", "grader", "full_marks"}),
    "votes": frozenset({"run", "student", "combination", "grader", "round", "reply"}),
    "calls": frozenset({"key", "model", "messages", "request_hash", "reply"}),
}
"""Columns that identify a file as an export."""
_FACTS: Final = tuple(field.name for field in fields(TextFacts))
_OF_GRADES: Final = ("woven_full_marks", "evidence", "woven", "unrequested", "reasons")
_UNGRADED: Final[Row] = dict.fromkeys(("grader", "rounds", "points", *METRICS, *_OF_GRADES))


def _require_replaceable(path: Path, what: What, file_format: Format) -> None:
    """Raise an error unless the file to replace is empty or an earlier export of the same kind."""
    if not path.exists():
        return
    names: Iterable[str] = ["something else"]
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        if path.is_file() and not path.stat().st_size:
            return
        if file_format == "parquet":
            from pyarrow.parquet import read_schema

            names = read_schema(path).names
        else:
            with path.open(encoding="utf-8") as file:
                names = json.loads(file.readline()).keys()
    if not _OWN[what].issubset(names):
        raise UserError(f"{path} exists and is not an export of {what}.", hint="Choose another file with --output.")


def _about(run: str, text: StudentText, facts: TextFacts) -> Row:
    values = ((name, getattr(facts, name)) for name in _FACTS)
    return {
        "run": run,
        "student": text.student,
        "combination": text.combination.id,
        "k": text.combination.k,
        "skills": list(text.combination.skills),
        "topic": text.combination.topic,
        "generation": text.generation,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in values},
    }


def text_rows(run: Run, rules: Rules) -> Iterator[Row]:
    """Yield one row for each text and grader; an ungraded text has one row without a grader."""
    reader, name = TextFactsReader(run, rules), run.name
    with run.read() as journal:
        for found in texts_with_ballots(run, journal):
            text = found.text
            shared = {
                **_about(name, text, reader.facts(text)),
                "text": text.answer.text,
                "format_valid": None if text.answer.status == "refused" else text.answer.status == "fine",
            }
            for grades in [_graded(ballot, run, rules) for ballot in found.ballots] or [_UNGRADED]:
                yield {**shared, **grades}


def _graded(ballot: Ballot, run: Run, rules: Rules) -> Row:
    """Return the points of a text under one grader, and the evidence for skills if code checks the text."""
    points = ballot.points(rules, run.phrases)
    verdict = verdict_on(run, ballot)
    reasons = reasons_for(run, ballot, points, rules, verdict)
    names = [criterion.name for criterion in ballot.rubric(run.phrases).criteria]
    row: Row = {
        **_UNGRADED,
        "grader": ballot.grader,
        "rounds": ballot.rounds,
        "points": [{"criterion": n, "earned": p} for n, p in zip(names, points, strict=True)],
        **{metric: None if run.has_outcomes else text_score(points, metric) for metric in METRICS},
        "reasons": [{"criterion": name, "reason": reason} for name, reason in reasons.items()],
    }
    if verdict is not None:
        row["woven_full_marks"] = woven_full_marks(points, ballot.is_woven)
        row["evidence"] = [{"criterion": n, "words": verdict.quote(span)} for n, span in verdict.evidence.items()]
        row["woven"] = [{"criterion": name, "woven": woven} for name, woven in verdict.woven.items()]
        row["unrequested"] = list(verdict.unrequested)
    return row


def vote_rows(run: Run) -> Iterator[Row]:
    """Yield one row for each grading call, with its reply and the points read from the reply."""
    reader, name = TextFactsReader(run, run.rules()), run.name
    with run.read() as journal:
        for text, calls, readings, *_ in graded_conversations(run, journal):
            shared = _about(name, text, reader.facts(text))
            for call, reading in zip(calls, readings, strict=True):
                key = grade_key(call)
                rubric = rubric_of(text.combination.skills, text.combination.topic, phrases=run.phrases)
                points = reading.by_name(rubric) if reading else None
                yield {
                    **shared,
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


def call_rows(run: Run) -> Iterator[Row]:
    """Yield one row for each call, with the full messages."""
    with run.read() as journal:
        source = chain(journal.calls("generate"), journal.calls("grade"))
        while block := list(islice(source, _CALLS_AT_ONCE)):
            messages = journal.messages_with(address for call in block for address in call.messages)
            for call in block:
                reply = call.outcome if isinstance(call.outcome, Reply) else None
                tokens = ("input_tokens", "output_tokens", "cost_usd")
                yield {
                    "key": str(call.key),
                    "model": call.model,
                    "messages": [{"role": messages[h].role, "content": messages[h].content} for h in call.messages],
                    **asdict(call.decoding),
                    **{name: getattr(call, name) for name in ("seed", "request_hash", "origin")},
                    "reply": reply.text if reply else None,
                    "finish": reply.finish if reply else None,
                    "cut": was_cut(reply.finish) if reply else None,
                    "problem": _problem_of(call),
                    **{name: getattr(reply, name, None) for name in tokens},
                    "at": call.at,
                }


_CALLS_AT_ONCE: Final = 1_000  # the number of calls whose messages are read together
_ROWS_AT_ONCE: Final = 5_000  # the number of rows in a Parquet row group, which is built in memory


def write_rows(path: Path, rows: Iterable[Row], file_format: Format, *, at_once: int = _ROWS_AT_ONCE) -> None:
    """Write rows to a file while they are generated.

    The types of Parquet columns must be known in advance, but a column may be empty in the first rows. All rows are
    therefore written as JSON lines first, and then as row groups.
    """

    def dumped(chunk: Iterable[Row]) -> Iterator[str]:
        return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in chunk)

    if file_format == "jsonl":
        with path.open("w", encoding="utf-8") as file:
            file.writelines(dumped(rows))
        return
    import pyarrow
    from pyarrow import parquet

    lines, schema, source = path.with_name(f"{path.name}-lines"), pyarrow.schema([]), iter(rows)
    with lines.open("w", encoding="utf-8") as file:
        while chunk := list(islice(source, at_once)):
            file.writelines(dumped(chunk))
            own = pyarrow.Table.from_pylist(chunk).schema
            schema = pyarrow.unify_schemas([schema, own], promote_options="permissive")
    with lines.open(encoding="utf-8") as file, parquet.ParquetWriter(path, schema) as writer:
        while chunk := [json.loads(line) for line in islice(file, at_once)]:
            writer.write_table(pyarrow.Table.from_pylist(chunk, schema=schema))
    lines.unlink()
