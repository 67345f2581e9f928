"""What a whole experiment costs beside its models: no GPU is needed.

    python bench/overhead.py [bench/overhead.yaml] [--seconds 0] [--slots 2048] [--profile] [--set KEY=VALUE]

The paced model of bench/writing.py stands in for every model in this process, and a train step copies its base. With
`--seconds 0` the model answers at once, and the rows below show what the rest of the program costs. With `--seconds
1.2` a call holds a slot for about that long, and "slots busy" shows how well a step fills the device: the mean share
of busy slots from the first call until the last conversation began.

CPU seconds are given for the main thread with the event loop, for the threads that decide texts and write the journal
(all three hold the interpreter's lock), and for worker processes. The stand-in's own time is not counted.
"""

import argparse
import cProfile
import os
import pstats
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import yaml

import skillmix.steps.run
from skillmix.datasets.window import DatasetWriting
from skillmix.experiment.experiment import load_experiment
from skillmix.files import replacing
from skillmix.models import specs
from skillmix.runs.journal import JournalWriter
from skillmix.training.job import MODEL, Job, write_lineage
from writing import RATE, SECONDS, PacedModel

RATES = "base=0,0 writer=.13,.01 m1=.55,.006,.001 m12=.6,.02,.001 m123=.6,.05,.001 m1-more=.6,.01"
"""Share of good texts by student and k, near that of the real models."""


@dataclass
class Cpu:
    """CPU seconds so far."""

    main: float = 0.0
    decisions: float = 0.0
    journal: float = 0.0
    stand_in: float = 0.0
    process: float = 0.0
    workers: float = 0.0
    wall: float = 0.0

    @classmethod
    def now(cls) -> "Cpu":
        """The present state."""
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(
            time.thread_time(),
            SPENT["decisions"],
            SPENT["journal"],
            PacedModel.cpu_s,
            own.ru_utime + own.ru_stime,
            children.ru_utime + children.ru_stime,
            time.monotonic(),
        )

    def since(self, before: "Cpu") -> "Cpu":
        """The difference to an earlier state."""
        return Cpu(*(a - b for a, b in zip(vars(self).values(), vars(before).values(), strict=True)))


SPENT = {"decisions": 0.0, "journal": 0.0}
PROFILES: dict[str, cProfile.Profile] = {}


def timed(owner: Any, name: str, label: str) -> None:
    """Count the CPU time of a function that runs in a thread of its own."""
    function = getattr(owner, name)

    def wrapped(*arguments: Any) -> Any:
        started = time.thread_time()
        profile = PROFILES.get(label)
        try:
            return profile.runcall(function, *arguments) if profile else function(*arguments)
        finally:
            SPENT[label] += time.thread_time() - started

    setattr(owner, name, wrapped)


def copy_base(job: Job, *_: object) -> None:
    """Stand in for training: the trained model is its base."""
    assert job.checkpoint is not None
    with replacing(job.model_folder, MODEL) as new:
        new.mkdir()
        for file in job.checkpoint.base.iterdir():
            if file.suffix == ".safetensors":
                (new / file.name).symlink_to(file)
            elif file.name != "skillmix.json":
                shutil.copy(file, new / file.name)
        write_lineage(new, job.lineage(steps=1))


REPOSITORY = Path(__file__).resolve().parent.parent


@contextmanager
def measured(rows: list[str], name: str, result: Any) -> Iterator[None]:
    """Add a row on what happens inside the block."""
    before = Cpu.now()
    PacedModel.reset()
    yield
    spent = Cpu.now().since(before)
    counts = result().counts.get(name) if result() else None
    rows.append(row(name, spent, counts.called if counts else 0))
    print(rows[-1], file=sys.stderr)


def row(name: str, spent: Cpu, called: int) -> str:
    """A line of the table."""
    a_call = f"{1000 * spent.main / called:.3f}" if called else ""
    busy = f"{PacedModel.share_until_last_began():.0%}" if called and name != "all" else ""
    own = spent.process - spent.stand_in
    return (
        f"| {name} | {called or ''} | {spent.wall:.1f} | {spent.main:.2f} | {a_call} | {spent.decisions:.2f} "
        f"| {spent.journal:.2f} | {own:.1f} | {spent.workers:.1f} | {busy} |"
    )


def scaled(file: Path, scale: float) -> list[str]:
    """Changes that make every step smaller."""
    if scale == 1:
        return []
    changes = []
    for step in yaml.safe_load(file.read_text(encoding="utf-8"))["steps"]:
        for name in ("target", "most", "combinations", "size"):
            value = step.get(name)
            by_key = value if isinstance(value, dict) else {"": value} if value else {}
            for key, number in by_key.items():
                changes.append(f"steps.{step['name']}.{name}{f'.{key}' if key else ''}={max(2, round(number * scale))}")
        changes += [f"steps.{step['name']}.least=0"] if "least" in step else []
    return changes


def watch_steps(rows: list[str]) -> None:
    """Measure each step: its preparation, its work and its record."""
    take = RUNNING.take_finished
    present: list[Any] = []

    def close(name: str = "") -> None:
        if present:
            present.pop().__exit__(None, None, None)
        if name:
            present.append(measured(rows, name, lambda: RESULTS[-1] if RESULTS else None))
            present[-1].__enter__()

    def taking(step: Any, context: Any, result: Any) -> bool:
        RESULTS.append(result)
        close(step.name)
        return bool(take(step, context, result))

    RUNNING.take_finished = taking
    CLOSERS.append(close)


RUNNING: Any = skillmix.steps.run
RESULTS: list[Any] = []
CLOSERS: list[Any] = []


def main() -> None:
    """Run the experiment in a temporary folder and print its table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, nargs="?", default=REPOSITORY / "bench/overhead.yaml")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--slots", type=int, default=2048)
    parser.add_argument("--rates", default=RATES)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the calls")
    parser.add_argument("--steps", nargs="+", help="only these steps; each needs those it depends on")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--keep", type=Path, help="run in this folder and keep it")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    options = parser.parse_args()
    os.environ |= {RATE: options.rates, SECONDS: str(options.seconds)}
    changes = [*scaled(options.file, options.scale), *options.changes]
    experiment = load_experiment(options.file.resolve(), changes=changes)
    if options.steps:
        experiment = experiment.model_copy(update={"steps": [s for s in experiment.steps if s.name in options.steps]})
    PacedModel.most_slots = options.slots
    for name in ("local", "bundled"):
        cast(dict[str, specs.Provider], specs.PROVIDERS)[name] = replace(specs.PROVIDERS[name], model=PacedModel)
    specs._provider.cache_clear()
    import skillmix.training.job_run

    skillmix.training.job_run.run_training = copy_base  # type: ignore[assignment]
    timed(DatasetWriting, "_read", "decisions")
    timed(JournalWriter, "record_attempts", "journal")
    rows: list[str] = []
    watch_steps(rows)
    if options.profile:
        PROFILES.update({label: cProfile.Profile(time.thread_time) for label in ("main", "decisions", "journal")})
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        before = Cpu.now()
        whole = PROFILES.get("main")
        result = whole.runcall(RUNNING.run_checked, experiment) if whole else RUNNING.run_checked(experiment)
        CLOSERS[0]()
        rows.append(row("all", Cpu.now().since(before), result.called))
        os.chdir("/")
    for label, profile in PROFILES.items():
        print(f"== {label}")
        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(60)
        pstats.Stats(profile, stream=sys.stdout).sort_stats("cumtime").print_stats(110)
    for name, dataset in result.datasets.items():
        print(name, dataset.written.hash, [(y.k, y.taken, y.full_marks, y.written) for y in dataset.yields])
    print("| step | calls | s | main | main, ms a call | decisions | journal | process | workers | slots busy |")
    print("|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
