"""The progress of a whole run: lines in a file, a bar on a terminal, nothing if there is nothing to do."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.experiment.experiment import load_experiment
from skillmix.runs.progress import LINE_EVERY, RunProgress, Work
from skillmix.runs.run import Run
from skillmix.steps.run import planned_work

_EVALUATE = {"stage": "evaluate", "graders": ["judge"], "settings": ["train"], "k": [1, 2], "generations": 2}
_SHOWN_LEFT = re.compile(r"about \d+ (s|min) left")


def experiment(folder: Path, *, combinations: int = 4, with_report: bool = False) -> Path:
    """A data set, an evaluation of the same writer, and a report if it is wanted."""
    document: dict[str, Any] = {
        "name": "tiny",
        "students": {"base": {"model": "scripted:student?skill=0.8"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            {"name": "data", "stage": "dataset", "writer": "base", "graders": ["judge"], "k": [1], "target": 6},
            {"name": "eval", **_EVALUATE, "students": ["base"], "combinations": combinations},
            *([{"name": "report", "stage": "report"}] if with_report else []),
        ],
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()


def test_the_plan_of_an_experiment_counts_calls_steps_and_reports(in_folder: Path) -> None:
    path = experiment(in_folder, with_report=True)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    (in_folder / "more.jsonl").write_text("{}\n" * 10, encoding="utf-8")
    train = {"stage": "train", "base": "base", "batch": 8}
    document["steps"][2:2] = [
        {"name": "m1", **train, "data": ["data", "./more.jsonl"], "epochs": 2},
        {"name": "m2", **train, "data": ["data", "./missing.jsonl"], "epochs": 1},
        {"name": "m3", **train, "data": ["data"], "steps": 30, "patience": 2, "validation_share": 0.1},
    ]
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    loaded = load_experiment(path)

    found = planned_work(loaded, load_catalog(loaded.catalog), loaded.steps, Run(in_folder / "runs" / "tiny"))

    assert [(work.name, work.total, work.bound) for work in found] == [
        ("data", 6 * 3, "at least"),
        ("eval", 2 * 4 * 2 * 3, "about"),
        ("m1", 4, "about"),
        ("m2", None, "about"),
        ("m3", 30, "at most"),
        ("report", 1, "about"),
    ]
    assert found[0].kind == found[1].kind != found[2].kind


def test_a_run_off_a_terminal_says_where_steps_begin_and_end(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(experiment(in_folder, with_report=True)), "--json"]) == 0

    said = capsys.readouterr()
    assert said.out.lstrip().startswith("[")
    assert "begins" not in said.out
    lines = said.err.splitlines()
    begins = [line for line in lines if "begins" in line]
    assert re.fullmatch(r"data: begins, (at least )?\d+ calls", begins[0])
    assert begins[1:] == ["eval: begins, 48 calls", "report: begins"]
    [data] = [line for line in lines if line.startswith("data:") and "calls made" in line]
    assert re.search(r"; the run: \d+%", data)
    assert "\x1b" not in said.err and "\r" not in said.err


def test_a_run_that_finds_everything_shows_no_progress(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = experiment(in_folder)
    assert main(["run", str(path), "--json"]) == 0
    capsys.readouterr()

    assert main(["run", str(path), "--json"]) == 0

    said = capsys.readouterr().err
    assert "0 calls made" in said
    assert "begins" not in said and "the run:" not in said


def test_a_step_that_was_stopped_is_not_shown_as_done(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with RunProgress([Work("eval", "calls", total=50)], clock=clock) as progress:
        progress.begin("eval")
        for second in range(11):
            progress.update("eval", done=second, made=second)
            clock.now += 1
        progress.leave("eval", "eval: 10 calls made")

    assert lines_of(capsys)[-1] == "eval: 10 calls made; the run: 20%, about 40 s left"


def test_lines_come_every_fifteen_seconds_at_most_and_claim_only_what_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    works = [Work("eval", "calls", total=100), Work("tune", "training", total=10)]
    with RunProgress(works, clock=clock) as progress:
        progress.begin("eval")
        for second in range(41):
            progress.update("eval", done=second, made=second)
            clock.now += 1
        progress.end("eval", "eval: done")
        progress.begin("tune")
        progress.update("tune", done=1, made=1, detail="loss 2.0")
        clock.now += LINE_EVERY
        progress.update("tune", done=2, made=2, detail="loss 1.9")
        clock.now += LINE_EVERY
        progress.update("tune", done=4, made=4, detail="loss 1.8")

    lines = lines_of(capsys)
    assert lines[0] == "eval: begins, 100 calls"
    assert lines[1] == "eval: 15 of 100 calls; the run: 13%, about 85 s left, 1 step not measured yet"
    assert lines[2].startswith("eval: 30 of 100 calls; the run: 27%, about 70 s left, 1 step")
    assert lines[3].startswith("eval: done; the run: ")
    assert lines[4] == "tune: begins, 10 steps"
    assert "left" not in lines[3] and "left" not in lines[5]
    assert lines[6].startswith("tune: step 4 of 10, loss 1.8; the run: ") and lines[6].endswith("about 60 s left")
    assert len(lines) == 7


def test_the_time_left_follows_the_pace_of_the_last_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with RunProgress([Work("eval", "calls", total=1000)], clock=clock) as progress:
        progress.begin("eval")
        for second in range(300):
            done = second // 10 if second < 150 else 15 + 4 * (second - 150)
            progress.update("eval", done=done, made=done)
            clock.now += 1

    last = lines_of(capsys)[-1]
    assert last.startswith("eval: 555 of 1,000 calls, ") or last.startswith("eval: 555 of 1,000 calls;")
    assert last.endswith("about 1 min 51 s left") or last.endswith("about 2 min left")


def test_the_bar_never_goes_back_when_more_is_found_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with RunProgress([Work("data", "calls", total=10, bound="at least")], clock=clock) as progress:
        progress.begin("data")
        clock.now += LINE_EVERY
        progress.update("data", done=8, made=8)
        progress.expect("data", 80, bound="about")
        clock.now += LINE_EVERY
        progress.update("data", done=10, made=10)

    assert [re.findall(r"\d+%", line) for line in lines_of(capsys)] == [[], ["80%"], ["80%"]]


def test_a_closed_standard_error_stops_nothing(in_folder: Path) -> None:
    command = f"{sys.executable} -m skillmix run {experiment(in_folder)} --json 2>&-"

    result = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, check=False)

    assert result.returncode == 0
    assert result.stdout.lstrip().startswith("[")


class OnTerminal:
    """A command whose standard error is a terminal of so many columns, and whose standard output is a pipe."""

    def __init__(self, *arguments: str, columns: int = 100, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        unset = {"NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR"}
        inherited = {name: value for name, value in os.environ.items() if name not in unset}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=theirs,
            stdin=theirs,
            env={**inherited, "TERM": "xterm-256color", **environment},
            # A shell starts background jobs with SIGINT ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.shown = ""

    def read_until(self, wanted: str, *, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        os.set_blocking(self._ours, False)
        while wanted not in self.shown and time.monotonic() < deadline:
            self._read()
            time.sleep(0.02)
        assert wanted in self.shown, self.shown[-2000:]

    def finish(self) -> tuple[int, str]:
        """Exit status and standard output; everything that the terminal got is in `shown`."""
        os.set_blocking(self._ours, False)
        deadline = time.monotonic() + 60
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        printed = b""
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read()
            printed += self.process.stdout.read() or b""
            time.sleep(0.02)
        self._read()
        printed += self.process.stdout.read() or b""
        assert termios.tcgetattr(self._theirs) == self.before
        self.process.stdout.close()
        os.close(self._theirs)
        os.close(self._ours)
        return self.process.wait(timeout=10), printed.decode()

    def _read(self) -> None:
        try:
            self.shown += os.read(self._ours, 1 << 16).decode(errors="replace")
        except BlockingIOError:
            return


def test_a_terminal_sees_the_bar_and_the_time_left(in_folder: Path) -> None:
    path = experiment(in_folder, combinations=300)

    terminal = OnTerminal("-m", "skillmix", "run", str(path), "--json")
    status, printed = terminal.finish()

    assert status == 0
    assert "━" in terminal.shown
    assert _SHOWN_LEFT.search(terminal.shown)
    assert "of 3,600 calls" in terminal.shown
    assert "\x1b" not in printed and "━" not in printed and printed.lstrip().startswith("[")
    assert terminal.shown.rfind("\x1b[?25l") < terminal.shown.rfind("\x1b[?25h")


_HALF_DONE = """
import time
from skillmix.runs.progress import RunProgress, Work

with RunProgress([Work("evaluation-with-a-long-name", "calls", total=10)]) as progress:
    progress.begin("evaluation-with-a-long-name")
    progress.update("evaluation-with-a-long-name", done=5, made=5)
    time.sleep(0.6)
"""


@pytest.mark.parametrize(
    ("columns", "environment", "is_drawn"),
    [(12, {}, True), (100, {"NO_COLOR": "1"}, True), (100, {"TERM": "dumb"}, False)],
)
def test_narrow_colourless_and_dumb_terminals_are_served(
    columns: int, environment: dict[str, str], is_drawn: bool
) -> None:
    terminal = OnTerminal("-c", _HALF_DONE, columns=columns, **environment)
    status, _ = terminal.finish()

    assert status == 0
    assert ("50%" in terminal.shown) == is_drawn
    assert ("\x1b[" in terminal.shown) == is_drawn
    assert ("begins" in terminal.shown) != is_drawn
    if "NO_COLOR" in environment:
        assert not re.search(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", terminal.shown)


def test_ctrl_c_leaves_the_terminal_in_order(in_folder: Path) -> None:
    path = experiment(in_folder, combinations=1200)
    terminal = OnTerminal("-m", "skillmix", "run", str(path))
    terminal.read_until("━")

    terminal.process.send_signal(signal.SIGINT)
    status, _ = terminal.finish()

    assert status == 130
    assert "run the same command" in terminal.shown.rsplit("\n", 2)[-2]
    assert "Traceback" not in terminal.shown
    assert terminal.shown.rfind("\x1b[?25l") < terminal.shown.rfind("\x1b[?25h")


_WITH_WARNINGS = """
import logging, sys, warnings
from skillmix.runs.progress import RunProgress, Work

with RunProgress([Work("eval", "calls", total=10)]) as progress:
    progress.begin("eval")
    early = logging.StreamHandler()
    warnings.warn("the first warning " + "w" * 150)
    logging.getLogger("early").addHandler(early)
    logging.getLogger("early").error("an error of a logger")
    print("a line " + "in two parts", file=sys.stderr)
    sys.stderr.write("no end of line")
sys.stderr.write("after the run\\n")
logging.getLogger("early").error("an error after the run")
"""


def test_lines_of_others_stay_whole_above_the_bar() -> None:
    terminal = OnTerminal("-c", _WITH_WARNINGS, columns=60)
    status, _ = terminal.finish()

    assert status == 0, terminal.shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.shown).replace("\r", "\n")
    lines = [line.strip() for line in plain.splitlines()]
    assert any(line.endswith("the first warning " + "w" * 150) for line in lines)
    for line in ("an error of a logger", "a line in two parts", "no end of line", "after the run"):
        assert line in lines
    assert "an error after the run" in lines
