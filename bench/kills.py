"""Kill a run over HTTP again and again: `python bench/kills.py [--kills 50] [--texts 2800]`.

A server on loopback relays to the scripted models and counts every question. One run is killed (SIGKILL) at random
moments and run again each time, another is left alone. Scores must be equal to the byte, and what was asked twice can
only be what was in flight at a kill.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from aiohttp import web
from tests.models.reading_model import ReadingModel

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.models.specs import parse_spec

AT_ONCE = 32


def serve(port_file: str) -> None:
    """The server."""
    student = ReadingModel(parse_spec("scripted:student?skill=0.7"))
    grader = ReadingModel(parse_spec("scripted:grader?noise=0.1&unreadable=0.05"))
    asked: dict[str, int] = {}

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(0.01)
        question = json.dumps([body["model"], body["seed"], body["messages"]])
        asked[question] = asked.get(question, 0) + 1
        messages = tuple(Message(m["role"], m["content"]) for m in body["messages"])
        call = Request(GenerateKey("x", "x", 0, 1), "x", messages, Decoding(), body["seed"])
        outcome = (student if body["model"] == "student" else grader).answer(call)
        text = outcome.text if isinstance(outcome, Reply) else ""
        return web.json_response({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})

    async def count(_: web.Request) -> web.Response:
        return web.json_response({"asked": sum(asked.values()), "different": len(asked)})

    async def main() -> None:
        application = web.Application()
        application.router.add_post("/v1/chat/completions", answer)
        application.router.add_get("/count", count)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        Path(port_file).write_text(str(runner.addresses[0][1]), encoding="utf-8")
        await asyncio.Event().wait()

    asyncio.run(main())


def scores_after(kills: int, texts: int) -> tuple[str, dict[str, int], int]:
    """Scores as printed, the server's count, and how many kills hit."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    rng = random.Random(3)
    longest = texts / 2500  # so that all kills fall into the run
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        port_file = folder / "port"
        server = subprocess.Popen([sys.executable, __file__, "--serve", str(port_file)])
        try:
            while not port_file.exists() or not port_file.read_text(encoding="utf-8"):
                time.sleep(0.05)
            address = f"http://127.0.0.1:{port_file.read_text(encoding='utf-8')}"
            student, grader = (
                f"{{model: 'openai:{name}@{address}/v1', concurrency: {AT_ONCE}}}" for name in ("student", "grader")
            )
            (folder / "e.yaml").write_text(
                f"name: k\nstudents: {{s: {student}}}\ngraders: {{g: {grader}}}\n"
                "steps: [{name: e, stage: evaluate, students: [s], graders: [g], settings: [all], k: [1, 3], "
                ""
                f"combinations: {texts // 4}, generations: 2}}]\n",
                encoding="utf-8",
            )
            command = [sys.executable, "-m", "skillmix", "run", "e.yaml", "--json"]
            hit = 0
            for _ in range(kills):
                process = subprocess.Popen(
                    command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                time.sleep(1.0 + longest * rng.random())
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    hit += 1
                process.wait()
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
            with urllib.request.urlopen(f"{address}/count") as response:
                return done.stdout, json.load(response), hit
        finally:
            server.terminate()


def main() -> None:
    """Compare a killed run with one left alone."""
    if sys.argv[1:2] == ["--serve"]:
        return serve(sys.argv[2])
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--texts", type=int, default=2800)
    options = parser.parse_args()
    killed, asked, hit = scores_after(options.kills, options.texts)
    alone, plain, _ = scores_after(0, options.texts)
    print(f"kills: {hit}; scores equal to the byte: {killed == alone}")
    print(f"questions: {asked['different']} different, {asked['asked']} asked; without a kill {plain['asked']}")
    again = (asked["asked"] - asked["different"]) / max(1, hit)
    print(f"asked again for each kill: {again:.1f} of at most {2 * AT_ONCE} in flight")


if __name__ == "__main__":
    main()
