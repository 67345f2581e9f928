"""Signals that end a process: what is done is kept, that is said, and the exit status is 128 + n."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.errors import UserError
from skillmix.runs.run import open_run
from skillmix.scores.status import run_status
from skillmix.steps.run import run_experiment

ENDING = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def endless(in_folder: Path) -> Path:
    """An experiment that takes longer than any test."""
    document: dict[str, Any] = {
        "name": "long",
        "students": {"base": {"model": "scripted:student"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 3}},
        "steps": [
            {
                "name": "eval",
                "stage": "evaluate",
                "students": ["base"],
                "graders": ["judge"],
                "settings": ["all"],
                "k": [1],
                "combinations": 1000,
                "generations": 9,
            }
        ],
    }
    path = in_folder / "long.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def started(*words: str, ignoring: int | None = None) -> "subprocess.Popen[str]":
    def prepare() -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN if number == ignoring else signal.SIG_DFL)

    return subprocess.Popen(
        [sys.executable, "-m", "skillmix", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,
    )


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def calls_are_made() -> bool:
    try:
        with open_run("long").read() as journal:
            return journal.extent()[0] > 50
    except UserError:  # not there yet
        return False


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_a_run_keeps_its_answers_and_says_how_to_go_on(endless: Path, number: signal.Signals) -> None:
    process = started("run", str(endless))
    wait_until(calls_are_made)

    process.send_signal(number)
    _, said = process.communicate(timeout=30)

    assert process.returncode == 128 + number, said
    assert "run the same command" in said and "Traceback" not in said
    done = run_status("long").done
    assert done > 0
    again = run_experiment(endless, changes=["steps.eval.combinations=1", "steps.eval.generations=1"])
    assert again.is_complete and run_status("long").done >= done


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_a_command_without_calls_ends_the_same_way(in_folder: Path, number: signal.Signals) -> None:
    process = started("parse-reply", "--skills", "metaphor", "--topic", "Sewing")
    status, caught = Path(f"/proc/{process.pid}/status"), 1 << (number - 1)
    if status.exists():
        wait_until(lambda: int(status.read_text().partition("SigCgt:")[2].split()[0], 16) & caught != 0)
    else:  # not Linux: nothing tells when it is ready
        time.sleep(2.0)

    process.send_signal(number)
    _, said = process.communicate(timeout=30)

    assert process.returncode == 128 + number, said
    assert "interrupted" in said and "Traceback" not in said


def test_a_signal_that_comes_while_an_object_is_finalized_is_not_lost() -> None:
    program = (
        "import os, signal, time\n"
        "from skillmix.commands import ending_like_ctrl_c\n"
        "from skillmix.errors import Interrupted\n"
        "class Final:\n"
        "    def __del__(self):\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "with ending_like_ctrl_c():\n"
        "    try:\n"
        "        Final()\n"
        "        time.sleep(20)\n"
        "    except Interrupted as stop:\n"
        "        print(stop.number)\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)

    assert (done.stdout, done.stderr) == ("15\n", "")


def test_under_nohup_a_hangup_changes_nothing(endless: Path) -> None:
    process = started("run", str(endless), ignoring=signal.SIGHUP)
    wait_until(calls_are_made)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)

    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("what", ["runs/long/run.sqlite", "runs"])
def test_a_journal_that_is_deleted_is_noticed_at_the_next_write(endless: Path, what: str) -> None:
    process = started("run", str(endless))
    wait_until(calls_are_made)

    began = time.monotonic()
    if Path(what).is_file():
        Path(what).unlink()
    else:
        Path(what).rename("gone")
        shutil.rmtree("gone")
    _, said = process.communicate(timeout=30)

    assert process.returncode == 2, said
    assert "was deleted or replaced" in said and "Traceback" not in said
    assert time.monotonic() - began < 10
