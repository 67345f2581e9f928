"""`skillmix export`: texts, votes or raw calls of a run as JSON lines or Parquet.

Rows are made and written one after the other, so that the size of a run does not matter.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from skillmix.calls import Call, CallProblem, Message, Reply, was_cut
from skillmix.checkers.judge import Verdict
from skillmix.errors import UserError
from skillmix.grading.answers import Rules
from skillmix.grading.points import METRICS, Ballot, StudentText, text_score, woven_full_marks
from skillmix.grading.reader import Reading
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.lookups import messages_with
from skillmix.runs.run import Run, open_run
from skillmix.runs.text_rows import TextFacts, TextFactsReader
from skillmix.runs.texts import grade_key, graded_conversations, in_blocks, reasons_for, texts_with_ballots, verdict_on

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
    return _texts(run, rules) if what == "texts" else vote_rows(run)


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


_FACTS: Final = tuple(field.name for field in fields(TextFacts))


def _texts(run: Run, rules: Rules) -> Iterator[Row]:
    """One row for each text and grader; an ungraded text has one row without a grader."""
    reader, name = TextFactsReader(run, rules), run.name
    with run.read() as journal:
        for found in texts_with_ballots(run, journal):
            text = found.text
            shared = {
                **_about(name, text, reader.facts(text)),
                "text": text.answer.text,
                "format_valid": None if text.answer.status == "refused" else text.answer.status == "fine",
            }
            graded = [_graded(ballot, run, rules) for ballot in found.ballots]
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


def _graded(ballot: Ballot, run: Run, rules: Rules) -> Row:
    points = ballot.points(rules, run.phrases)
    verdict = verdict_on(run, ballot)
    reasons = reasons_for(run, ballot, points, rules, verdict)
    names = [criterion.name for criterion in ballot.rubric(run.phrases).criteria]
    return {
        "grader": ballot.grader,
        "rounds": ballot.rounds,
        "points": [{"criterion": n, "earned": p} for n, p in zip(names, points, strict=True)],
        **{metric: None if run.has_outcomes else text_score(points, metric) for metric in METRICS},
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
    reader, name = TextFactsReader(run, run.rules()), run.name
    with run.read() as journal:
        for text, calls, readings, _ in in_blocks(graded_conversations(run, journal)):
            shared = _about(name, text, reader.facts(text))
            for call, reading in zip(calls, readings, strict=True):
                yield {**shared, **_vote(run, text, call, reading)}


def _vote(run: Run, text: StudentText, call: Call, reading: Reading | None) -> Row:
    key = grade_key(call)
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
        source = chain(journal.calls("generate"), journal.calls("grade"))
        while block := list(islice(source, _CALLS_AT_ONCE)):
            messages = messages_with(journal, (address for call in block for address in call.messages))
            for call in block:
                yield _call(call, messages)


_CALLS_AT_ONCE: Final = 1_000
"""Calls whose messages are read together."""


def _call(call: Call, messages: Mapping[str, Message]) -> Row:
    reply = call.outcome if isinstance(call.outcome, Reply) else None
    return {
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


def _write_jsonl(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


ROWS_AT_ONCE: Final = 5_000
"""Rows of a row group of Parquet, which is made in memory."""


def _write_parquet(path: Path, rows: Iterable[Row]) -> None:
    """Write rows in row groups; the types of the columns follow from all rows.

    A column may be empty in the first rows and have a type only in later ones. So a new type begins another file, and
    in the end the files become one.
    """
    try:
        from pyarrow import parquet
    except ImportError:
        raise _no_parquet() from None
    files: list[Path] = []
    for schema, tables in groupby(_typed_tables(rows), key=itemgetter(0)):
        files.append(path.with_name(f"{path.name}-{len(files)}"))
        with parquet.ParquetWriter(files[-1], schema) as writer:
            for _, table in tables:
                writer.write_table(table)
    if len(files) == 1:
        files[0].replace(path)
        return
    with parquet.ParquetWriter(path, schema) as writer:
        for file in files:
            with parquet.ParquetFile(file) as part:
                for number in range(part.num_row_groups):
                    writer.write_table(_table(part.read_row_group(number).to_pylist(), schema))


def _typed_tables(rows: Iterable[Row]) -> Iterator[tuple[Any, Any]]:
    """Tables of some rows each, with the types of all rows so far; without rows, one empty table."""
    import pyarrow

    source = iter(rows)
    schema = None
    while (chunk := list(islice(source, ROWS_AT_ONCE))) or schema is None:
        table = _table(chunk)
        known = [table.schema] if schema is None else [schema, table.schema]
        schema = pyarrow.unify_schemas(known, promote_options="permissive")
        yield schema, table if table.schema.equals(schema) else _table(chunk, schema)


def _table(rows: list[Row], schema: Any = None) -> Any:
    """A table of rows. Tables are not cast to other types, because Arrow fails at lists of records without a type."""
    import pyarrow

    return pyarrow.Table.from_pylist(rows, schema=schema)


def _no_parquet() -> UserError:
    return UserError("Parquet needs pyarrow.", hint="pip install 'skillmix[parquet]', or use --format jsonl.")


_WRITERS = {"jsonl": _write_jsonl, "parquet": _write_parquet}
