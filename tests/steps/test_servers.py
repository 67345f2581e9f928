"""Whole runs against servers that fail, refuse, fall silent and come back."""

import asyncio
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from skillmix.calls import Reply
from skillmix.commands import main as command
from skillmix.runs import scheduler
from skillmix.runs.run import open_run
from skillmix.scores.status import run_status
from tests.hostile.replies import ANSWER, grades
from tests.models.stub import Handler, Stub, chat, error, serving
from tests.runs.databases import attempts

Body = dict[str, Any]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(scheduler, "LONGEST_WAIT", 0.01)


def good(body: Body) -> web.Response:
    prompt = body["messages"][-1]["content"]
    return chat(grades(prompt) if body["model"] == "grader" else ANSWER)


def written(folder: Path, address: str, *, combinations: int = 20, **step: Any) -> Path:
    model = {"timeout": 20, "concurrency": 64}
    evaluate = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [1]}
    document = {
        "name": "served",
        "students": {"s": {"model": f"openai:student@{address}"} | model},
        "graders": {"g": {"model": f"openai:grader@{address}", "rounds": 1} | model},
        "steps": [step or evaluate | {"combinations": combinations, "generations": 1}],
    }
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def ran(folder: Path, handler: Handler, **more: Any) -> tuple[int, Stub]:
    async def main() -> tuple[int, Stub]:
        async with serving(handler) as stub:
            path = written(folder, stub.address, **more)
            return await asyncio.to_thread(command, ["run", str(path), "--json"]), stub

    return asyncio.run(main())


def replies() -> int:
    with open_run("served").read() as journal:
        calls = [*journal.calls("generate"), *journal.calls("grade")]
    return sum(isinstance(call.outcome, Reply) for call in calls)


def student_only(refusal: Callable[[], web.Response]) -> Handler:
    return lambda body: refusal() if body["model"] == "student" else good(body)


@pytest.mark.parametrize(
    "refusal",
    [
        lambda: error(400, "This model's maximum context length is 10 tokens"),
        lambda: web.Response(status=413),
        lambda: error(400, "blocked by the content management policy"),
    ],
    ids=["context length", "413", "filtered prompt"],
)
def test_a_failure_of_the_infrastructure_is_missing_and_not_zero(
    in_folder: Path, capsys: pytest.CaptureFixture[str], refusal: Callable[[], web.Response]
) -> None:
    status, _ = ran(in_folder, student_only(refusal))

    said = capsys.readouterr()
    assert status == 1
    assert "failed: 20 calls: prompt" in said.err
    assert {(row["value"], row["complete"]) for row in json.loads(said.out)} == {(None, 0)}
    assert run_status("served").failed == 20
    assert ran(in_folder, good)[0] == 0
    assert {(row["value"], row["complete"]) for row in json.loads(capsys.readouterr().out)} == {(1.0, 20)}


def test_grades_that_cannot_be_read_end_with_exit_status_1(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = ran(in_folder, lambda body: chat("I like it.") if body["model"] == "grader" else good(body))

    assert status == 1
    assert "ungraded: 20 texts" in capsys.readouterr().err


@pytest.mark.parametrize("status", [400, 403, 418, 422])
def test_prompts_that_are_refused_faster_than_others_are_answered_stop_nothing(
    in_folder: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    seen = itertools.count()
    flagged: set[str] = set()

    async def handler(body: Body) -> web.Response:
        prompt = body["messages"][0]["content"]
        if body["model"] == "student" and next(seen) % 2 == 0 and len(flagged) < 15:
            flagged.add(prompt)
        if prompt in flagged:
            return error(status, "flagged as potentially unsafe")
        await asyncio.sleep(0.1)
        return good(body)

    ended, _ = ran(in_folder, handler, combinations=40)

    said = capsys.readouterr()
    assert ended == 1
    lines = [line for line in said.err.splitlines() if line.startswith("failed:")]
    assert len(lines) == 1
    assert lines[0].startswith(f"failed: 15 calls: HTTP {status}: flagged as potentially unsafe")
    assert "such as generate/s/" in lines[0]
    assert {row["complete"] for row in json.loads(said.out)} == {25}


def test_a_model_that_refuses_everything_is_found_out_soon(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, stub = ran(in_folder, student_only(lambda: error(400, "no such thing here")), combinations=300)

    assert status == 2
    assert "openai:student cannot be used: HTTP 400. no such thing here" in capsys.readouterr().err
    assert len(stub.bodies) < 200


def test_a_fatal_problem_waits_for_the_calls_in_flight_and_keeps_their_replies(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = itertools.count()

    async def handler(body: Body) -> web.Response:
        if next(seen) == 10:
            return error(401, "the key was revoked")
        await asyncio.sleep(0.5)
        return good(body)

    status, stub = ran(in_folder, handler)

    said = capsys.readouterr().err
    assert status == 2
    assert re.search(r"waiting for \d+ calls? in flight", said)
    assert "HTTP 401. the key was revoked" in said
    assert replies() == len(stub.bodies) - 1 == 19
    assert ran(in_folder, good)[0] == 0


def test_a_server_that_is_down_after_the_probe_is_waited_for(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The student's port is closed between the probe and the first call, and open again later."""
    from skillmix.steps import run

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    probed = threading.Event()

    async def probe(*_: Any) -> None:
        probed.set()

    monkeypatch.setattr(run, "probe_models", probe)
    monkeypatch.setattr(scheduler, "LONGEST_WAIT", 0.2)
    path = written(in_folder, f"http://127.0.0.1:{port}/v1", combinations=3)

    async def main() -> int:
        running = asyncio.create_task(asyncio.to_thread(command, ["run", str(path), "--json"]))
        await asyncio.to_thread(probed.wait, 30)
        await asyncio.sleep(0.2)
        application = web.Application()

        async def answer(asked: web.Request) -> web.Response:
            return good(await asked.json())

        application.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            return await running
        finally:
            await runner.cleanup()

    assert asyncio.run(main()) == 0
    with open_run("served").read() as journal:
        assert "no connection" in {reason for _, _, reason in attempts(journal)}


@pytest.mark.parametrize("asked", ["1e9", "Fri, 31 Dec 2099 23:59:59 GMT"])
def test_ctrl_c_ends_calls_that_wait_at_once(in_folder: Path, asked: str) -> None:
    asking = asyncio.Event()

    def handler(body: Body) -> web.Response:
        if body["model"] == "student":
            asking.set()
            return web.Response(status=429, headers={"Retry-After": asked})
        return good(body)

    async def main() -> tuple[int | None, str, float]:
        async with serving(handler) as stub:
            path = written(in_folder, stub.address)
            program = [sys.executable, "-m", "skillmix", "run", str(path)]
            process = await asyncio.create_subprocess_exec(
                *program, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=dict(os.environ)
            )
            await asyncio.wait_for(asking.wait(), 60)
            await asyncio.sleep(0.5)
            started = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, said = await asyncio.wait_for(process.communicate(), 30)
            return process.returncode, said.decode(), time.monotonic() - started

    status, said, seconds = asyncio.run(main())

    assert status == 130, said
    assert seconds < 20
    assert "openai:student requests a wait of" in said
    assert "it is called again after 600 s" in said


def test_a_prompt_that_is_refused_does_not_keep_a_data_set_from_being_written(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victims: set[str] = set()

    def handler(body: Body) -> web.Response:
        prompt = body["messages"][0]["content"]
        if body["model"] == "student" and len(victims) < 1:
            victims.add(prompt)
        return error(400, "flagged") if prompt in victims else chat_of(body)

    numbers = itertools.count()

    def chat_of(body: Body) -> web.Response:
        if body["model"] == "grader":
            return good(body)
        number = next(numbers)
        words = " ".join(f"{word}{number}" for word in ("needle", "fish", "thread", "cloth", "swims", "patiently"))
        return chat(f"Answer: {words}.\n\nExplanation: so.")

    step = {"name": "d", "stage": "dataset", "writer": "s", "graders": ["g"], "k": [1], "target": 5}
    status, _ = ran(in_folder, handler, **step)

    said = capsys.readouterr().err
    assert status == 1
    assert "failed: 1 call: HTTP 400: flagged" in said
    assert (in_folder / "runs/served/d/dataset/train.jsonl").exists(), said
