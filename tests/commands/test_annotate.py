"""`skillmix annotate` as a process: links, answers over HTTP, and a clean end."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from skillmix.runs.reading.run_records import run_records
from skillmix.runs.run import open_run
from tests.annotation.run_for_people import copied_run
from tests.commands.command_line import run


def start(*words: str) -> "tuple[subprocess.Popen[str], dict[str, str]]":
    """A server in a process of its own, with the address of each person."""
    process = subprocess.Popen(
        [sys.executable, "-m", "skillmix", "annotate", "people", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None and process.stderr is not None
    addresses = {}
    for _ in range(words.count("--rater")):
        line = process.stdout.readline()
        assert line, process.stderr.read()
        rater, _, address = line.strip().partition(": ")
        addresses[rater] = address
    return process, addresses


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_answers_are_counted_at_the_end_and_the_exit_status_names_the_signal(in_folder: Path, number: int) -> None:
    copied_run(texts=12)
    process, addresses = start("--rater", "ann", "--rater", "bo", "--n", "5")
    try:
        home = addresses["ann"]
        with urlopen(f"{home}items/0", timeout=30) as reply:
            item = json.load(reply)
        votes = {question["name"]: 1 for question in item["questions"]}
        body = {"item": item["id"], "id": "x", "votes": votes, "comment": "", "seconds": None}
        headers = {"Content-Type": "application/json", "Origin": home.rsplit("/", 2)[0]}
        with urlopen(Request(f"{home}answers", json.dumps(body).encode(), headers), timeout=30) as reply:
            assert json.load(reply) == {"stored": True, "is_new": True}
    finally:
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)

    assert process.returncode == 128 + number
    assert "ann: 1 of 5 texts answered" in errors and "bo: 0 of 5 texts answered" in errors
    assert "Traceback" not in errors and errors.endswith("run the same command again to go on\n")
    # Nothing is left beside the file, so that the file alone can be sent to somebody.
    assert {p.name for p in Path("runs/people/journal").glob("human-ann*")} == {
        "human-ann.sqlite",
        "human-ann.sqlite.lock",
    }
    ballots = [b for b in run_records(open_run("people")).ballots if b.grader.startswith("human:")]
    assert [(b.grader, b.text.combination.id) for b in ballots] == [("human:ann", ballots[0].text.combination.id)]


def test_a_port_that_is_taken_is_an_error_with_a_hint(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied_run(texts=12)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        status, out, err = run(capsys, "annotate", "people", "--rater", "ann", "--port", str(taken.getsockname()[1]))

    assert (status, out) == (2, "")
    assert "cannot be used" in err and "hint: Choose another --port" in err


def test_the_number_of_texts_follows_from_the_width(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied_run(texts=60)

    words = ("annotate", "people", "--rater", "ann", "--width", "0.4", "--agreement", "0.9", "--export", "task.csv")
    status, out, err = run(capsys, *words, "--json")

    assert status == 0
    assert json.loads(out) == {"file": "task.csv", "texts": 10}
    assert "ann reads 10 texts; interval of agreement .39 wide at .90" in err


def test_a_person_gets_fewer_texts_if_the_run_has_no_more(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied_run(texts=12)

    status, _, err = run(capsys, "annotate", "people", "--rater", "ann", "--export", "task.csv")

    assert status == 0 and "ann reads 12 texts instead of 50: the run has no more" in err


BAD = {
    "an unknown student": ["--student", "nobody"],
    "no text": ["--k", "9"],
    "a spreadsheet that is not there": ["--import", "nowhere.csv"],
    "an empty spreadsheet": ["--import", "empty.csv"],
    "a spreadsheet over another file": ["--export", "runs/people/experiment.yaml"],
    "a spreadsheet in no folder": ["--export", "nowhere/x.csv"],
}


@pytest.mark.parametrize("words", BAD.values(), ids=BAD.keys())
def test_a_mistake_is_an_error_with_a_hint_and_stores_nothing(
    in_folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    copied_run(texts=12)
    Path("empty.csv").touch()

    status, out, err = run(capsys, "annotate", "people", "--rater", "ann", *words)

    assert (status, out) == (2, "")
    assert "error: " in err and "\nhint: " in err and "Traceback" not in err
    assert not list(Path("runs/people/journal").glob("human-*")) and not Path("runs/people/annotate.json").exists()
