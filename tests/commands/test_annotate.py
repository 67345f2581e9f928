"""`skillmix annotate` as a process: links, answers over HTTP, and a clean end."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from time import sleep
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from skillmix.runs.run import open_run
from skillmix.runs.texts import run_records
from tests.commands.command_line import run
from tests.validation.run_for_people import copied_run


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


def answer(home: str, number: int) -> None:
    """Answer a text as the page does."""
    with urlopen(f"{home}items/{number}", timeout=30) as reply:
        item = json.load(reply)
    votes = {question["name"]: 1 for question in item["questions"]}
    body = {"item": item["id"], "id": f"x{number}", "votes": votes, "comment": "", "seconds": None}
    headers = {"Content-Type": "application/json", "Origin": home.rsplit("/", 2)[0]}
    with urlopen(Request(f"{home}answers", json.dumps(body).encode(), headers), timeout=30) as reply:
        assert json.load(reply) == {"stored": True, "is_new": True}


def ask_until_it_ends(home: str) -> None:
    """Keep a server busy, so that a signal comes amid an answer."""
    with suppress(OSError, HTTPException):
        while True:
            urlopen(f"{home}state", timeout=30).close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_answers_are_counted_at_the_end_and_the_exit_status_names_the_signal(in_folder: Path, number: int) -> None:
    copied_run(texts=12)
    process, addresses = start("--rater", "ann", "--rater", "bo", "--n", "5")
    try:
        answer(addresses["ann"], 0)
        Thread(target=ask_until_it_ends, args=(addresses["bo"],)).start()
        sleep(0.1)
    finally:
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)

    assert process.returncode == 128 + number
    assert "ann: 1 of 5 texts answered" in errors and "bo: 0 of 5 texts answered" in errors
    assert "Traceback" not in errors and errors.endswith("run the same command again to continue\n")
    # Nothing is left beside the file, so that the file alone can be sent to somebody.
    assert {p.name for p in Path("runs/people/people").glob("ann*")} == {
        "ann.sqlite",
        "ann.sqlite.lock",
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
    assert "ann reads 10 texts; the agreement interval is .39 wide at .90" in err


def test_a_person_gets_fewer_texts_if_the_run_has_no_more(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied_run(texts=12)

    status, _, err = run(capsys, "annotate", "people", "--rater", "ann", "--export", "task.csv")

    assert status == 0 and "ann reads 12 texts instead of 50, because the run has no more" in err


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
    assert not list(Path("runs/people/people").glob("*"))


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is needed")
def test_the_file_of_a_person_alone_has_every_answer_when_the_server_was_killed(in_folder: Path) -> None:
    copied_run(texts=12)
    process, addresses = start("--rater", "ann", "--n", "5")
    try:
        for number in range(3):
            answer(addresses["ann"], number)
    finally:
        process.kill()
        process.communicate(timeout=30)

    killed = Path("runs/people/people/ann.sqlite")
    shutil.copy(killed, "copy.sqlite")
    for left in Path("runs/people/people").glob("ann*"):
        left.unlink()
    shutil.copy("copy.sqlite", killed)
    assert len([b for b in run_records(open_run("people")).ballots if b.grader == "human:ann"]) == 3


def test_broken_requests_leave_no_trace_in_the_terminal(in_folder: Path) -> None:
    copied_run(texts=12)
    process, addresses = start("--rater", "ann", "--n", "5")
    try:
        home = urlsplit(addresses["ann"])
        host = f"Host: {home.netloc}\r\nOrigin: http://{home.netloc}\r\n"
        post = f"POST {home.path}answers HTTP/1.1\r\n{host}Content-Type: application/json\r\n"
        wholes = [
            f"{post}Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
            f"{post}Content-Length: x\r\n\r\n",
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
            "\x16\x03\x01 hello\r\n\r\n",
        ]
        for words in wholes:
            assert reply_to(home.port or 0, words).split()[1] == b"400", words
        for _ in range(3):
            reply_to(home.port or 0, f"{post}Content-Length: 4000\r\n\r\n{{", is_impatient=True)
        answer(addresses["ann"], 0)
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)

    assert "ann: 1 of 5 texts answered" in errors
    assert "Traceback" not in errors and "Error" not in errors and len(errors.splitlines()) < 6


def reply_to(port: int, words: str, *, is_impatient: bool = False) -> bytes:
    """The reply to raw words; nothing if the sender goes away at once, in the middle of its request."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as opened:
        opened.sendall(words.encode("latin-1"))
        if is_impatient:
            sleep(0.1)  # the server begins to read
            return b""
        return opened.recv(1000)


def test_a_renamed_copy_of_answers_is_named(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people = copied_run(texts=12)
    people.people.mkdir()
    (people.people / "ann (1).sqlite").write_bytes(people.file.read_bytes())

    status, _, err = run(capsys, "graders", "people")

    assert status == 2
    assert "ann (1).sqlite cannot be an answer file" in err and "hint: Move it away" in err


@pytest.mark.parametrize("words", [["--agreement", "7"], ["--agreement", "nan"], ["--width", "1e-300"]])
def test_a_number_out_of_range_is_an_error_with_a_hint(
    in_folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    copied_run(texts=12)

    status, _, err = run(capsys, "annotate", "people", "--rater", "ann", *words, "--export", "task.csv")

    assert status == 2 and f"{words[1]}" in err and "hint: " in err
