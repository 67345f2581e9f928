"""Rerun a finished experiment: `python bench/again.py [--calls 400000] [--folder KEPT]`.

The experiment has scripted models write a data set, evaluates them and writes a report. The script then runs it twice
more, and once with a larger evaluation. Each command is timed in a separate process. With `--folder`, the run is kept,
and a later call of this script continues it.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILE = """
name: again
catalog: paper
students:
  one: {{model: "scripted:student?skill=0.7"}}
  two: {{model: "scripted:student?skill=0.9"}}
graders: {{judge: {{model: "scripted:grader", rounds: 1}}}}
steps:
  - {{name: d23, stage: dataset, writer: two, graders: [judge], k: [2, 3], target: {target}, near_duplicates: null}}
  - {{name: eval, stage: evaluate, students: [one, two], graders: [judge], settings: [train, held-out], k: [2, 3, 4],
     combinations: {combinations}, generations: 3}}
  - {{name: report, stage: report}}
"""
CALLS = 108
"""Calls per combination: 2 students, 2 settings, 3 values of k, and 3 texts, each with 2 turns and a vote."""
CALLS_FOR_A_TEXT = 8.4
"""Calls per text of the target: 2 values of k, 3 calls per conversation, and full marks for 72% of conversations."""


def timed(label: str, folder: Path, *options: str) -> None:
    """Run the experiment in a separate process and print a row."""
    command = [sys.executable, "-m", "skillmix", "run", "again.yaml", *options]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    cost = next(line for line in done.stderr.splitlines() if line.startswith("cost: "))
    print(f"| {label} | {seconds:.1f} | {cpu:.1f} | {', '.join(cost[6:].split(', ')[:2])} |", flush=True)


def main() -> None:
    """Run the experiment, rerun it, and extend it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        combinations = max(10, options.calls // 2 // CALLS)
        text = FILE.format(target=int(options.calls / 2 / CALLS_FOR_A_TEXT), combinations=combinations)
        (folder / "again.yaml").write_text(text, encoding="utf-8")
        print("| run | seconds | CPU seconds | calls |\n|:--|--:|--:|:--|", flush=True)
        timed("first", folder)
        timed("again", folder)
        timed("again", folder)
        timed("evaluation half as large again", folder, "--set", f"steps.eval.combinations={combinations * 3 // 2}")
        timed("again", folder, "--set", f"steps.eval.combinations={combinations * 3 // 2}")


if __name__ == "__main__":
    main()
