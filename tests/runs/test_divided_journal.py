"""A journal in several files: the results of one file, for any number of files and after any change of it."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.catalog.combinations import combination_id
from skillmix.commands import main as command
from skillmix.runs.journal import journal as journal_module
from skillmix.runs.journal.divided import run_journal
from skillmix.runs.journal.journal import JournalReader
from skillmix.runs.journal.row_writer import Try
from skillmix.steps.run import run_experiment

IDS = [combination_id([str(number)], "topic") for number in range(40)]


def request(combination: str, *, student: str = "s", turn: int = 1) -> Request:
    key = GenerateKey(student, combination, 0, turn)
    return Request(key, "m", (Message("user", f"Write {combination}"),), Decoding(), 1)


def tried(combination: str, *, student: str = "s") -> Try:
    reply = Reply(f"{student} about {combination}")
    return Try(request(combination, student=student), reply, 0.1, None, reply)


def written(folder: Path, files: int, ids: list[str], **more: Any) -> None:
    with run_journal(folder, files=files) as journal:
        journal.record_tries([tried(one, **more) for one in ids])


def keys(folder: Path) -> list[str]:
    with JournalReader(folder) as reader:
        return [str(call.key) for call in reader.calls("generate")]


def experiment(folder: Path, writers: int, **more: Any) -> Path:
    document = {
        "name": "run",
        "students": {"s": {"model": "scripted:student?skill=0.9&refusal=0.05"}},
        "graders": {"g": {"model": "scripted:grader?noise=0.02&unreadable=0.1", "rounds": 3}},
        "workers": {"writers": writers},
        "steps": [
            {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "k": [1, 2], "combinations": 12},
            {"name": "d", "stage": "dataset", "writer": "s", "graders": ["g"], "k": [1, 2], "target": 20},
        ],
    } | more
    folder.mkdir(exist_ok=True)
    path = folder / f"{writers}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def outputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, bytes]:
    """Scores, exports and data sets of the run in a folder, by name."""
    run = folder / "runs" / "run"
    capsys.readouterr()
    assert command(["scores", str(run), "--json"]) == 0
    found = {"scores": capsys.readouterr().out.encode()}
    for what in ("texts", "votes"):
        assert command(["export", str(run), "--what", what]) == 0
        found[what] = (run / f"{what}.jsonl").read_bytes()
    dataset = run / "d" / "dataset"
    return found | {file.name: file.read_bytes() for file in sorted(dataset.rglob("*")) if file.is_file()}


def test_scores_exports_and_data_sets_do_not_depend_on_the_number_of_files(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {}
    for writers in (1, 2, 4):
        folder = in_folder / str(writers)
        path = experiment(folder, writers)
        monkeypatch.chdir(folder)
        run_experiment(path)
        results[writers] = outputs(folder, capsys)

    assert len(list(Path("runs/run/journal").glob("*.sqlite"))) == 4
    assert len(results[1]) > 4
    assert results[1] == results[2] == results[4]


def test_the_number_of_files_can_change_in_the_middle_of_a_run(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, changed = in_folder / "one", in_folder / "changed"
    path = experiment(folder, 1)
    monkeypatch.chdir(folder)
    run_experiment(path)
    expected = outputs(folder, capsys)
    calls = keys(folder / "runs" / "run" / "journal")
    sent = 0
    for writers, most in ((4, 60), (1, 120), (3, None), (2, None)):
        path = experiment(changed, writers, budget={"max_calls": most})
        monkeypatch.chdir(changed)
        sent += run_experiment(path).called

    journal = changed / "runs" / "run" / "journal"
    with JournalReader(journal) as reader:
        assert len(reader.tries()) == sent
    assert set(calls) <= set(keys(journal))  # a data set begins some conversations ahead, as time allows
    assert outputs(changed, capsys) == expected


def test_divided_files_are_read_in_order_without_a_merge(tmp_path: Path) -> None:
    written(tmp_path, 4, IDS, student="b")
    written(tmp_path, 4, IDS, student="a")
    expected = [f"generate/{student}/{one}/0/1" for student in "ab" for one in sorted(IDS)]

    with mock.patch.object(journal_module, "merge", side_effect=AssertionError):
        assert keys(tmp_path) == expected
