"""A journal in several files, which earlier versions made: readers and writers see one journal."""

import json
from contextlib import ExitStack
from pathlib import Path

from skillmix.calls import Call, Decoding, GenerateKey, Message, Reply, Request
from skillmix.catalog.combinations import combination_id
from skillmix.commands import main as command
from skillmix.runs.journal.journal import JournalReader, JournalWriter, run_journal
from skillmix.runs.journal.row_writer import Attempt
from tests.runs.test_old_runs import unpack

IDS = [combination_id([str(number)], "topic") for number in range(12)]
FILES = ("calls.sqlite", "calls-2.sqlite", "calls-3.sqlite")


def request(combination: str, turn: int = 1) -> Request:
    key = GenerateKey("s", combination, 0, turn)
    return Request(key, "m", (Message("user", f"Write {combination}"),), Decoding(), 1)


def tried(combination: str, turn: int = 1) -> Attempt:
    reply = Reply(f"about {combination}")
    return Attempt(request(combination, turn), reply, 0.1, 0.5, reply)


def written(folder: Path) -> None:
    """A divided journal with the first turn of every conversation."""
    for number, file in enumerate(FILES):
        with JournalWriter(folder, file=file) as journal:
            journal.record_attempts([tried(one) for one in IDS[number::3]])


def calls(folder: Path) -> list[Call]:
    with JournalReader(folder) as reader:
        return list(reader.calls("generate"))


def test_a_writer_finds_the_calls_of_all_files_and_adds_to_the_first(tmp_path: Path) -> None:
    written(tmp_path)
    with run_journal(tmp_path) as journal:
        assert all(journal.find(request(one)) == Reply(f"about {one}") for one in IDS)
        assert journal.find(request(IDS[1], 2)) is None
        assert journal.calls_by_conversation("s") == dict.fromkeys(((one, 0) for one in IDS), 1)
        assert journal.rows_by_student() == {"s": len(IDS)}
        assert journal.spent()[0] == len(IDS)
        assert not journal.record(request(IDS[1]), Reply("another"))
        journal.record_attempts([tried(one, 2) for one in IDS])
        assert [
            call.key.turn for call in journal.conversation("s", IDS[1], 0) if isinstance(call.key, GenerateKey)
        ] == [
            1,
            2,
        ]

    expected = [f"generate/s/{one}/0/{turn}" for one in sorted(IDS) for turn in (1, 2)]
    assert [str(call.key) for call in calls(tmp_path)] == expected
    with JournalReader(tmp_path, file=FILES[0]) as first, JournalReader(tmp_path, file=FILES[1]) as second:
        assert len(list(first.calls("generate"))) == len(IDS) + 4
        assert len(list(second.calls("generate"))) == 4


def test_a_second_writer_is_refused_while_one_has_the_files(tmp_path: Path) -> None:
    written(tmp_path)
    with ExitStack() as stack:
        stack.enter_context(run_journal(tmp_path))
        for file in FILES:
            assert (tmp_path / f"{file}.lock").exists()
    with run_journal(tmp_path) as journal:
        assert journal.into_one_file()


def test_a_run_with_a_divided_journal_goes_on_without_a_call_for_what_it_has(in_folder: Path) -> None:
    unpack("divided", in_folder)
    journal = next(in_folder.glob("runs/*/journal"))
    before = [(call.key, call.outcome) for call in calls(journal)]
    (journal.parent / "finished.json").unlink(missing_ok=True)

    assert command(["run", "run.yaml", "--json"]) == 0

    assert [(call.key, call.outcome) for call in calls(journal)] == before
    entries = json.loads((journal.parent / "manifest.json").read_text("utf-8"))
    assert entries, "the run was continued"
