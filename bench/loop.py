"""Measure the whole loop at three sizes: write, tune, write, tune, evaluate, report, and rerun the finished file.

    python bench/loop.py                               # small, medium and large for the available device
    python bench/loop.py --size small --tiny           # a random model with two layers, for two CPU cores
    python bench/loop.py --size small                  # the bundled model; about 2 minutes on two idle CPU cores
    python bench/loop.py --device cuda --size large --generate                      # 60,000 conversations on a GPU
    python bench/loop.py --device cuda --size medium --conversations 8000 --steps 60 --evaluated 600 --limit 145

The experiment file is in a temporary folder, and each command is `python -m skillmix run` in a separate process. The
targets of the data sets are unreachable, so that all conversations are written: two turns of at most 64 tokens, k = 1
to 3, three conversations per combination, graded by code (`rules:`). Both models are tuned on the data sets of the loop
and on 384 texts of the tests, on a GPU in batches of 32 conversations of 333 to 505 tokens.

The rows:

- STUDENT: calls/s: all calls of a student except the first, divided by the seconds from its first row in the journal to
  its last. `writer` writes the first data set, `m1` the second; `base` and `m2` are evaluated.
- STEP: tokens/s: the tokens of all optimizer steps after the first ten, divided by their seconds.
- first text: seconds from the start of the command to the first row in the journal.
- STEP: wall seconds, as recorded in the run (docs/report.md, "Where the time went").
- GPU busy: the mean utilization reported by nvidia-smi every half second, over the whole command.
- again: seconds of the same command after everything is finished.
- generate: calls/s of bench/generate.py with the same prompts, slots and token limit.
"""

import argparse
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

import skillmix
from skillmix.runs.run import open_run

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / "tests" / "checkers" / "labelled" / "self_taught.yaml"
RUN = "loop"
WARM_STEPS = 10
"""Steps for compilation, the search for a micro-batch size and warm-up, which are excluded from the rate."""
GPU_SLOTS, CPU_SLOTS = 2048, 8
"""The number of slots of a small model in a run (`new_generator` in models/local/generator.py)."""


@dataclass(frozen=True)
class Size:
    """The size of a loop."""

    conversations: int
    """Conversations of the first data set; the second has a quarter of them."""
    steps: int
    """Optimizer steps of each training."""
    batch: int
    evaluated: int
    """Conversations of each of the two students in the evaluation."""


SIZES = {
    "gpu": {
        "small": Size(3_000, 60, 32, 300),
        "medium": Size(12_000, 100, 32, 1_200),
        "large": Size(60_000, 250, 32, 2_400),
    },
    "cpu": {"small": Size(9, 2, 2, 6), "medium": Size(36, 4, 4, 12), "large": Size(180, 8, 8, 60)},
    "tiny": {"small": Size(48, 6, 8, 12), "medium": Size(240, 12, 32, 60), "large": Size(1_200, 24, 32, 120)},
}


def experiment_of(size: Size, model: str, prompt_set: str) -> dict[str, object]:
    """Return the experiment file of a size."""
    writing = {"stage": "dataset", "graders": ["rules"], "k": [1, 2, 3], "generations": 3, "least": 0}
    tuning = {
        "stage": "train",
        "base": "base",
        "steps": size.steps,
        "batch": size.batch,
        "learning_rate": 1.0e-4,
        "warmup_steps": 4,
        "validate_every": max(1, size.steps // 2),
    }
    first, second = (max(1, count // 3) for count in (size.conversations, size.conversations // 4))
    evaluation = {"settings": ["train"], "k": [1, 2], "combinations": max(1, size.evaluated // 6), "generations": 3}
    steps: list[dict[str, object]] = [
        {"name": "d1", **writing, "writer": "writer", "target": first, "most": first},
        {"name": "m1", **tuning, "data": ["d1", "./texts.jsonl"]},
        {"name": "d2", **writing, "writer": "step:m1", "target": second, "most": second},
        {"name": "m2", **tuning, "data": ["d1", "d2", "./texts.jsonl"]},
        {"name": "eval", "stage": "evaluate", "graders": ["rules"], "students": ["base", "step:m2"], **evaluation},
        {"name": "report", "stage": "report"},
    ]
    students = {
        "base": {"model": model, "max_tokens": 64},
        "writer": {"model": model, "max_tokens": 64, "prompts": prompt_set},
    }
    return {
        "name": RUN,
        "seed": 0,
        "catalog": "verifiable",
        "students": students,
        "graders": {"rules": {"model": "rules:"}},
        "steps": steps,
    }


@dataclass(frozen=True)
class Command:
    """A command that was run."""

    began: float
    """The start of the command, in seconds since 1970."""
    seconds: float
    is_whole: bool
    """Whether the command ended within the limit."""
    gpu_busy: float | None


def environment(device: str) -> dict[str, str]:
    """Return the environment of every command, which selects this package and the device."""
    paths = [str(Path(skillmix.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "SKILLMIX_DEVICE": device}


def run_file(folder: Path, device: str, limit: float | None) -> Command:
    """Run the experiment in a separate process, print its lines with their seconds, and end it at the limit."""
    command = [sys.executable, "-m", "skillmix", "run", "loop.yaml"]
    began, started = time.time(), time.monotonic()
    with GpuMeter(device) as meter:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(device), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        timer = threading.Timer(limit or 1e6, process.kill)
        timer.start()
        assert process.stderr is not None
        for line in process.stderr:
            print(f"  {time.monotonic() - started:6.1f} s  {line}", end="", flush=True)
        status = process.wait()
        timer.cancel()
    if status not in (0, 1, -9):  # 1: the data sets are smaller than their targets, as intended
        sys.exit(f"the run ended with status {status}")
    return Command(began, time.monotonic() - started, status != -9, meter.mean)


class GpuMeter:
    """Samples the GPU's utilization with nvidia-smi; the mean is None without a GPU."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._process: subprocess.Popen[str] | None = None
        self._samples: list[float] = []

    def __enter__(self) -> "GpuMeter":
        if self._device == "cuda":
            query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500"]
            with suppress(OSError):
                self._process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        if self._process is not None:
            self._process.terminate()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):
                self._samples.append(float(line) / 100)

    @property
    def mean(self) -> float | None:
        """Return the mean of the samples."""
        return sum(self._samples) / len(self._samples) if self._samples else None


def calls_of(run: Path, began: float) -> Iterator[tuple[str, str]]:
    """Return rows on each writer: calls, calls per second, and the time of the first text."""
    with closing(sqlite3.connect(f"file:{run / 'run.sqlite'}?mode=ro", uri=True)) as journal:
        rows = journal.execute("SELECT student, count(*), min(at), max(at) FROM call GROUP BY student").fetchall()
    rows.sort(key=lambda row: str(row[2]))
    for number, (student, calls, first, last) in enumerate(rows):
        first_at, last_at = (datetime.fromisoformat(at).timestamp() for at in (first, last))
        if not number:
            yield "first text, s", f"{first_at - began:.1f}"
        yield f"{student}: calls", f"{calls:,}"
        if last_at > first_at:
            yield f"{student}: calls/s", f"{(calls - 1) / (last_at - first_at):,.0f}"


def tokens_of(run: Path) -> Iterator[tuple[str, str]]:
    """Return rows on each training: tokens per step and per second."""
    for step in ("m1", "m2"):
        log = run / step / "training.jsonl"
        rows = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
        measured = rows[WARM_STEPS:] or rows[1:]
        seconds = sum(row["seconds"] for row in measured)
        if seconds:
            yield f"{step}: tokens a step", f"{sum(row['tokens'] for row in measured) / len(measured):,.0f}"
            yield f"{step}: tokens/s", f"{sum(row['tokens'] for row in measured) / seconds:,.0f}"
            yield (
                f"{step}: the first {len(rows) - len(measured)} steps, s",
                f"{sum(row['seconds'] for row in rows) - seconds:.1f}",
            )


def seconds_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Return the wall seconds of each finished step."""
    run = open_run(str(folder))
    for step, seconds in run.step_seconds.items():
        yield f"{step}: s", f"{seconds:.1f}"


def generate_rate(model: Path, folder: Path, options: argparse.Namespace) -> float:
    """Return the calls per second of bench/generate.py with the same prompts."""
    on_gpu = options.device == "cuda"
    slots = GPU_SLOTS if on_gpu else CPU_SLOTS
    conversations = 3 * slots if on_gpu or options.tiny else 9
    script, prompts = str(ROOT / "bench" / "generate.py"), folder / "prompts.json"
    of_prompts = ["--write-prompts", str(prompts), "--prompt-set", options.prompt_set]
    subprocess.run([sys.executable, script, *of_prompts], env=environment(options.device), check=True)
    measure = ["--prompts", prompts, "--model", model, "--device", options.device, "--slots", slots]
    command = [sys.executable, script, *map(str, measure), "--conversations", str(conversations)]
    done = subprocess.run(command, env=environment(options.device), check=True, capture_output=True, text=True)
    print(done.stdout, end="", flush=True)
    seconds = float(re.findall(r"^slots \d+: ([\d.]+) s, ", done.stdout, re.MULTILINE)[-1])
    return 2 * conversations / seconds


@contextmanager
def model_of(options: argparse.Namespace) -> Iterator[Path]:
    """Return the folder of the bundled model, or of a random model with two layers and the same tokenizer."""
    from skillmix.models.bundled import bundled_model

    bundled = bundled_model("smollm2-135m")
    if not options.tiny:
        yield bundled
        return
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(bundled)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    ids = {"vocab_size": len(tokenizer), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, **heads, **ids)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        yield Path(folder)


def measured(size: Size, model: Path, options: argparse.Namespace) -> dict[str, str]:
    """Return all figures of a size."""
    figures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        document = experiment_of(size, f"local:{model}", options.prompt_set)
        rows = yaml.safe_load(TEXTS.read_text(encoding="utf-8"))
        (folder / "texts.jsonl").write_text("".join(map(_line, rows)), encoding="utf-8")
        (folder / "loop.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        first = run_file(folder, options.device, options.limit)
        run = folder / "runs" / RUN
        figures["the whole, s"] = f"{first.seconds:.1f}" if first.is_whole else f"ended at the limit of {options.limit}"
        figures |= dict(calls_of(run, first.began)) | dict(tokens_of(run)) | dict(seconds_of(run))
        if first.gpu_busy is not None:
            figures["GPU busy"] = f"{first.gpu_busy:.0%}"
        if first.is_whole:
            figures["again, s"] = f"{run_file(folder, options.device, None).seconds:.1f}"
        if options.generate:
            rate = generate_rate(model, folder, options)
            figures["generate: calls/s"] = f"{rate:,.0f}"
            if "writer: calls/s" in figures:
                figures["writer, of generate"] = f"{float(figures['writer: calls/s'].replace(',', '')) / rate:.0%}"
    return figures


def _line(row: dict[str, Any]) -> str:
    request = f"Write a short text about {row['topic']} that shows {' and '.join(row['skills'])}."
    messages = [{"role": "user", "content": request}, {"role": "assistant", "content": row["text"]}]
    return json.dumps({"messages": messages}) + "\n"


def print_table(by_size: dict[str, dict[str, str]]) -> None:
    """Print one column for each size."""
    rows = dict.fromkeys(name for figures in by_size.values() for name in figures)
    print(f"\n| | {' | '.join(by_size)} |\n|:--|{'--:|' * len(by_size)}")
    for row in rows:
        print(f"| {row} | {' | '.join(figures.get(row, '') for figures in by_size.values())} |")
    sys.stdout.flush()


def main() -> None:
    """Run the loop at each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=["small", "medium", "large"], default=["small", "medium", "large"])
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--tiny", action="store_true", help="a random model with two layers")
    parser.add_argument("--prompt-set", default="worked", help="prompt set of the first writer")
    parser.add_argument("--generate", action="store_true", help="compare with bench/generate.py")
    parser.add_argument("--conversations", type=int, help="conversations of the first data set")
    parser.add_argument("--steps", type=int, help="steps of each training")
    parser.add_argument("--evaluated", type=int, help="evaluated conversations of each student")
    parser.add_argument("--limit", type=float, help="seconds after which the run is ended and its figures are printed")
    options = parser.parse_args()
    if options.device is None:
        import torch

        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = "tiny" if options.tiny else "gpu" if options.device == "cuda" else "cpu"
    changes = {name: getattr(options, name) for name in ("conversations", "steps", "evaluated")}
    by_size: dict[str, dict[str, str]] = {}
    with model_of(options) as model:
        for name in options.size:
            size = replace(SIZES[machine][name], **{key: value for key, value in changes.items() if value is not None})
            print(f"{name}: {size}", flush=True)
            by_size[name] = measured(size, model, options)
            print_table({name: by_size[name]})
    if len(by_size) > 1:
        print_table(by_size)


if __name__ == "__main__":
    main()
