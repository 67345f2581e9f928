"""Rows in large transactions: the same rows as one at a time, durable before they are used, and none lost."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillmix.calls import CallProblem, Decoding, GenerateKey, Message, Model, Outcome, Reply, Request
from skillmix.errors import UserError
from skillmix.runs.budget import Budget, Task
from skillmix.runs.journal import Attempt, JournalWriter
from skillmix.runs.scheduler import CallCounts, Scheduler

COUNT = 300
"""More than fit into one statement."""


def request(number: int, turn: int = 1) -> Request:
    shared = tuple(Message("user", f"example {n}") for n in range(3))
    key = GenerateKey("s", f"c{number}", 0, turn)
    return Request(key, "fake", (*shared, Message("user", f"{number}/{turn}")), Decoding(max_tokens=10), 1)


def outcome(number: int) -> Outcome:
    return CallProblem("final", "refusal") if number % 7 == 3 else Reply(f"reply {number % 50}", "stop", 3, 4)


def rows(folder: Path, table: str) -> list[Any]:
    columns = {"call": "combination, turn, messages, request_hash, status, reply, problem_kind, input_tokens"}
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection, connection:
        return sorted(map(repr, connection.execute(f"SELECT {columns.get(table, '*')} FROM {table}")))


def test_many_rows_in_one_transaction_are_those_of_one_at_a_time(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "one/run.sqlite") as journal:
        for number in range(COUNT):
            journal.record_attempts([Attempt(request(number), outcome(number), 0.5, None)])
            journal.record(request(number), outcome(number))
    with JournalWriter(tmp_path / "many/run.sqlite") as journal:
        journal.record(request(1), CallProblem("passing", "busy"))  # gives way to the reply
        tries = [Attempt(request(n), outcome(n), 0.5, stored=outcome(n)) for n in range(COUNT)]
        journal.record_attempts(tries)
        journal.record_attempts([Attempt(request(5), Reply("late"), 0.5, stored=Reply("late"))])

    assert rows(tmp_path / "one", "call") == rows(tmp_path / "many", "call")
    assert {*rows(tmp_path / "one", "message")} <= {*rows(tmp_path / "many", "message")}
    assert len(rows(tmp_path / "many", "attempt")) == COUNT + 1


def test_a_key_is_found_whatever_was_known_of_its_student(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.record(request(0), Reply("old"))
        assert journal.calls_by_conversation("s") == {("c0", 0): 1}
        assert journal.find(request(1)) is None
        journal.record(request(1), Reply("new"))
        journal.record_attempts([Attempt(request(2), Reply("attempt"), 0.1, stored=Reply("attempt"))])

        found = [journal.find(request(n)) for n in range(4)]
        assert [one.text if isinstance(one, Reply) else one for one in found] == ["old", "new", "attempt", None]
        assert journal.find(request(1, turn=2)) is None
        journal.record(request(1, turn=2), Reply("second"))
        assert journal.find(request(1, turn=2)) == Reply("second")


def test_keys_of_two_students_in_one_transaction_are_both_found(tmp_path: Path) -> None:
    others = [replace(request(n), key=GenerateKey("t", f"c{n}", 0, 1)) for n in range(2)]
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        assert journal.calls_by_conversation("s") == journal.calls_by_conversation("t") == {}

        wanted = [request(0), *others, request(1)]
        assert [journal.find(one) for one in wanted] == [None] * 4
        journal.record_attempts([Attempt(one, Reply("new"), 0.1, stored=Reply("new")) for one in wanted])

        assert [journal.find(one) for one in wanted] == [Reply("new")] * 4
        assert journal.find(request(2)) is None


class AtOnce(Model):
    """Answers all requests that wait, so that many outcomes arrive together."""

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        async for one in requests:
            yield one, Reply("fine")

    async def probe(self) -> CallProblem | None:
        return None

    async def close(self) -> None:
        pass


def scheduled(folder: Path, follow: Any) -> CallCounts:
    async def main() -> CallCounts:
        budget = Budget({"m": None})
        with JournalWriter(folder / "run.sqlite") as journal:
            scheduler = Scheduler({"m": AtOnce()}, journal, budget=budget, max_open=200)
            return await scheduler.run(iter([Task("m", request(n)) for n in range(COUNT)]), follow)

    return asyncio.run(main())


def test_an_outcome_is_durable_before_its_next_turn_is_made(tmp_path: Path) -> None:
    missing = []

    def follow(before: Request, _: Outcome) -> Iterator[Task]:
        key = before.key
        assert isinstance(key, GenerateKey)
        with closing(sqlite3.connect(f"file:{tmp_path / 'run.sqlite'}?mode=ro", uri=True)) as other, other:
            query = "SELECT count(*) FROM call WHERE combination = ? AND turn = ?"
            missing.extend([key] if not other.execute(query, (key.combination, key.turn)).fetchone()[0] else [])
        other.close()
        if key.turn == 1:
            yield Task("m", request(int(key.combination[1:]), turn=2))

    assert scheduled(tmp_path, follow).called == 2 * COUNT
    assert missing == []
    assert len(rows(tmp_path, "call")) == 2 * COUNT


def test_a_journal_that_cannot_be_written_ends_the_run_with_its_error(tmp_path: Path) -> None:
    def follow(*_: object) -> list[Task]:
        (tmp_path / "run.sqlite").unlink(missing_ok=True)
        return []

    with pytest.raises(UserError, match="deleted or replaced"):
        scheduled(tmp_path, follow)
    assert not (tmp_path / "run.sqlite").exists()


def test_outcomes_that_arrived_before_an_interruption_are_kept(tmp_path: Path) -> None:
    used = 0

    def follow(*_: object) -> list[Task]:
        nonlocal used
        used += 1
        if used == 50:
            raise KeyboardInterrupt
        return []

    with pytest.raises(KeyboardInterrupt):
        scheduled(tmp_path, follow)
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as connection, connection:
        query = "SELECT (SELECT count(*) FROM attempt), (SELECT count(*) FROM call)"
        attempts, calls = connection.execute(query).fetchone()
    assert attempts == calls >= 50


def test_a_full_disk_is_named_and_keeps_the_rows_that_were_stored(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.record(request(0), Reply("kept"))
        pages = journal.connection.execute("PRAGMA page_count").fetchone()[0]
        journal.connection.execute(f"PRAGMA max_page_count = {pages}")
        tries = [Attempt(request(n), Reply("x" * 9000), 0.5, stored=Reply("x" * 9000)) for n in range(1, 9)]
        with pytest.raises(UserError, match="cannot be written: the disk is full"):
            journal.record_attempts(tries)
        with pytest.raises(UserError, match="cannot be written: the disk is full"):
            journal.record_attempts(tries)
        journal.connection.execute("PRAGMA max_page_count = 4294967294")

        journal.record_attempts(tries)

        assert journal.find(request(0)) == Reply("kept")
        assert journal.find(request(8)) == Reply("x" * 9000)
    assert len(rows(tmp_path, "call")) == 9
