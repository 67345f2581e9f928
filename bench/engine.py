"""CPU time and rate of whole evaluations against a chat server on loopback, peers beside ours.

    python bench/engine.py [--texts 400] [--latency 0.2] [--at-once 64] [--peers openai]

Two student turns, three gradings and the vote for every text. The server runs in a process of its own and answers
after the latency; CPU is that of the client process alone, journal included. `ideal` is at-once / latency.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aiohttp import web

STUDENT = "Answer: The needle, that patient fish, swims on.\n\nExplanation: it is one."


def serve(port_file: str, latency: float) -> None:
    """The server: grading tables to prompts with criteria, an answer to all others."""

    async def handle(request: web.Request) -> web.Response:
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
        return web.json_response({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage})

    async def main() -> None:
        application = web.Application()
        application.router.add_post("/v1/chat/completions", handle)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        Path(port_file).write_text(str(runner.addresses[0][1]), encoding="utf-8")
        await asyncio.Event().wait()

    asyncio.run(main())


def ours(address: str, texts: int, at_once: int, folder: str) -> int:
    """A whole evaluation with the journal; how many calls."""
    from skillmix.config.experiment import experiment_of
    from skillmix.stages.evaluate import run_checked

    os.chdir(folder)
    model = {"model": f"openai:m@{address}", "concurrency": at_once}
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [3]}
    document = {
        "name": "bench",
        "students": {"s": model},
        "graders": {"g": model},
        "steps": [step | {"combinations": texts, "generations": 1}],
    }
    return run_checked(experiment_of(document, source="bench")).called


def openai_sdk(address: str, texts: int, at_once: int, folder: str) -> int:
    """The official client, no journal: two turns, three gradings."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=address, api_key="none", max_retries=0)

    async def ask(messages: list[dict[str, str]]) -> str:
        reply = await client.chat.completions.create(model="m", messages=messages)
        return reply.choices[0].message.content or ""

    async def main() -> None:
        room = asyncio.Semaphore(at_once // 2)

        async def text(number: int) -> None:
            async with room:
                messages = [{"role": "user", "content": f"Write {number} " + "x " * 400}]
                first = await ask(messages)
                messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "Improve it"}]
                await ask(messages)
                grade = [{"role": "user", "content": "The criteria:\n- Shows metaphor\n" + "x " * 500}]
                await asyncio.gather(*(ask(grade) for _ in range(3)))

        await asyncio.gather(*(text(number) for number in range(texts)))

    asyncio.run(main())
    return 5 * texts


CLIENTS = {"skillmix": ours, "openai": openai_sdk}


def measure(client: str, address: str, texts: int, at_once: int) -> dict[str, float]:
    """Run one client in a process of its own."""
    command = [sys.executable, __file__, "--client", client, "--address", address]
    command += ["--texts", str(texts), "--at-once", str(at_once)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_client(client: str, address: str, texts: int, at_once: int) -> None:
    """In the child: warm up, then time."""
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.monotonic(), time.process_time()
        calls = CLIENTS[client](address, texts, at_once, folder)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        os.chdir("/")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"calls": calls, "wall": wall, "cpu": cpu, "peak_mb": peak}))


def main() -> None:
    """Serve, or run one client, or compare them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--peers", nargs="*", default=[])
    parser.add_argument("--serve")
    parser.add_argument("--client")
    parser.add_argument("--address")
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.latency)
    if options.client:
        return run_client(options.client, options.address, options.texts, options.at_once)
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(port_file), "--latency", str(options.latency)]
        )
        try:
            while not port_file.exists() or not port_file.read_text(encoding="utf-8"):
                time.sleep(0.05)
            address = f"http://127.0.0.1:{port_file.read_text(encoding='utf-8')}/v1"
            print("| client | calls | CPU ms a call | calls/s | of ideal | peak MB |\n|---|---:|---:|---:|---:|---:|")
            for client in ["skillmix", *options.peers]:
                r = measure(client, address, options.texts, options.at_once)
                rate = r["calls"] / r["wall"]
                ideal = f"{rate * options.latency / options.at_once:.0%}" if options.latency else "–"
                print(
                    f"| {client} | {r['calls']:.0f} | {1000 * r['cpu'] / r['calls']:.2f} | {rate:.0f} | {ideal} "
                    f"| {r['peak_mb']:.0f} |"
                )
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
