"""Notes of workers: what `skillmix status` shows while workers make the calls of a run, and afterwards."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillmix.commands import main as command
from skillmix.runs.folder_replacement import write_whole
from skillmix.runs.leases import driving, owner, worker_notes
from skillmix.runs.leases.worker_notes import WORKERS_FILE, WorkerNote, WorkersNote, read_workers
from skillmix.runs.run import open_run
from skillmix.steps.run import run_experiment
from tests.runs.leases.simulation import Asked, Faults, SimulatedWorkers
from tests.runs.leases.test_leases import experiment


def note(**more: Any) -> WorkersNote:
    workers = (
        WorkerNote("worker 1", "works", 2, 20, 1200, 60.1, 0.2),
        WorkerNote("worker 2", "lost", 0, 7, 400, 55.0, 31.0),
        WorkerNote("worker 3", "works", 1, 3, 90, 9.9, 12.4),
    )
    return replace(WorkersNote(at=1000.0, is_over=False, waiting=64, refused=0, workers=workers), **more)


def test_status_shows_the_workers_of_a_run_and_those_that_were_lost(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(owner, "_FEWEST", 6)
    monkeypatch.setattr(driving, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(worker_notes, "_EVERY_S", 0.01)
    during: list[WorkersNote] = []

    def watched(file: Path, text: str) -> None:
        write_whole(file, text)
        during.append(read_workers(file.parent) or note())

    monkeypatch.setattr(worker_notes, "write_whole", watched)
    workers = SimulatedWorkers(Asked(), seed=1, faults=Faults(lost_after=(12,)))

    result = run_experiment(experiment(in_folder, "noted"), open_workers=lambda: nullcontext(workers))

    assert max(sum(worker.leases for worker in one.workers) for one in during) > 0
    assert max(sum(worker.in_flight for worker in one.workers if worker.state == "works") for one in during) > 0
    last = read_workers(result.run.path)
    assert last is not None and last.is_over
    assert [worker.state for worker in last.workers] == ["lost", "ended", "ended"]
    assert sum(worker.calls for worker in last.workers) == result.called
    capsys.readouterr()
    assert command(["status", "noted"]) == 0
    out = capsys.readouterr().out
    assert "it had 3, 1 of them lost" in out
    assert "worker 0: lost" in out
    assert command(["status", "noted", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["workers"]
    assert [worker["state"] for worker in shown["workers"]] == ["lost", "ended", "ended"]


def test_a_note_of_a_run_that_goes_on_has_leases_rates_and_silence() -> None:
    lines = list(note().lines(now=1001.0))

    assert lines == [
        "workers: 2 work, 1 lost; 3 leases out, 64 conversations wait; 70.0 calls/s",
        "  worker 1: 2 leases, 20 calls in flight; 1,200 calls made, 60.1 a second",
        "  worker 2: lost; 400 calls made, 55.0 a second, 7 under way when it was lost",
        "  worker 3: 1 lease, 3 calls in flight; 90 calls made, 9.9 a second; no answer for 12 s",
        "calls under way on lost workers, which may be asked twice: 7",
    ]


def test_a_note_of_a_driver_that_was_killed_is_not_shown_as_the_present() -> None:
    assert "nothing was noted for 500 s" in next(note().lines(now=1500.0))


def test_a_note_of_a_driver_that_was_killed_says_so_at_once_and_what_may_be_asked_twice() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    here = socket.gethostname()

    assert note(machine=here, process=os.getpid()).has_driver is True
    assert note(machine="elsewhere", process=ended.pid).has_driver is None
    assert note(machine=here, process=2**70).has_driver is None
    assert list(note(machine=here, process=ended.pid).lines(now=1001.0)) == [
        "workers: the driver has ended without a last note, 1 s ago or less; run the same command again to go on",
        "  worker 1: ended with its driver; 1,200 calls made, 60.1 a second, had 2 leases, 20 calls under way",
        "  worker 2: lost; 400 calls made, 55.0 a second, 7 under way when it was lost",
        "  worker 3: ended with its driver; 90 calls made, 9.9 a second, had 1 lease, 3 calls under way",
        "calls under way on lost workers, which may be asked twice: 7",
        "calls under way at the last note, which the next run may ask twice: 23",
    ]
    assert "its driver is stuck" in next(note(machine=here, process=os.getpid()).lines(now=1500.0))
    assert "of them lost" in next(note(machine=here, process=ended.pid, is_over=True).lines(now=1001.0))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not say when a process started")
def test_another_process_with_the_number_of_the_driver_is_not_the_driver() -> None:
    def of(process: int, **more: Any) -> WorkersNote:
        start = worker_notes._process_start(process)
        table = worker_notes._process_table()
        facts = {"process": process, "process_start": start, "process_table": table}
        return note(machine=socket.gethostname(), **{**facts, **more})

    assert of(os.getpid()).has_driver is True
    assert of(os.getpid(), process_start="1").has_driver is False
    assert of(os.getpid(), process_table="that of a container").has_driver is None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        driver = of(child.pid)
        assert driver.has_driver is True
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert driver.has_driver is False, "it has ended, and its parent has not looked"


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": 2}', '{"format": 1, "at": "x"}', '{"format": 1, "at": 1, "workers": [{}]}']
)
def test_a_damaged_note_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / WORKERS_FILE).write_text(text, encoding="utf-8")

    assert read_workers(tmp_path) is None


def test_names_of_workers_cannot_write_to_the_terminal() -> None:
    bad = note(workers=(WorkerNote("a\x1b[2J", "works", 1, 1, 1, 1.0, 0.0),))

    assert all("\x1b" not in line for line in bad.lines(now=time.time()))


def test_a_run_without_workers_has_no_note(in_folder: Path) -> None:
    run_experiment(experiment(in_folder, "alone"))

    assert read_workers(open_run("alone").path) is None
