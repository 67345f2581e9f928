"""Whole runs over several addresses of one model: the same results as with one, whatever becomes of a server."""

import asyncio
import io
import json
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from skillmix.commands import main as command
from skillmix.runs import calling
from tests.hostile.replies import grades
from tests.models.stub import Stub, chat, error, serving

TEXTS = 40
CALLS = TEXTS * 5


def reply_to(body: dict[str, Any]) -> str:
    """The same reply from every server: it depends on the request alone."""
    prompt = body["messages"][-1]["content"]
    if body["model"] == "grader":
        return grades(prompt)
    said = blake2b(json.dumps([body["messages"], body["seed"]]).encode(), digest_size=8).hexdigest()
    return f"Answer: The needle {said} swims on.\n\nExplanation: it is one."


async def answer(body: dict[str, Any]) -> web.Response:
    await asyncio.sleep(0.004)
    return chat(reply_to(body))


@asynccontextmanager
async def servers(count: int, names: tuple[str, ...] = ("student", "grader")) -> AsyncIterator[list[Stub]]:
    async with serving(answer, models=list(names), models_status=200) as stub:
        if count == 1:
            yield [stub]
        else:
            async with servers(count - 1) as others:
                yield [stub, *others]


def write(folder: Path, name: str, addresses: list[str]) -> Path:
    at = ",".join(addresses)
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [2]}
    document = {
        "name": name,
        "students": {"s": {"model": f"openai:student@{at}", "concurrency": 12}},
        "graders": {"g": {"model": f"openai:grader@{at}", "concurrency": 12, "rounds": 3}},
        "steps": [step | {"combinations": TEXTS, "generations": 1}],
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def rows(folder: Path, name: str, columns: str, table: str = "call") -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(folder / "runs" / name / "run.sqlite")
    try:
        return sorted(connection.execute(f"SELECT {columns} FROM {table}").fetchall(), key=repr)
    finally:
        connection.close()


OUTCOME = "student, combination, generation, turn, text, grader, round, attempt, request_hash, status, reply, finish"


def scores(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert command(["scores", name, "--json"]) == 0
    return capsys.readouterr().out.replace(f'"{name}"', '"RUN"')


async def asked_for(stubs: list[Stub], calls: int, *, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while sum(len(stub.bodies) for stub in stubs) < calls:
            await asyncio.sleep(0.001)


def test_a_server_killed_in_the_middle_changes_no_result_and_only_its_calls_in_flight_are_asked_twice(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def one() -> None:
        async with servers(1) as stubs:
            path = write(in_folder, "one", [stub.address for stub in stubs])
            assert await asyncio.to_thread(command, ["run", str(path)]) == 0
            assert len(stubs[0].bodies) == CALLS

    async def three() -> tuple[int, int]:
        async with servers(3) as stubs:
            path = write(in_folder, "three", [stub.address for stub in stubs])
            run = asyncio.create_task(asyncio.to_thread(command, ["run", str(path)]))
            await asked_for(stubs, CALLS // 2)
            victim = stubs[1]
            victim.is_frozen = True  # until its last replies have left
            await asyncio.sleep(0.1)
            in_flight = victim.now
            assert victim.stop is not None
            await victim.stop()
            victim.is_frozen = False
            assert await run == 0
            return sum(len(stub.bodies) for stub in stubs), in_flight

    asyncio.run(one())
    asked, in_flight = asyncio.run(three())
    said = capsys.readouterr().err

    assert 0 < asked - CALLS <= in_flight
    assert "is paused" in said
    assert rows(in_folder, "three", OUTCOME) == rows(in_folder, "one", OUTCOME)
    assert scores("three", capsys) == scores("one", capsys)
    outcomes = Counter(outcome for (outcome,) in rows(in_folder, "three", "outcome", "attempt"))
    assert outcomes["reply"] == CALLS
    assert set(outcomes) <= {"reply", "passing"}  # each move is a row, too


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_server_that_refuses_everything_from_some_moment_on_costs_no_call(
    in_folder: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    async def main() -> tuple[int, int]:
        async with servers(2) as stubs:
            bad, good = stubs

            async def refuse(body: dict[str, Any]) -> web.Response:
                if len(bad.bodies) <= 20:
                    return await answer(body)
                return error(status, "The model `student` does not exist.")

            bad.handler = refuse
            path = write(in_folder, "refused", [stub.address for stub in stubs])
            assert await asyncio.to_thread(command, ["run", str(path)]) == 0
            return len(bad.bodies), len(good.bodies)

    asked, answered = asyncio.run(main())

    assert answered >= CALLS - 20 and asked < CALLS // 2
    said = capsys.readouterr().err
    assert f"is paused (HTTP {status}" in said and "failed" not in said


def test_another_address_asks_no_finished_call_again(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> tuple[int, int]:
        async with servers(2) as stubs:
            first, second = (stub.address for stub in stubs)
            assert await asyncio.to_thread(command, ["run", str(write(in_folder, "grown", [first]))]) == 0
            before = len(stubs[0].bodies)
            assert await asyncio.to_thread(command, ["run", str(write(in_folder, "grown", [second, first]))]) == 0
            return before, sum(len(stub.bodies) for stub in stubs)

    assert asyncio.run(main()) == (CALLS, CALLS)


def test_enough_conversations_are_open_for_the_concurrency_of_many_servers(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "_MAX_OPEN", 2)

    async def main() -> int:
        async with servers(1) as stubs:
            path = write(in_folder, "many", [stubs[0].address])
            run = asyncio.create_task(asyncio.to_thread(command, ["run", str(path)]))
            stubs[0].is_frozen = True
            with suppress(TimeoutError):
                await asked_for(stubs, 12, seconds=10)
            stubs[0].is_frozen = False
            assert await run == 0
            return stubs[0].most_at_once

    assert asyncio.run(main()) >= 12


def test_an_address_with_another_model_is_refused_before_the_first_call(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> tuple[int, list[Stub]]:
        async with servers(2) as stubs, serving(answer, models=["student-v2"], models_status=200) as wrong:
            path = write(in_folder, "wrong", [*(stub.address for stub in stubs), wrong.address])
            status = await asyncio.to_thread(command, ["run", str(path)])
            return status, [*stubs, wrong]

    status, stubs = asyncio.run(main())
    said = capsys.readouterr().err

    assert status == 2
    assert not any(stub.bodies for stub in stubs)
    assert (
        f"{stubs[2].address}: 'student' is not one of the server's: student-v2" in said
        or f"{stubs[2].address}: 'grader'" in said
    )
    assert stubs[0].address not in said


def test_a_run_without_any_server_stops_with_all_addresses(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    addresses = ["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"]

    status = command(["run", str(write(in_folder, "down", addresses))])

    said = capsys.readouterr().err
    assert status == 2
    assert f"cannot be used: no connection. no address answers: {', '.join(addresses)}" in said


def test_a_dry_run_shows_the_first_address_and_the_number_of_the_others(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(in_folder, "dry", ["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"])

    assert command(["run", str(path), "--dry-run", "--wide"]) == 0

    assert "| openai:student@http://127.0.0.1:9/v1 +1 |" in capsys.readouterr().out


def test_a_text_is_graded_by_the_address_that_answers(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(body: dict[str, Any]) -> web.Response:
        return web.Response(status=500)

    async def main() -> int:
        listing: dict[str, Any] = {"models": ["grader"], "models_status": 200}
        async with serving(broken, **listing) as bad, serving(answer, **listing) as good:
            spec = f"openai:grader@{bad.address},{good.address}"
            # Both orders, because the first choice is a hash.
            for at in (spec, f"openai:grader@{good.address},{bad.address}"):
                monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The needle is a fish.")))
                text = ["grade-text", "--skills", "metaphor", "--topic", "Sewing", "--grader", at]
                assert await asyncio.to_thread(command, text) == 0
            return len(bad.bodies)

    assert asyncio.run(main()) >= 1
