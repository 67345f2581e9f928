"""Measure how busy a dataset step keeps a device, and the step's cost in this process; no GPU is needed.

    python bench/writing.py [--target 1500] [--slots 2048] [--seconds 1.0] [--rate 0.08] [--k 1 2] [--profile]

A stand-in for a local model has a number of slots and takes about `--seconds` for a call; like a local model, it
answers from a thread. Its texts are labeled sentences with words of the topic, so that `rules:` gives full marks to a
share of them close to `--rate`. The script prints calls per second, the mean share of busy slots from the first call to
the last, and the CPU time of the event loop's thread, of this process without the stand-in, and of the whole process
with its workers.
"""

import argparse
import cProfile
import heapq
import os
import pstats
import tempfile
import time
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, cast

import yaml

from skillmix.calls import GenerateKey, Reply, Request
from skillmix.catalog.files import load_catalog
from skillmix.hashing import digest
from skillmix.models import specs
from skillmix.models.local.model import LocalModel, ThreadWork

LABELLED = Path(__file__).parent.parent / "tests" / "checkers" / "texts"
ROUND_S = 0.01
NO_TOPIC = [f"{first}{last}" for first in ("bra", "clo", "dri", "fle", "gru") for last in ("mpt", "nse", "vell", "zz")]
RATE, SECONDS = "SKILLMIX_BENCH_RATE", "SKILLMIX_BENCH_SECONDS"


class PacedModel(LocalModel):
    """A stand-in for a local model: each call holds a slot for a time determined by its seed."""

    busy_s = busy_until_last_began_s = 0.0
    first_s = last_s = last_began_s = 0.0
    cpu_s = 0.0
    """CPU time of the finished stand-ins."""
    most_slots = 2048

    @classmethod
    def reset(cls) -> None:
        """Reset the measurements."""
        cls.busy_s = cls.busy_until_last_began_s = cls.first_s = cls.last_s = cls.last_began_s = 0.0

    @classmethod
    def share_until_last_began(cls) -> float:
        """Return the mean share of busy slots from the first call until the last conversation began."""
        seconds = cls.last_began_s - cls.first_s
        return cls.busy_until_last_began_s / seconds if seconds else 0.0

    async def probe(self) -> None:
        """Do nothing, because there is no checkpoint."""

    def _generate(self, requests: list[Request], work: ThreadWork, put: Any) -> None:
        started = time.thread_time()
        try:
            self._pace(requests, work, put)
        finally:
            PacedModel.cpu_s += time.thread_time() - started

    def _pace(self, waiting: list[Request], work: ThreadWork, put: Any) -> None:
        self._slots = slots = self._concurrency or self.most_slots
        texts, seconds = Texts(os.environ[RATE]), float(os.environ[SECONDS])
        rows = list[tuple[float, int, Request]]()
        count = 0
        now = time.monotonic()
        PacedModel.first_s = PacedModel.first_s or now
        while not self._stop.is_set():
            waiting += work.taken(waits=False)
            starting, waiting = waiting[: slots - len(rows)], waiting[slots - len(rows) :]
            for request in starting:
                count += 1
                if isinstance(request.key, GenerateKey) and request.key.turn == 1:
                    PacedModel.last_began_s, PacedModel.busy_until_last_began_s = now, PacedModel.busy_s
                heapq.heappush(rows, (now + seconds * (0.5 + (request.seed or 0) % 1000 / 1000), count, request))
            if not rows:
                waiting, now = work.taken(waits=True), time.monotonic()
                if not waiting:
                    return
                continue
            time.sleep(ROUND_S)
            now, before = time.monotonic(), now
            PacedModel.busy_s += len(rows) / slots * (now - before)
            PacedModel.last_s = now
            while rows and rows[0][0] <= now:
                _, _, request = heapq.heappop(rows)
                put((request, texts.reply(request)))


class Texts:
    """Makes replies that show the skills of their combination at a given rate."""

    def __init__(self, rates: str) -> None:
        self._shown = {
            skill: entry["shown"]
            for file in LABELLED.glob("*.yaml")
            for skill, entry in yaml.safe_load(file.read_text(encoding="utf-8")).items()
        }
        self._words = {topic: alone for topic, (alone, *_) in load_catalog("verifiable").vocabulary.items()}
        self._every = sorted({word for words in self._words.values() for word in words})
        self._rates = rates_of(rates)

    def reply(self, request: Request) -> Reply:
        """Return a sentence for each skill and a sentence about the topic, or other words."""
        subject = request.subject
        assert subject is not None and isinstance(request.key, GenerateKey)
        drawn = digest("bench", request.seed, size=16)
        rates = self._rates.get(request.key.student) or self._rates[""]
        rate = rates[min(subject.combination.k, len(rates)) - 1]
        is_good = int.from_bytes(drawn[:2]) < 65536 * rate
        sentences = [
            self._shown.get(skill, ["It is late."])[drawn[2 + n] % len(self._shown.get(skill, [""]))]
            for n, skill in enumerate(subject.combination.skills)
        ]
        # Words of another topic may belong to this one too, so only good texts contain them.
        every = self._every if is_good else NO_TOPIC
        others = [every[int.from_bytes(drawn[n : n + 2]) % len(every)] for n in (7, 9, 11)]
        words = self._words[subject.combination.topic] or ("thing",)
        topic = words[drawn[13] % len(words)] if is_good else "other"
        whole = ", and ".join(sentence.rstrip(".") for sentence in sentences)
        end = f"with the {topic} near the {others[0]}, {others[1]} and {others[2]}."
        text = f"Answer: {whole} {end}\n\nExplanation: the sentence shows each of the skills."
        return Reply(text, finish="stop", input_tokens=450, output_tokens=60)


def rates_of(text: str) -> dict[str, list[float]]:
    """Parse shares of good texts by student and k: "STUDENT=RATE,RATE STUDENT=RATE", or one rate for all."""
    pairs = [part.rpartition("=") for part in text.split()]
    return {"": [0.1]} | {name: [float(rate) for rate in rates.split(",")] for name, _, rates in pairs}


row = specs.Provider("paced", "a stand-in for a device: paced:NAME", PacedModel, is_in_process=True, is_free=True)
cast(dict[str, specs.Provider], specs.PROVIDERS)["paced"] = row


def document(options: argparse.Namespace) -> dict[str, Any]:
    """Return an experiment with one dataset step."""
    target = {k: options.target for k in options.k}
    step = {"name": "d", "stage": "dataset", "writer": "w", "graders": ["rules"], "k": options.k, "target": target}
    if options.ceiling:
        step["per_skill"] = {"ceiling": options.ceiling}
    return {
        "name": "bench",
        "catalog": "verifiable",
        "students": {"w": {"model": "paced:w", "concurrency": options.slots, "prompts": "worked"}},
        "graders": {"rules": {"model": "rules:"}},
        "steps": [step | {"most": options.most, "least": 0}],
    }


def main() -> None:
    """Write one data set and print its cost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=int, default=1500)
    parser.add_argument("--k", type=int, nargs="+", default=[1])
    parser.add_argument("--slots", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=0.08)
    parser.add_argument("--ceiling", type=int)
    parser.add_argument("--most", type=int, default=40_000)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    os.environ |= {RATE: str(options.rate), SECONDS: str(options.seconds)}
    from skillmix.experiment.experiment import experiment_of
    from skillmix.steps.run import run_checked

    experiment = experiment_of(document(options), source="bench")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        profile = cProfile.Profile() if options.profile else None
        told = StringIO()
        start, thread, process, whole = time.monotonic(), time.thread_time(), time.process_time(), _cpu()
        with redirect_stderr(told):
            result = profile.runcall(run_checked, experiment) if profile else run_checked(experiment)
        start, thread, whole = time.monotonic() - start, time.thread_time() - thread, _cpu() - whole
        process = time.process_time() - process - PacedModel.cpu_s
        os.chdir("/")
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    called, yields = result.called, result.datasets["d"].yields
    writing = PacedModel.last_s - PacedModel.first_s
    print(f"kept {[(y.k, y.taken, y.written) for y in yields]} hash {result.datasets['d'].written.hash}")
    print(
        "| calls | s in all | s writing | calls/s | slots busy "
        "| loop CPU ms per call | process CPU ms per call | all CPU ms per call |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    print(
        f"| {called} | {start:.1f} | {writing:.1f} | {called / writing:.0f} | {PacedModel.busy_s / writing:.0%} "
        f"| {1000 * thread / called:.3f} | {1000 * process / called:.3f} | {1000 * whole / called:.3f} |"
    )


def _cpu() -> float:
    return sum(os.times()[:4])


if __name__ == "__main__":
    main()
