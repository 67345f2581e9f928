"""A journal in several files: the results of one file, for any number of files and after any change of it."""

import ctypes
import multiprocessing
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from skillmix.calls import CallProblem, Decoding, GenerateKey, GradeKey, Message, Reply, Request
from skillmix.catalog.combinations import Combination, combination_id
from skillmix.commands import main as command
from skillmix.errors import UserError
from skillmix.runs.journal import journal as journal_module
from skillmix.runs.journal.divided import DividedJournal, run_journal
from skillmix.runs.journal.file_order import chains_of
from skillmix.runs.journal.journal import JournalReader, JournalWriter
from skillmix.runs.journal.row_writer import Try, now
from skillmix.runs.journal.submissions import StoredBatch
from skillmix.runs.reading import conversation_index
from skillmix.runs.reading.call_totals import call_totals
from skillmix.runs.reading.conversation_index import indexed_conversations
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

    with (
        mock.patch.object(journal_module, "merge", side_effect=AssertionError),
        mock.patch.object(conversation_index, "merge", side_effect=AssertionError),
    ):
        assert keys(tmp_path) == expected
        with JournalReader(tmp_path) as reader:
            indexed = [(one.student, one.combination) for one in indexed_conversations(reader)]

    assert indexed == [(student, one) for student in "ab" for one in sorted(IDS)]


def test_files_that_overlap_are_merged(tmp_path: Path) -> None:
    written(tmp_path, 1, IDS[:20])
    written(tmp_path, 4, IDS[20:])

    with JournalReader(tmp_path) as reader:
        assert len(chains_of(reader.files, "generate")) == 2
    assert keys(tmp_path) == [f"generate/s/{one}/0/1" for one in sorted(IDS)]


def test_a_call_that_another_file_has_is_neither_asked_nor_stored_again(tmp_path: Path) -> None:
    written(tmp_path, 4, IDS)

    with run_journal(tmp_path, files=1) as journal:
        assert all(journal.find(request(one)) == tried(one).stored for one in IDS)
        assert journal.record_all([(request(one), Reply("other")) for one in IDS]) == 0
        assert len(journal.calls_by_conversation("s")) == len(IDS)
        assert [call.key for one in IDS for call in journal.conversation("s", one, 0)] == [
            request(one).key for one in IDS
        ]


def test_a_problem_in_an_old_file_gives_way_to_a_reply_in_a_new_one(tmp_path: Path) -> None:
    last = max(IDS)
    with run_journal(tmp_path) as journal:
        journal.record(request(last), CallProblem("passing", "429"))
    with run_journal(tmp_path, files=4) as journal:
        assert journal.find(request(last)) is None
        journal.record_tries([tried(last)])
        found = [call.outcome for call in journal.conversation("s", last, 0)]

    assert found == [tried(last).stored]
    with JournalReader(tmp_path) as reader:
        assert [call.outcome for call in reader.calls("generate")] == [tried(last).stored]


def test_answers_of_people_are_read_with_divided_files(tmp_path: Path) -> None:
    votes = {
        grader: [
            (Request(GradeKey("s", one, 0, "text", grader, 0, 0), "m", (), Decoding(), 1), Reply("1")) for one in IDS
        ]
        for grader in ("g", "human:ann")
    }
    with run_journal(tmp_path, files=3) as journal:
        journal.record_all(votes["g"])
    with JournalWriter(tmp_path, file="human-ann.sqlite") as person:
        person.record_all(votes["human:ann"])

    with JournalReader(tmp_path) as reader:
        read = [(call.key.combination, call.key.grader) for call in reader.calls("grade")]  # type: ignore[union-attr]
        totals = [(total.name, total.calls) for total in call_totals(reader)]

    assert read == [(one, grader) for one in sorted(IDS) for grader in ("g", "human:ann")]
    assert sorted(totals) == [("g", 40), ("human:ann", 40)]


def test_combinations_are_in_the_file_of_their_calls(tmp_path: Path) -> None:
    combinations = [Combination(combination_id(["a"], str(number)), ("a",), str(number)) for number in range(20)]
    with run_journal(tmp_path, files=4) as journal:
        journal.add_combinations(combinations[:10])
        journal.note_combinations(combinations[10:])
        journal.record_tries([tried(one.id) for one in combinations])

    with JournalReader(tmp_path) as reader:
        assert set(reader.combinations().values()) == set(combinations)
        for _, connection in reader.files:
            lost = "SELECT count(*) FROM calls WHERE combination NOT IN (SELECT id FROM combinations)"
            assert connection.execute(lost).fetchone() == (0,)


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    written(tmp_path, 2, IDS)
    with (tmp_path / "calls-2.sqlite").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 3000)

    for opener in (lambda: run_journal(tmp_path, files=2), lambda: JournalReader(tmp_path)):
        with pytest.raises(UserError, match=r"calls-2\.sqlite"):
            opener()
    with JournalWriter(tmp_path):  # nobody holds the lock of the run
        pass


def test_two_processes_cannot_write_to_a_divided_journal(tmp_path: Path) -> None:
    with run_journal(tmp_path, files=2), pytest.raises(UserError, match="Another process is writing"):
        run_journal(tmp_path, files=4)


def test_a_thread_reports_the_error_of_any_file(tmp_path: Path) -> None:
    with run_journal(tmp_path, files=2) as journal, closing(journal.in_thread()) as thread:
        (tmp_path / "calls-2.sqlite").unlink()

        with pytest.raises(UserError, match="deleted or replaced"):
            thread.record_tries([tried(one) for one in IDS]).result()
        thread.record_tries([tried(one) for one in IDS if one < "8"]).result()
        assert thread.record_tries([]).result() is None


def write_for_ever(folder: str, counter: ctypes.c_int) -> None:
    with run_journal(Path(folder), files=3) as journal, closing(journal.in_thread()) as thread:
        for number in range(1_000_000):
            ids = [combination_id([str(place)], str(number)) for place in range(20)]
            thread.record_tries([tried(one) for one in ids]).result()
            counter.value = number + 1


def test_a_kill_loses_no_row_of_any_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    counter = context.RawValue(ctypes.c_int, 0)
    process = context.Process(target=write_for_ever, args=(str(tmp_path), counter))
    process.start()
    while counter.value < 10:
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    stored = counter.value

    kept = keys(tmp_path)
    assert 20 * stored <= len(kept) <= 20 * (stored + 1)
    with run_journal(tmp_path, files=3) as journal:
        assert isinstance(journal, DividedJournal)
        assert journal.spent()[0] == len(kept)
        assert journal.into_one_file()
    assert [file.name for file in tmp_path.glob("*-wal")] == []


def test_batches_and_several_files_exclude_each_other(tmp_path: Path) -> None:
    batch = StoredBatch("tag", "m", "openai", "http://127.0.0.1", 1, "written", None, None, None, now(), now())
    with run_journal(tmp_path / "one") as journal:
        journal.submissions.submit(batch, [(request(IDS[0]), 0.01)])
    with pytest.raises(UserError, match="in batches"):
        run_journal(tmp_path / "one", files=2)
    with run_journal(tmp_path / "one") as journal:
        assert [one.tag for one in journal.submissions.batches()] == ["tag"]

    written(tmp_path / "two", 2, IDS)
    with run_journal(tmp_path / "two") as journal, pytest.raises(UserError, match="several files"):
        journal.submissions.submit(batch, [(request(IDS[0], turn=2), 0.01)])
