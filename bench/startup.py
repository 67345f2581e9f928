"""Seconds from the command to the first text, and from one local model to the next, as a timeline.

`python bench/startup.py` runs a small experiment in a fresh process: the bundled model writes texts with long prompts,
then an evaluation asks the bundled model and two copies of it. Options: `--runs 2` repeats it, so that the second run
finds the caches of the first; `--calls N` is the number of conversations of the first step; `--src FOLDER` measures
the code in another folder.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

EXPERIMENT = """
name: startup
seed: 0
catalog: verifiable
students:
  base: {{model: "{model}", max_tokens: 64}}
  writer: {{model: "{model}", prompts: worked, max_tokens: 48}}
  copy1: {{model: "local:{folder}/copy1", max_tokens: 64}}
  copy2: {{model: "local:{folder}/copy2", max_tokens: 64}}
graders:
  rules: {{model: "rules:"}}
steps:
  - {{name: written, stage: generate, students: [writer], settings: [train], k: [1], combinations: {calls},
      generations: 1}}
  - {{name: eval, stage: evaluate, students: [base, copy1, copy2], graders: [rules], settings: [train], k: [1, 2],
      combinations: {combinations}, generations: 1}}
"""


def seconds_since_start() -> float:
    """Seconds since the kernel started this process."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


class Timeline:
    """Prints events with the time since the start of the process."""

    def __init__(self) -> None:
        self._base = seconds_since_start() - time.perf_counter()
        self._last = 0.0

    def mark(self, event: str) -> None:
        """Print an event, and the seconds since the event before."""
        now = self._base + time.perf_counter()
        cpu = sum(os.times()[:2])
        print(f"{now:8.2f} s  +{now - self._last:6.2f}  cpu {cpu:6.1f}  {event}", flush=True)
        self._last = now

    def marked(self, owner: Any, name: str, label: str, *, once: bool = False) -> None:
        """Mark each call of a function (or only the first) before and after it."""
        before = getattr(owner, name)
        calls = []

        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            calls.append(1)
            if once and len(calls) > 1:
                return before(*arguments, **keywords)
            self.mark(f"{label} begins")
            try:
                return before(*arguments, **keywords)
            finally:
                self.mark(f"{label} ends")

        setattr(owner, name, wrapped)


class MarkedModels:
    """Marks the first request, the first text and the last text of every local model; for older versions, too."""

    def __init__(self, line: Timeline) -> None:
        self._line = line
        self._is_patched = self._has_text = False
        self._local: Any = import_module("skillmix.models.local.model")
        self._generate, self._put = self._local.LocalModel._generate, self._local._Results.put
        self._local.LocalModel._generate = lambda model, *rest: self.generate(model, *rest)
        self._local._Results.put = lambda results, item: self.put(results, item)

    def generate(self, model: Any, *rest: Any) -> None:
        """Take the place of `LocalModel._generate`."""
        self._line.mark(f"first request of {model._spec}")
        if find_spec("skillmix.models.local.importing"):
            import_module("skillmix.models.local.importing").import_here()
        else:
            self._local.calm_threads()
        self._mark_parts()
        self._has_text = False
        self._generate(model, *rest)
        self._line.mark(f"last text of {model._spec}")

    def put(self, results: Any, item: Any) -> None:
        """Take the place of `_Results.put`."""
        if isinstance(item, tuple) and not self._has_text:
            self._has_text = True
            self._line.mark("FIRST TEXT")
        self._put(results, item)

    def _mark_parts(self) -> None:
        loading, decoder = (import_module(f"skillmix.models.local.{name}") for name in ("loading", "decoder"))
        self._line.mark("torch and transformers imported")
        if not self._is_patched:
            self._is_patched = True
            self._line.marked(loading, "load", "load")
            self._line.marked(decoder.Decoder, "__init__", "Decoder()")
            self._line.marked(decoder.Decoder, "_capture", "capture")
            self._line.marked(decoder.Decoder, "start", "first prompts", once=True)


def child(experiment: Path) -> None:
    """Run the experiment with marks at the parts of the start."""
    line = Timeline()
    line.mark("Python runs")
    steps: Any = import_module("skillmix.steps.run")
    line.mark("skillmix imported")
    if find_spec("skillmix.models.local.importing"):
        import_module("skillmix.models.local.importing").import_lean()  # as the command does
    for name in ("check_plan", "check_journal"):
        line.marked(steps, name, name)
    MarkedModels(line)
    line.mark("run begins")
    result = steps.run_experiment(experiment)
    line.mark(f"run ends, {result.called} calls, complete: {result.is_complete}")


def prepared(folder: Path, options: argparse.Namespace) -> Path:
    """The experiment file, and two copies of the model that take no space."""
    from skillmix.models.checkpoints import checkpoint_of
    from skillmix.models.specs import parse_spec

    source = checkpoint_of(parse_spec(options.model)).base
    for name in ("copy1", "copy2"):
        (folder / name).mkdir()
        for file in source.iterdir():
            if file.name != "skillmix.json":
                try:
                    (folder / name / file.name).hardlink_to(file)
                except OSError:  # the temporary folder is on another file system
                    (folder / name / file.name).symlink_to(file)
    path = folder / "startup.yaml"
    path.write_text(EXPERIMENT.format(folder=folder, **vars(options)), encoding="utf-8")
    return path


def main() -> None:
    """Run the experiment in child processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--calls", type=int, default=600)
    parser.add_argument("--combinations", type=int, default=40)
    parser.add_argument("--src", type=Path)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    environment = dict(os.environ)
    if options.src:
        others = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if not part.endswith("src")]
        environment["PYTHONPATH"] = os.pathsep.join([str(options.src.absolute()), *others])
    for number in range(options.runs):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            path = prepared(folder, options)
            print(f"--- run {number + 1} of {options.runs}, code in {options.src or 'PYTHONPATH'}", flush=True)
            command = [sys.executable, __file__, "--child", str(path)]
            subprocess.run(command, cwd=folder, env=environment, check=False)


if __name__ == "__main__":
    main()
