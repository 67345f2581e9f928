"""Measure CPU time and rate of whole evaluations against a local chat server, for skillmix and other clients.

    python bench/engine.py [--texts 1000] [--latency 0.2] [--at-once 64 256] [--best-of 5] [--peers openai inspect]

Every text has two student turns and three gradings. The server runs in a separate process, answers after the latency
and records the time of each call. The rate is that of the middle 60% of the calls, which excludes ramp-up and tail; `of
ideal` is that rate divided by at-once / latency. CPU time is that of the client process alone, including the journal,
after a warm-up. `bare` is the minimum: aiohttp and one SQLite row for each call. Peers need openai, inspect-ai or, for
`--peers ray`, ray.
"""

import argparse
import asyncio
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

STUDENT = "Answer: The needle, that patient fish, swims on.\n\nExplanation: it is one."


def serve(port_file: str, latency: float) -> None:
    """Serve a grading table in reply to a prompt with criteria, and an answer in reply to any other prompt."""
    came: list[float] = []

    async def rate(_: web.Request) -> web.Response:
        """Return the calls per second in the middle 60%, and clear the record."""
        times = sorted(came)
        came.clear()
        first, last = times[len(times) // 5], times[4 * len(times) // 5]
        return web.json_response({"rate": 0.6 * len(times) / (last - first), "calls": len(times)})

    async def handle(request: web.Request) -> web.Response:
        came.append(time.monotonic())
        body = await request.json()
        prompt = body["messages"][-1]["content"]
        text = STUDENT
        if "The criteria" in prompt:
            lines = [line[2:] for line in prompt.partition("The criteria")[2].splitlines() if line.startswith("- ")]
            rows = "".join(f"| {line} | 1 |\n" for line in lines)
            text = f"Here's the grading table:\n\n| Criteria | Points Earned |\n|---|---|\n{rows}\nExplanation: so."
        if latency:
            await asyncio.sleep(latency)
        usage = {"prompt_tokens": 400, "completion_tokens": 60}
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return web.json_response(answer | {"usage": usage | {"total_tokens": 460}})

    async def main() -> None:
        application = web.Application()
        application.router.add_post("/v1/chat/completions", handle)
        application.router.add_get("/rate", rate)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        Path(port_file).write_text(str(runner.addresses[0][1]), encoding="utf-8")
        await asyncio.Event().wait()

    asyncio.run(main())


def on_ray(address: str, texts: int, at_once: int, folder: str) -> int:
    """Run the evaluation of `ours` with calls made by Ray workers; only the CPU time of the driver is measured."""
    return ours(address, texts, at_once, folder, is_on_ray=True)


def ours(address: str, texts: int, at_once: int, folder: str, *, is_on_ray: bool = False) -> int:
    """Run a whole evaluation with the journal, and return the number of calls."""
    from skillmix.experiment.experiment import experiment_of
    from skillmix.steps.run import run_checked

    os.chdir(folder)
    # Two of five calls are the student's; both models together have as many calls in flight as other clients.
    student, grader = 2 * at_once // 5, at_once - 2 * at_once // 5
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [3]}
    document = {
        "name": f"bench-{texts}",
        "students": {"s": {"model": f"openai:m@{address}", "concurrency": student}},
        "graders": {"g": {"model": f"openai:m@{address}", "concurrency": grader}},
        "steps": [step | {"combinations": texts, "generations": 1}],
    }
    return run_checked(experiment_of(document, source="bench"), on_ray=is_on_ray).called


Ask = Callable[[list[dict[str, str]]], Awaitable[str]]


async def evaluate(ask: Ask, texts: int, at_once: int) -> int:
    """Run the evaluation without skillmix, with enough texts at once to keep about `at_once` calls in flight."""
    room = asyncio.Semaphore(at_once)
    numbers = iter(range(texts))

    async def call(messages: list[dict[str, str]]) -> str:
        async with room:
            return await ask(messages)

    async def worker() -> None:
        for number in numbers:
            messages = [{"role": "user", "content": f"Write {number} " + "x " * 400}]
            first = await call(messages)
            messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "Improve it"}]
            await call(messages)
            grade = [{"role": "user", "content": "The criteria:\n- Shows metaphor\n" + "x " * 500}]
            await asyncio.gather(*(call(grade) for _ in range(3)))

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return 5 * texts


def bare(address: str, texts: int, at_once: int, folder: str) -> int:
    """Measure the minimum: aiohttp and one database row for each call."""

    async def main() -> int:
        database = sqlite3.connect(f"{folder}/bare-{texts}.sqlite", isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("CREATE TABLE call (request TEXT, reply TEXT)")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def ask(messages: list[dict[str, str]]) -> str:
                async with session.post(f"{address}/chat/completions", json={"messages": messages}) as response:
                    text = str((await response.json())["choices"][0]["message"]["content"])
                database.execute("INSERT INTO call VALUES (?, ?)", (json.dumps(messages), text))
                return text

            return await evaluate(ask, texts, at_once)

    return asyncio.run(main())


def openai_sdk(address: str, texts: int, at_once: int, folder: str) -> int:
    """Run the evaluation with OpenAI's client, without a journal."""
    from openai import AsyncOpenAI

    async def main() -> int:
        client = AsyncOpenAI(base_url=address, api_key="none", max_retries=0)

        async def ask(messages: list[dict[str, str]]) -> str:
            reply = await client.chat.completions.create(model="m", messages=messages)
            return reply.choices[0].message.content or ""

        return await evaluate(ask, texts, at_once)

    return asyncio.run(main())


def inspect(address: str, texts: int, at_once: int, folder: str) -> int:
    """Run the evaluation in Inspect AI, with two turns as the solver and three gradings as the scorer."""
    os.environ |= {"OPENAI_API_KEY": "none", "INSPECT_DISPLAY": "none"}
    from inspect_ai import Task, eval
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageUser, GenerateConfig, get_model
    from inspect_ai.scorer import Score, accuracy, scorer
    from inspect_ai.solver import solver

    @solver  # type: ignore[untyped-decorator]
    def two_turns() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            state = await generate(state)
            state.messages.append(ChatMessageUser(content="Improve it"))
            return await generate(state)

        return solve

    @scorer(metrics=[accuracy()])  # type: ignore[untyped-decorator]
    def three_votes() -> Any:
        async def score(state: Any, target: Any) -> Any:
            model = get_model()
            prompt = "The criteria:\n- Shows metaphor\n" + "x " * 500
            configs = [GenerateConfig(seed=number) for number in range(3)]
            votes = await asyncio.gather(*(model.generate(prompt, config=config) for config in configs))
            return Score(value=int(sum("| 1 |" in vote.completion for vote in votes) > 1))

        return score

    samples = [Sample(input=f"Write {number} " + "x " * 400, target="1") for number in range(texts)]
    model = get_model(
        "openai/m", base_url=address, config=GenerateConfig(max_connections=at_once), memoize=False, responses_api=False
    )
    task = Task(dataset=MemoryDataset(samples), solver=two_turns(), scorer=three_votes())
    (log,) = eval(task, model=model, log_dir=f"{folder}/logs", display="none", max_samples=at_once)
    assert log.status == "success", log.error
    return 5 * texts


CLIENTS = {"skillmix": ours, "ray": on_ray, "bare": bare, "openai": openai_sdk, "inspect": inspect}


def measure(client: str, address: str, texts: int, at_once: int) -> dict[str, float]:
    """Run one client in a separate process."""
    command = [sys.executable, __file__, "--client", client, "--address", address]
    command += ["--texts", str(texts), "--at-once", str(at_once)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_client(client: str, address: str, texts: int, at_once: int) -> None:
    """Warm up and measure, in the child process."""
    with tempfile.TemporaryDirectory() as folder:
        CLIENTS[client](address, 20, at_once, folder)
        rate_of(address)
        cpu = time.process_time()
        calls = CLIENTS[client](address, texts, at_once, folder)
        cpu = time.process_time() - cpu
        os.chdir("/")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"calls": calls, "cpu": cpu, "peak_mb": peak, **rate_of(address)}))


def rate_of(address: str) -> dict[str, float]:
    """Return the rate that the server has measured since the rate was last requested."""
    with urllib.request.urlopen(address.removesuffix("/v1") + "/rate") as response:
        rate: dict[str, float] = json.load(response)
    return rate


def main() -> None:
    """Serve, or run one client, or compare them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--at-once", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--best-of", type=int, default=5)
    parser.add_argument("--peers", nargs="*", default=[])
    parser.add_argument("--serve")
    parser.add_argument("--client")
    parser.add_argument("--address")
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.latency)
    if options.client:
        return run_client(options.client, options.address, options.texts, options.at_once[0])
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(port_file), "--latency", str(options.latency)]
        )
        try:
            while not port_file.exists() or not port_file.read_text(encoding="utf-8"):
                time.sleep(0.05)
            address = f"http://127.0.0.1:{port_file.read_text(encoding='utf-8')}/v1"
            print("| client | at once | calls | CPU ms per call | calls/s | of ideal | peak MB |")
            print("|---|---:|---:|---:|---:|---:|---:|")
            for at_once in options.at_once:
                rows: dict[str, list[dict[str, float]]] = {}
                for _ in range(options.best_of):
                    for client in ["skillmix", "bare", *options.peers]:
                        rows.setdefault(client, []).append(measure(client, address, options.texts, at_once))
                for client, results in rows.items():
                    _print_best(client, results, at_once, options.latency)
        finally:
            server.terminate()


def _print_best(client: str, results: list[dict[str, float]], at_once: int, latency: float) -> None:
    cpu = min(1000 * result["cpu"] / result["calls"] for result in results)
    rate = max(result["rate"] for result in results)
    ideal = f"{rate * latency / at_once:.0%}" if latency else "–"
    peak = max(result["peak_mb"] for result in results)
    calls = results[0]["calls"]
    print(f"| {client} | {at_once} | {calls:.0f} | {cpu:.2f} | {rate:.0f} | {ideal} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
