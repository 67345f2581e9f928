"""Kill a run many times: `PYTHONPATH=. python bench/kills.py [--kills 50] [--texts 400]`.

A local server relays requests to the scripted models and counts them. The run writes a data set, trains a small model
from random weights, evaluates it beside its writer, and writes a report. One run is not disturbed. Another one is
killed (SIGKILL) at random moments, at most half the time of the first run after its process has started, and resumed
each time. When it is complete, one of its steps is deleted from the records. Scores, texts, data set, weights and
tables of the two runs must be byte-identical, and only calls in flight at a kill may be repeated.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from aiohttp import web
from tests.models.reading_model import ReadingModel

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.models.specs import parse_spec

AT_ONCE = 32
SHORTEST = 1.0
"""The minimum number of seconds after which a process is killed."""
TIMES = re.compile(rb'"(at|began|seconds)": ?("[^"]*"|[0-9.]+)')


def serve(port_file: str) -> None:
    """Serve the scripted models."""
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


STEPS = """
name: k
catalog: verifiable
students:
  s: {{model: "openai:student@{address}/v1", concurrency: {at_once}}}
  new: {{model: "new:96x2x4", max_tokens: 16, temperature: 0}}
graders:
  g: {{model: "openai:grader@{address}/v1", concurrency: {at_once}, rounds: 1}}
steps:
  - {{name: d, stage: dataset, writer: s, graders: [g], k: [1], target: 20}}
  - {{name: m, stage: train, base: new, data: [d], steps: 30, batch: 4, checkpoint_every: 5}}
  - {{name: e, stage: evaluate, students: [s, "step:m"], graders: [g], settings: [all], k: [1, 3],
     combinations: {combinations}, generations: 2}}
  - {{name: report, stage: report}}
"""
RESULTS = ("d/dataset/*.jsonl", "m/model/*.safetensors", "report/tables/*.csv", "report/data/*.js")
"""Files of a run that must be byte-identical, without the table of seconds."""


def results_after(
    folder: Path, address: str, kills: int, texts: int, longest: float = 0.0
) -> tuple[dict[str, str], Counter[str], float]:
    """Return hashes of the results and scores, kills by part of the run, and the seconds of the last process."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    rng = random.Random(3)
    folder.mkdir()
    file = STEPS.format(address=address, at_once=AT_ONCE, combinations=texts // 4)
    (folder / "e.yaml").write_text(file, encoding="utf-8")
    command = [sys.executable, "-m", "skillmix", "run", "e.yaml", "--json"]
    hits = Counter[str]()
    while hits.total() < kills:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(SHORTEST + (longest - SHORTEST) * rng.random())
            (folder / "runs/k/run.sqlite").touch()
            with closing(sqlite3.connect(folder / "runs/k/run.sqlite")) as database, database:
                # The run is complete: delete the record of one step, so that the next process runs this step again.
                database.execute("DELETE FROM step WHERE name = ?", (rng.choice(["d", "m", "e", "report"]),))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            hits[_part_of(folder / "runs/k")] += 1
    started = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    seconds = time.monotonic() - started
    run = folder / "runs/k"
    found = {"scores": sha256(_printed(folder, "scores", "k", "--json")).hexdigest()}
    found["texts"] = sha256(_texts(folder)).hexdigest()
    for pattern in RESULTS:
        for path in sorted(run.glob(pattern)):
            if not path.name.startswith("where-the-time-went"):
                content = TIMES.sub(b"", path.read_bytes())
                found[str(path.relative_to(run))] = sha256(content).hexdigest()
    return found, hits, seconds


def _part_of(run: Path) -> str:
    """Return the first step that a killed process left unfinished."""
    if not (run / "run.sqlite").exists():
        return "start"
    with closing(sqlite3.connect(f"file:{run / 'run.sqlite'}?mode=ro", uri=True)) as database:
        finished = {name for (name,) in database.execute("SELECT name FROM step WHERE result IS NOT NULL")}
    return next((step for step in ("d", "m", "e", "report") if step not in finished), "end")


def _printed(folder: Path, *words: str) -> bytes:
    command = [sys.executable, "-m", "skillmix", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout


def _texts(folder: Path) -> bytes:
    _printed(folder, "export", "k", "--what", "texts")
    return (folder / "runs/k/texts.jsonl").read_bytes()


def main() -> None:
    """Compare a killed run with an undisturbed one."""
    if sys.argv[1:2] == ["--serve"]:
        return serve(sys.argv[2])
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--texts", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        port_file = Path(place) / "port"
        server = subprocess.Popen([sys.executable, __file__, "--serve", str(port_file)])
        try:
            while not port_file.exists() or not port_file.read_text(encoding="utf-8"):
                time.sleep(0.05)
            address = f"http://127.0.0.1:{port_file.read_text(encoding='utf-8')}"
            alone, _, seconds = results_after(Path(place) / "alone", address, 0, options.texts)
            first = _counts(address)
            killed, hits, _ = results_after(Path(place) / "killed", address, options.kills, options.texts, seconds / 2)
            second = _counts(address)
        finally:
            server.terminate()
    different = sorted(name for name in killed.keys() | alone.keys() if killed.get(name) != alone.get(name))
    parts = ", ".join(f"{count} in {part}" for part, count in hits.items())
    print(f"kills: {hits.total()} ({parts}); {len(alone)} results, different: {', '.join(different) or 'none'}")
    again = second["asked"] - first["asked"] - first["different"]
    print(f"asked again for each kill: {again / max(1, hits.total()):.1f} of at most {2 * AT_ONCE} in flight")
    print(f"questions that only the killed run asked: {second['different'] - first['different']}")


def _counts(address: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{address}/count") as response:
        counts: dict[str, int] = json.load(response)
    return counts


if __name__ == "__main__":
    main()
