"""The journal: nothing lost, nothing doubled, nothing overwritten."""

import ctypes
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skillmix.calls import CallProblem, Decoding, GenerateKey, GradeKey, Message, Reply, Request
from skillmix.catalog.combinations import combination_of
from skillmix.errors import UserError
from skillmix.runs import database
from skillmix.runs.journal import Attempt, JournalReader, JournalWriter
from tests.runs.databases import attempts, messages

DECODING = Decoding()


def request(turn: int = 1, *, generation: int = 0, prompt: str = "Hello", seed: int = 1) -> Request:
    key = GenerateKey("base", "c0ffee", generation, turn)
    return Request(key, "openai:m", (Message("user", prompt),), DECODING, seed)


def grading(round_number: int, attempt: int = 0) -> Request:
    key = GradeKey("base", "c0ffee", 0, "abcd", "gpt", round_number, attempt)
    return Request(key, "openai:g", (Message("user", "Grade"),), DECODING, round_number)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    reply = Reply("Answer: hi \x00 ☃", "stop", 10, 5, 0.01, ("seed",))
    combination = combination_of(["a, b", "c"], "Regatta, sailing")

    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.add_combinations([combination])
        assert journal.record(request(), reply)
        assert journal.record(request(2), CallProblem("final", "refusal", "no"))

    with JournalReader(tmp_path / "run.sqlite") as journal:
        first, second = journal.calls("generate")
        assert journal.combinations() == {combination.id: combination}
        assert [m.content for m in messages(journal).values()] == ["Hello", "Answer: hi \x00 ☃"]
    assert (first.key, first.outcome, first.seed, first.decoding) == (request().key, reply, 1, DECODING)
    assert second.outcome == CallProblem("final", "refusal", "no")
    assert first.request_hash == request().content_hash


def test_three_rounds_stay_three_records(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        for number in range(3):
            journal.record(grading(number), Reply(f"reply {number}"))

    with JournalReader(tmp_path / "run.sqlite") as journal:
        texts = [call.outcome.text for call in journal.calls("grade") if isinstance(call.outcome, Reply)]
    assert texts == ["reply 0", "reply 1", "reply 2"]


def test_a_message_is_stored_once(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        for generation in range(50):
            journal.record(request(generation=generation), Reply(f"{generation}"))

    with JournalReader(tmp_path / "run.sqlite") as journal:
        assert len(messages(journal)) == 51


def test_a_reply_is_never_replaced(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        assert journal.record(request(), Reply("first"))
        assert not journal.record(request(), Reply("second"))

    with JournalReader(tmp_path / "run.sqlite") as journal:
        assert [c.outcome for c in journal.calls("generate")] == [Reply("first")]


def test_a_passing_problem_gives_way_to_a_reply_and_a_final_one_does_not(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.record(request(1), CallProblem("passing", "429"))
        journal.record(request(2), CallProblem("final", "filtered"))
        assert journal.record(request(1), Reply("at last"))
        assert not journal.record(request(2), Reply("too late"))

    with JournalReader(tmp_path / "run.sqlite") as journal:
        outcomes = [call.outcome for call in journal.calls("generate")]
    assert outcomes == [Reply("at last"), CallProblem("final", "filtered")]


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        (request(prompt="Other"), "prompt"),
        (request(seed=2), r"seed \(1 → 2\)"),
        (Request(request().key, "openai:n", request().messages, DECODING, 1), r"model \(openai:m → openai:n\)"),
        (
            Request(request().key, "openai:m", request().messages, Decoding(temperature=0.0), 1),
            r"temperature \(0.7 → 0.0\)",
        ),
    ],
)
def test_a_key_with_another_request_is_an_error_that_names_the_setting(
    tmp_path: Path, changed: Request, setting: str
) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.record(request(), Reply("first"))

        with pytest.raises(UserError, match=f"another {setting}"):
            journal.record(changed, Reply("second"))


def test_a_failed_batch_leaves_nothing_behind(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.record(request(1), Reply("first"))
        with pytest.raises(UserError):
            journal.record_all([(request(2), Reply("new")), (request(1, prompt="Other"), Reply("bad"))])

    with JournalReader(tmp_path / "run.sqlite") as journal:
        assert len(list(journal.calls("generate"))) == 1


def test_an_import_with_another_reply_is_refused(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.record(request(), Reply("one"), origin="imported")
        assert not journal.record(request(), Reply("one"), origin="imported")
        with pytest.raises(UserError, match="another reply"):
            journal.record(request(), Reply("two"), origin="imported")


def test_tries_are_append_only(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.record_attempts([Attempt(request(), CallProblem("passing", "HTTP 429"), 0.1, None)])
        journal.record_attempts([Attempt(request(), Reply("hi", "stop"), 0.2, None)])

    with JournalReader(tmp_path / "run.sqlite") as journal:
        assert [(outcome, reason) for _, outcome, reason in attempts(journal)] == [
            ("passing", "HTTP 429"),
            ("reply", "stop"),
        ]


def test_only_one_process_writes(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite"), pytest.raises(UserError, match="Another process is writing"):
        subprocess_writer(tmp_path)


def subprocess_writer(folder: Path) -> None:
    """Open a second writer in another process and raise here what it raised there."""
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from skillmix.errors import UserError\nfrom skillmix.runs.journal import JournalWriter\n"
        "try:\n    JournalWriter(Path(sys.argv[1]) / 'run.sqlite')\n"
        "except UserError as error:\n    print(error.message)\n    sys.exit(2)\n"
    )
    result = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False)
    if result.returncode == 2:
        raise UserError(result.stdout)


def test_readers_work_while_a_writer_writes(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.record(request(), Reply("first"))
        with JournalReader(tmp_path / "run.sqlite") as reader:
            assert len(list(reader.calls("generate"))) == 1


def write_forever(folder: str, counter: ctypes.c_int) -> None:
    with JournalWriter(Path(folder) / "run.sqlite") as journal:
        for generation in range(1_000_000):
            journal.record(request(generation=generation), Reply(f"reply {generation}"))
            counter.value = generation + 1


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.4])
def test_kill_loses_no_row_that_was_recorded(tmp_path: Path, delay: float) -> None:
    context = multiprocessing.get_context("spawn")
    counter = context.RawValue(ctypes.c_int, 0)  # without a lock: whoever is killed may be holding it
    process = context.Process(target=write_forever, args=(str(tmp_path), counter))
    process.start()
    while counter.value == 0:
        time.sleep(0.01)
    time.sleep(delay)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    recorded = counter.value

    with JournalReader(tmp_path / "run.sqlite") as reader:
        kept = [call.key for call in reader.calls("generate")]

    assert len(kept) in (recorded, recorded + 1)
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        assert not journal.record(request(generation=0), Reply("reply 0"))


def filled(folder: Path, rows: int = 300) -> Path:
    with JournalWriter(folder / "run.sqlite") as journal:
        journal.record_all((request(generation=g), Reply(f"reply {g} " * 40)) for g in range(rows))
    return folder / "run.sqlite"


def test_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = filled(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()

    for opener in (JournalReader, JournalWriter):
        with pytest.raises(UserError, match="version 99"):
            opener(tmp_path / "run.sqlite")

    assert path.read_bytes() == before


@pytest.mark.parametrize("share", [0.0005, 0.1, 0.5, 0.99])
def test_a_torn_journal_is_refused_and_left_alone(tmp_path: Path, share: float) -> None:
    path = filled(tmp_path)
    content = path.read_bytes()[: max(1, int(path.stat().st_size * share))]
    path.write_bytes(content)

    for opener in (JournalReader, JournalWriter):
        with pytest.raises(UserError, match=r"malformed|not a database|is damaged"):
            opener(tmp_path / "run.sqlite")

    assert path.read_bytes() == content


def test_a_hole_in_the_middle_is_never_read_as_data(tmp_path: Path) -> None:
    path = filled(tmp_path)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 8192] = bytes(8192)
    path.write_bytes(content)

    with pytest.raises(UserError) as caught, JournalReader(tmp_path / "run.sqlite") as reader:
        list(reader.calls("generate"))

    assert caught.value.hint


def test_a_changed_letter_is_noticed(tmp_path: Path) -> None:
    path = filled(tmp_path, rows=1)
    path.write_bytes(path.read_bytes().replace(b"reply 0 reply 0", b"reply 0 reply 1", 1))

    with pytest.raises(UserError, match="damaged"), JournalReader(tmp_path / "run.sqlite") as reader:
        list(reader.calls("generate"))


@pytest.mark.parametrize("content", [b"binary \xff\xfe garbage" * 100, b"x"])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.sqlite").write_bytes(content)

    for opener in (JournalReader, JournalWriter):
        with pytest.raises(UserError, match=r"not a (journal|database)"):
            opener(tmp_path / "run.sqlite")

    assert (tmp_path / "run.sqlite").read_bytes() == content


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE precious (x)")
    connection.close()

    with pytest.raises(UserError, match="not a journal"):
        JournalWriter(tmp_path / "run.sqlite")


def test_an_older_file_migrates_after_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, rows=3)
    now = database.VERSION
    monkeypatch.setattr(database, "VERSION", now + 1)
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, "ALTER TABLE attempt ADD COLUMN extra TEXT;"))
    wanted = database.SCHEMA.replace("    seconds  REAL NOT NULL,\n", "    seconds  REAL NOT NULL,\n    extra TEXT,\n")
    monkeypatch.setattr(database, "SCHEMA", wanted)

    with JournalReader(tmp_path / "run.sqlite") as reader:
        assert len(list(reader.calls("generate"))) == 3

    connection = sqlite3.connect(tmp_path / "run.sqlite")
    assert connection.execute("PRAGMA user_version").fetchone()[0] == now + 1
    assert "extra" in [row[1] for row in connection.execute("PRAGMA table_info(attempt)")]
    connection.close()
    copy = sqlite3.connect(tmp_path / f"run.sqlite.version-{now}")
    assert copy.execute("PRAGMA user_version").fetchone()[0] == now
    copy.close()
    monkeypatch.undo()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE call SET messages = 'x'",
        "UPDATE call SET decoding = '{\"other\": 1}'",
        "UPDATE combination SET topic = 'Sewinf'",
        "UPDATE combination SET skills = 'x'",
        "PRAGMA user_version = 0",
    ],
)
def test_damaged_rows_are_told_not_read(tmp_path: Path, sql: str) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.add_combinations([combination_of(["a"], "Sewing")])
        journal.record(request(), Reply("hi"))
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    connection.execute(sql)
    connection.commit()
    connection.close()

    with pytest.raises(UserError, match=r"damaged|no valid version"), JournalReader(tmp_path / "run.sqlite") as reader:
        reader.combinations()
        list(reader.calls("generate"))


def test_a_temperature_of_1_is_one_of_1_0_and_half_characters_are_replaced(tmp_path: Path) -> None:
    whole, real = (Request(request().key, "m", (), Decoding(temperature=t), 1) for t in (1, 1.0))

    with JournalWriter(tmp_path / "run.sqlite") as journal:
        assert journal.record(whole, Reply("half \ud800 character"))
        assert not journal.record(real, Reply("half \ud800 character"))

    with JournalReader(tmp_path / "run.sqlite") as reader:
        (call,) = reader.calls("generate")
    assert call.outcome == Reply("half \ufffd character")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_folder_can_be_read(tmp_path: Path) -> None:
    path = filled(tmp_path, rows=2)
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with JournalReader(tmp_path / "run.sqlite") as reader:
            assert len(list(reader.calls("generate"))) == 2
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_journal_that_is_gone_takes_nothing_more(tmp_path: Path, replaced: bool) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.record(request(), Reply("Hi"))
        journal.path.rename(tmp_path / "elsewhere")
        if replaced:
            journal.path.touch()

        with pytest.raises(UserError, match="deleted or replaced"):
            journal.record(request(generation=1), Reply("Ho"))
