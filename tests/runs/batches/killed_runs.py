"""Run an experiment in a process that kills itself with SIGKILL at a moment: `python -m … SHAPE COUNT MOMENT=FILE …`.

The packages are imported once; each run is a fork of this process, in the folder of its file.
"""

import io
import os
import signal
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from skillmix.commands import main as command
from skillmix.models.batches.clients import BatchClient, InlineBatches
from skillmix.runs.batches import batched, step_batches
from skillmix.runs.journal import JournalWriter, Submissions
from tests.runs.batches.experiments import hurry, written

assert batched and step_batches  # imported before the forks


def places(shape: str) -> dict[str, tuple[type, str] | tuple[type, str, str]]:
    """The methods of each moment, some with the state that they note."""
    client: type = InlineBatches if shape == "anthropic" else BatchClient
    return {
        "rows written": (Submissions, "submit"),
        "uploaded": (Submissions, "note", "creating") if shape == "anthropic" else (client, "upload"),
        "created": (client, "create"),
        "id stored": (Submissions, "note", "created"),
        "results read": (client, "results"),
        "outcomes stored": (JournalWriter, "record_attempts"),
    }


def die_after(count: int, owner: type, name: str, state: str | None = None) -> None:
    """Die when a method has returned for the n-th time, of those that noted the state."""
    original = getattr(owner, name)
    calls = iter(range(1, 10**6))

    def die_in_time() -> None:
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    if name in ("upload", "create", "results"):

        async def wrapped_async(*arguments: Any) -> Any:
            result = await original(*arguments)
            die_in_time()
            return result

        setattr(owner, name, wrapped_async)
        return

    def wrapped(*arguments: Any, **values: str | None) -> Any:
        result = original(*arguments, **values)
        if values.get("state") == state:
            die_in_time()
        return result

    setattr(owner, name, wrapped)


def warm_up() -> None:
    """Run something without a server, so that the forks need not import and read everything again."""
    document = yaml.safe_load(written(Path(), "http://127.0.0.1:1/v1", name="warm").read_text(encoding="utf-8"))
    document["students"]["s"] = {"model": "scripted:student"}
    document["graders"]["g"] = {"model": "scripted:grader", "rounds": 1}
    Path("warm.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with redirect_stdout(io.StringIO()):
        command(["run", "warm.yaml", "--json"])
    assert threading.active_count() == 1  # a fork has no other threads


def main(shape: str, count: int, runs: list[str]) -> int:
    hurry()
    warm_up()
    for run in runs:
        moment, _, file = run.partition("=")
        child = os.fork()
        if child == 0:
            os.chdir(Path(file).parent)
            die_after(count, *places(shape)[moment])
            os._exit(command(["run", file, "--json"]))
        _, status = os.waitpid(child, 0)
        ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
        sys.stdout.write(f"{moment}={ended}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
