"""In a process of its own: run an experiment against every kind of hostile reply, then go on against a good server.

    python -m tests.hostile.visit ADDRESS PROTOCOL FOLDER

Prints one line of JSON for each kind. Only waits are shortened; all else is the command as a user runs it.
"""

import io
import json
import os
import sqlite3
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from skillmix import commands
from skillmix.runs import scheduler
from skillmix.steps import checks
from tests.hostile.kinds import KINDS, kinds_for, shapes_of_the_key
from tests.hostile.replies import SECRET

PRICES = {"input": 1.0, "output": 10.0}


def shorten_waits() -> None:
    scheduler.FIRST_WAIT = 0.0005  # type: ignore[misc]
    scheduler.LONGEST_WAIT = 0.002  # type: ignore[misc]
    scheduler._GATHERING = 0.001  # type: ignore[misc]
    scheduler.LONGEST_ASKED_WAIT = 0.02  # type: ignore[misc]
    scheduler.TRIES = 3  # type: ignore[misc]


def write_catalog() -> None:
    """A small one: this is read some thousand times."""
    skills = [
        {"name": f"skill {letter}", "category": f"part {letter}", "definition": f"Does {letter}.", "example": letter}
        for letter in "abcdef"
    ]
    sides = {"train": {"categories": ["part a", "part b", "part c"]}, "held-out": {"categories": ["part d"]}}
    files = {
        "skills": skills,
        "topics": ["Sewing", "Knots"],
        "partitions": {
            "default": "half",
            "partitions": {"half": sides},
            "topics": {"train": ["Sewing"], "held-out": ["Knots"]},
        },
    }
    Path("catalog").mkdir()
    for name, content in files.items():
        Path(f"catalog/{name}.yaml").write_text(json.dumps(content), encoding="utf-8")


def experiment(address: str, protocol: str, name: str) -> dict[str, Any]:
    at = f"{address}/{protocol}/{name}/v1"
    is_slow = name in KINDS and KINDS[name].is_slow
    settings = {"key": "HOSTILE_KEY", "timeout": 0.4 if is_slow else 20, "concurrency": 4}
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [1]}
    return {
        "name": "visit",
        "catalog": "../catalog",
        "students": {"s": settings | {"model": f"{protocol}:student@{at}"}},
        "graders": {"g": settings | {"model": f"{protocol}:grader@{at}", "rounds": 1, "attempts": 2}},
        "budget": {"max_usd": 50},
        "steps": [step | {"combinations": 2, "generations": 1}],
    }


def commanded(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = commands.main(list(arguments))
    return status, out.getvalue(), err.getvalue()


def peak_mb() -> float:
    """The most memory that this process held since `forget_peak`."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def visit(address: str, protocol: str, name: str) -> dict[str, Any]:
    """One kind: what the command did, what it left, and how it goes on."""
    folder = Path(name)
    folder.mkdir()
    os.chdir(folder)
    Path("prices.yaml").write_text(
        json.dumps({f"{protocol}:{model}": PRICES for model in ("student", "grader")}), encoding="utf-8"
    )
    for file, kind in (("hostile.yaml", name), ("good.yaml", "good")):
        Path(file).write_text(json.dumps(experiment(address, protocol, kind)), encoding="utf-8")
    checks._LONGEST_PROBE = 0.2 if KINDS[name].is_slow else 8.0  # type: ignore[misc]
    forget_peak()
    started = time.monotonic()
    status, out, err = commanded("run", "hostile.yaml", "--prices", "prices.yaml", "--json")
    seconds = time.monotonic() - started
    peak = peak_mb()
    left = _left()
    checks._LONGEST_PROBE = 8.0  # type: ignore[misc]
    again, scores, _ = commanded("run", "good.yaml", "--prices", "prices.yaml", "--json")
    leaks = [str(path) for path in Path().rglob("*") if path.is_file() and holds_key(path.read_bytes())]
    os.chdir("..")
    return {
        "name": name,
        "status": status,
        "out": out,
        "err": err,
        "seconds": seconds,
        "peak_mb": peak,
        "again": again,
        "scores": json.loads(scores) if scores else [],
        "leaks": leaks,
        **left,
    }


def _left() -> dict[str, Any]:
    """What the journal holds after the hostile run."""
    path = Path("runs/visit/run.sqlite")
    if not path.exists():
        return {"integrity": "ok", "tries": [], "spent": 0.0, "replies": 0}
    connection = sqlite3.connect(path)
    try:
        lost = connection.execute("SELECT total(cost_usd) FROM attempt").fetchone()[0]
        return {
            "integrity": connection.execute("PRAGMA integrity_check").fetchone()[0],
            "tries": [row[0] for row in connection.execute("SELECT reason FROM attempt")],
            "spent": lost + connection.execute("SELECT total(cost_usd) FROM call").fetchone()[0],
            "replies": connection.execute("SELECT count(*) FROM call WHERE status = 'done'").fetchone()[0],
        }
    finally:
        connection.close()


def holds_key(content: bytes) -> bool:
    small = content.lower()
    return any(shape.lower().encode() in small for shape in shapes_of_the_key().values())


def main() -> None:
    address, protocol, folder, *wanted = sys.argv[1:]
    os.environ["HOSTILE_KEY"] = SECRET
    os.chdir(folder)
    shorten_waits()
    write_catalog()
    for name, kind in kinds_for("openai" if protocol == "openai" else "anthropic").items():
        if not wanted or name in wanted or kind.name in wanted:
            sys.stdout.write(json.dumps(visit(address, protocol, name)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
