"""Texts, ballots and exports of a run are read one after the other; the whole run is never in memory."""

import gc
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pyarrow
import pytest
from pyarrow import parquet

from skillmix.calls import Call, Message
from skillmix.errors import UserError
from skillmix.exchange import export as exporting
from skillmix.exchange.export import Row, What, call_rows, export, text_rows, vote_rows
from skillmix.grading.points import StudentText
from skillmix.runs import texts
from skillmix.runs.run import Run, open_run
from skillmix.runs.texts import run_records, texts_with_ballots
from skillmix.scores.text_rows import first_texts, run_texts
from tests.runs.test_reading import WORLDS, scripted

ALL_KINDS: tuple[What, ...] = ("texts", "votes", "calls")


@pytest.fixture(params=WORLDS, ids=lambda world: str(world.__name__))
def run(request: pytest.FixtureRequest, in_folder: Path) -> Run:
    """Runs of every kind, three of them with graders that depend on other texts than the one they stand on."""
    made: Run = request.param(in_folder)
    return made


def test_texts_one_at_a_time_have_the_ballots_of_the_records(run: Run) -> None:
    records = run_records(run)
    with run.read() as journal:
        found = list(texts_with_ballots(run, journal))

    assert [one.text for one in found] == records.texts
    groups = zip(*(one.groups for one in found), strict=True)
    assert [ballot for group in groups for ballots in group for ballot in ballots] == records.ballots


def test_texts_of_some_combinations_have_the_same_ballots(run: Run) -> None:
    with run.read() as journal:
        found = list(texts_with_ballots(run, journal))
    chosen = {one.text.combination.id for one in found[::3]}

    with run.read() as journal:
        limited = list(texts_with_ballots(run, journal, combinations=chosen))

    assert limited == [one for one in found if one.text.combination.id in chosen]


@pytest.mark.parametrize("count", [1, 7, 10_000])
def test_the_first_texts_are_those_of_all_texts(run: Run, count: int) -> None:
    every = run_texts(run)
    last = every[-1]

    assert first_texts(run, count) == (every[:count], len(every))
    assert first_texts(run, count, worst=True) == (every[::-1][:count], len(every))
    own = run_texts(run, student=last.student, k=last.k)
    assert first_texts(run, count, student=last.student, k=last.k) == (own[:count], len(own))


def test_an_unknown_student_has_no_first_texts(in_folder: Path) -> None:
    run = scripted(in_folder)
    with pytest.raises(UserError) as all_texts:
        run_texts(run, student="zo")
    with pytest.raises(UserError) as first:
        first_texts(run, 1, student="zo")

    assert (str(first.value), first.value.hint) == (str(all_texts.value), all_texts.value.hint)


@pytest.mark.parametrize("what", ALL_KINDS)
def test_parquet_has_the_table_of_all_rows_however_they_are_divided(run: Run, what: What, tmp_path: Path) -> None:
    lines = export(str(run.path), what=what, file_format="jsonl", rules=None, output=None)
    rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    path = tmp_path / "rows.parquet"

    sources = {"texts": lambda: text_rows(run, run.rules()), "votes": lambda: vote_rows(run)}
    exporting.write_rows(path, sources.get(what, lambda: call_rows(run))(), "parquet", at_once=7)

    table, expected = parquet.read_table(path), pyarrow.Table.from_pylist(rows)
    assert table.schema == expected.schema
    assert table.equals(expected)
    assert parquet.ParquetFile(path).num_row_groups == -(-len(rows) // 7)


def test_types_that_only_later_rows_have_are_those_of_the_table(in_folder: Path) -> None:
    empty = {"number": 1, "notes": [], "points": None, "name": None}
    rows: list[Row] = [
        *[empty] * 3,
        {**empty, "number": 0.5, "points": [{"criterion": "topic", "earned": None}]},
        *[empty] * 2,
        {**empty, "notes": ["cut"], "points": [{"criterion": "topic", "earned": True}]},
        *[empty] * 4,
    ]

    exporting.write_rows(in_folder / "rows.parquet", iter(rows), "parquet", at_once=2)

    assert parquet.read_table(in_folder / "rows.parquet").equals(pyarrow.Table.from_pylist(rows))


def test_an_export_without_rows_is_an_empty_table(in_folder: Path) -> None:
    exporting.write_rows(in_folder / "rows.parquet", iter(()), "parquet")

    assert parquet.read_table(in_folder / "rows.parquet").num_rows == 0


class SeenRow(dict[str, Any]):
    """A row that can be watched."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.mark.parametrize(("file_format", "most"), [("jsonl", 2), ("parquet", 2 * 10 + 1)])
def test_a_writer_lets_go_of_rows(in_folder: Path, file_format: exporting.Format, most: int) -> None:
    alive: WeakSet[SeenRow] = WeakSet()
    counts = []

    def rows() -> Iterator[Row]:
        for number in range(200):
            row = SeenRow(number=number)
            alive.add(row)
            counts.append(len(alive))
            yield row

    exporting.write_rows(in_folder / "rows", rows(), file_format, at_once=10)

    assert len(counts) == 200
    assert max(counts) <= most


def most_alive(items: Iterable[object], *kinds: type) -> int:
    """The most objects of some classes in memory while items are taken, at each 53rd, beyond those from before."""

    def count() -> int:
        return sum(issubclass(type(one), kinds) for one in gc.get_objects())  # isinstance asks objects of torch

    gc.collect()
    before = count()
    return max(count() - before for number, _ in enumerate(items) if number % 53 == 0)


def texts_of(run: Run) -> Iterator[object]:
    with run.read() as journal:
        yield from texts_with_ballots(run, journal)


def text_rows_of(run: Run) -> Iterator[object]:
    yield from text_rows(run, run.rules())


def call_rows_of(run: Run) -> Iterator[object]:
    yield from call_rows(run)


@pytest.mark.parametrize("source", [texts_of, text_rows_of, vote_rows, call_rows_of])
def test_a_few_conversations_are_in_memory_while_a_run_is_read(
    in_folder: Path, source: Callable[[Run], Iterator[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(in_folder)
    run = open_run("scripted")
    monkeypatch.setattr(texts, "_AT_ONCE", 4)
    monkeypatch.setattr(exporting, "_CALLS_AT_ONCE", 4)
    with run.read() as journal:
        calls = sum(1 for _ in chain(journal.calls("generate"), journal.calls("grade")))
    assert calls > 400

    assert most_alive(source(run), StudentText) <= 12
    assert most_alive(source(run), Call, Message) <= 100


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_an_interrupted_export_leaves_the_file_of_the_last_one(
    in_folder: Path, file_format: exporting.Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scripted(in_folder)
    path = export("scripted", what="votes", file_format=file_format, rules=None, output=None)
    before, files = path.read_bytes(), sorted(run.path.iterdir())
    rows = list(vote_rows(run))

    def interrupted(_: Run) -> Iterator[Row]:
        yield from rows[:20]
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "vote_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export("scripted", what="votes", file_format=file_format, rules=None, output=None)

    assert path.read_bytes() == before
    assert sorted(run.path.iterdir()) == files
