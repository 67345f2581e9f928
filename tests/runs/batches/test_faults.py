"""Runs in batches at a provider that fails in every way have the scores of a direct run, and nothing is paid twice."""

import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skillmix.commands import main as command
from skillmix.commands.run import IN_BATCHES
from skillmix.errors import UserError
from skillmix.hashing import ranked
from skillmix.models import specs
from skillmix.runs import scheduler
from skillmix.runs.batches import batched
from skillmix.runs.batches.batched import BatchPace
from skillmix.runs.run import open_run
from skillmix.scores.sentences import scored_run
from skillmix.scores.status import run_status
from tests.runs.batches.experiments import FAST, written
from tests.runs.batches.stub_provider import StubProvider, serving

SHAPES = ("openai", "anthropic")
FAULTS = {
    "both": [
        "repeats lines",
        "drops lines",
        "corrupts lines",
        "lines with 429",
        "lines with 500",
        "null lines",
        "expires",
        "is cancelled",
        "late file",
        "500 before creation",
        "500 after creation",
        "cut after creation",
        "429 at creation",
        "unknown states",
        "upper-case states",
        "no usage",
        "wrong id",
        "listed late+500 after creation",
    ],
    "openai": [
        "completes without a file",
        "empty file id",
        "fails at validation",
        "token limit",
        "refuses seeds",
        "upload fails",
        "forgets metadata+500 after creation",
    ],
}
ONLY_ANTHROPIC = [("anthropic", "no counts"), ("anthropic", "no counts+500 after creation")]
CASES = [("openai", fault) for faults in FAULTS.values() for fault in faults] + [
    ("anthropic", fault) for fault in FAULTS["both"]
]
ONCE = [("azure", "upper-case states"), *ONLY_ANTHROPIC]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(scheduler, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(batched, "PACE", FAST)


def provider(shape: str, *faults: str, **more: Any) -> StubProvider:
    own = frozenset(part for fault in faults for part in fault.split("+"))
    return StubProvider(own | ({"anthropic"} if shape == "anthropic" else frozenset()), **more)


class DirectRun(NamedTuple):
    keys: dict[str, str]
    calls: int
    rows: list[dict[str, Any]]


def rows(name: str) -> list[dict[str, Any]]:
    """The scores of a run, without its name."""
    return [{**score.json_row(), "run": None} for score in scored_run(open_run(name)).scores]


def keys(name: str) -> dict[str, str]:
    """The request hashes of a run's calls, by key."""
    with open_run(name).read() as journal:
        calls = [*journal.calls("generate"), *journal.calls("grade")]
    return {str(call.key): call.request_hash for call in calls if call.outcome is not None}


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DirectRun]:
    """A direct run for each shape."""
    folder = tmp_path_factory.mktemp("direct")
    found: dict[str, DirectRun] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for shape in SHAPES:
            with serving(provider(shape)) as stub:
                path = written(folder, stub.address, name=shape, shape=shape, batch=False)
                assert command(["run", str(path), "--json"]) == 1  # one grading cannot be read
                found[shape] = DirectRun(keys(shape), stub.direct, rows(shape))
    return found


def check(direct: DirectRun, stub: StubProvider) -> None:
    """The run equals the direct one, and every call was answered, and so billed, once."""
    assert keys("run") == direct.keys
    assert rows("run") == direct.rows
    assert stub.violations == []
    assert stub.direct == 0
    assert set(stub.billed.values()) == {1}
    assert len(stub.billed) == direct.calls
    assert run_status("run").submitted == 0


@pytest.mark.parametrize(("shape", "fault"), [*CASES, *ONCE], ids=lambda value: value)
def test_whatever_a_provider_does_scores_are_those_of_a_direct_run_and_each_call_is_paid_once(
    in_folder: Path, capsys: pytest.CaptureFixture[str], direct: dict[str, DirectRun], shape: str, fault: str
) -> None:
    with serving(provider(shape, fault)) as stub:
        stub.add_foreign(5, size=8)
        ended = command(["run", str(written(in_folder, stub.address, shape=shape)), "--json"])

        assert ended == 1, capsys.readouterr().err
        check(direct["anthropic" if shape == "anthropic" else "openai"], stub)
        if "creation" in fault and fault != "429 at creation":
            assert stub.searches > 1  # pages of two
        if fault == "wrong id":
            assert stub.creations == 4 and stub.searches


@pytest.mark.skipif(not os.environ.get("SKILLMIX_LONG"), reason="takes a minute; set SKILLMIX_LONG=1")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_lost_creation_is_paid_once_at_the_pace_of_users(
    in_folder: Path, direct: dict[str, DirectRun], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched, "PACE", BatchPace())
    with serving(provider(shape, "500 after creation")) as stub:
        assert command(["run", str(written(in_folder, stub.address, shape=shape)), "--json"]) == 1

        check(direct[shape], stub)


@pytest.mark.parametrize("number", range(60 if os.environ.get("SKILLMIX_LONG") else 1))
def test_several_faults_at_once_change_nothing_whether_a_run_waits_or_not(
    in_folder: Path, capsys: pytest.CaptureFixture[str], direct: dict[str, DirectRun], number: int
) -> None:
    shape = SHAPES[number % 2]
    faults = ranked([fault for of, fault in CASES if of == shape], "faults", number)[: 2 + number % 4]
    with serving(provider(shape, *faults)) as stub:
        stub.add_foreign(3, size=8)
        run = ["run", str(written(in_folder, stub.address, shape=shape)), "--json"]
        ended = IN_BATCHES
        for _ in range(60):
            ended = command([*run, *(["--no-wait"] if number % 3 else [])])
            if ended != IN_BATCHES:
                break

        assert ended == 1, (faults, capsys.readouterr().err)
        check(direct[shape], stub)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fault", ["lines with 400", "fails on a line"])
def test_a_call_that_is_refused_by_itself_fails_alone_and_the_next_run_asks_it_again(
    in_folder: Path, capsys: pytest.CaptureFixture[str], direct: dict[str, DirectRun], shape: str, fault: str
) -> None:
    if (shape, fault) == ("anthropic", "fails on a line"):
        pytest.skip("message batches name no lines")
    with serving(provider(shape, fault)) as stub:
        path = written(in_folder, stub.address, shape=shape)
        assert command(["run", str(path), "--json"]) == 1
        assert "failed:" in capsys.readouterr().err

        for _ in range(4):
            command(["run", str(path), "--json"])

        check(direct[shape], stub)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_that_does_not_wait_goes_on_batch_by_batch(
    in_folder: Path, capsys: pytest.CaptureFixture[str], direct: dict[str, DirectRun], shape: str
) -> None:
    with serving(provider(shape, "never finishes")) as stub:
        path = written(in_folder, stub.address, shape=shape)
        run = ["run", str(path), "--json", "--no-wait"]

        assert command(run) == IN_BATCHES
        said = capsys.readouterr().err
        assert "first turns of student s: 8 calls in" in said and "rerun the command" in said
        assert command(run) == IN_BATCHES
        assert len(stub.batches) == 1 and sum(stub.billed.values()) == 0
        status = run_status("run")
        assert (status.submitted, status.missing, [part.part for part in status.batches]) == (8, 16, ["first turns"])
        assert command(["status", "run"]) == 0
        assert "in batches: 8 calls\n  first turns of student s" in capsys.readouterr().out

        stub.is_finishing = True
        ended = [IN_BATCHES]
        while ended[-1] == IN_BATCHES:
            assert len(ended) < 30
            ended.append(command(run))

        assert ended[-1] == 1 and len(ended) > 4
        check(direct[shape], stub)


def test_a_run_with_calls_in_batches_can_be_read_by_every_command(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(provider("openai")) as stub:
        path = written(in_folder, stub.address)
        run = ["run", str(path), "--json", "--no-wait"]
        while run_status_of_gradings() == 0:
            assert command(run) == IN_BATCHES
        reading = ["scores run", "texts run", "graders run", "export run --what calls", "export run --what votes"]
        reading += ["report run"] if os.environ.get("SKILLMIX_LONG") else []
        for words in reading:
            assert command(words.split()) == 0, words


def run_status_of_gradings() -> int:
    try:
        return sum(part.calls for part in run_status("run").batches if part.part == "gradings")
    except UserError:  # not there yet
        return 0


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_changes_from_batches_to_direct_calls_and_back_and_asks_nothing_twice(
    in_folder: Path, capsys: pytest.CaptureFixture[str], direct: dict[str, DirectRun], shape: str
) -> None:
    with serving(provider(shape, "never finishes")) as stub:
        path = written(in_folder, stub.address, shape=shape)
        assert command(["run", str(path), "--json", "--no-wait"]) == IN_BATCHES
        plain = written(in_folder, stub.address, shape=shape, batch=False)

        assert command(["run", str(plain), "--json", "--no-wait"]) == IN_BATCHES
        assert stub.direct == 0

        stub.is_finishing = True
        assert command(["run", str(plain), "--json"]) == 1

        calls = direct[shape].calls
        assert (len(stub.billed), stub.direct) == (8, calls - 8)
        assert keys("run") == direct[shape].keys
        assert rows("run") == direct[shape].rows
        assert command(["run", str(written(in_folder, stub.address, shape=shape)), "--json"]) == 1
        assert (len(stub.billed), stub.direct) == (8, calls - 8)


def test_calls_of_a_refused_batch_are_made_directly_if_the_run_is_direct_by_now(
    in_folder: Path, direct: dict[str, DirectRun]
) -> None:
    with serving(provider("openai", "fails at validation")) as stub:
        assert command(["run", str(written(in_folder, stub.address)), "--json", "--no-wait"]) == IN_BATCHES

        assert command(["run", str(written(in_folder, stub.address, batch=False)), "--json"]) == 1

        assert (len(stub.batches), len(stub.billed), stub.direct) == (1, 0, direct["openai"].calls)
        assert keys("run") == direct["openai"].keys


def test_azure_gets_its_key_in_its_own_header_and_its_file_is_waited_for(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_KEY", "abcdefgh12345678")
    with serving(provider("azure")) as stub:
        path = written(in_folder, stub.address, shape="azure", key="STUB_KEY", combinations=1)
        assert command(["run", str(path), "--json"]) in (0, 1)

        assert {headers["api-key"] for headers in stub.headers} == {"abcdefgh12345678"}
        assert stub.file_looks > len(stub.files)
    journal = Path("runs/run/run.sqlite").read_bytes()
    assert b"abcdefgh12345678" not in journal


def test_batches_stay_within_the_providers_limits(
    in_folder: Path, capsys: pytest.CaptureFixture[str], direct: dict[str, DirectRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    small = replace(specs.DIALECTS["openai"], most_requests=5, most_bytes=6000)
    monkeypatch.setitem(specs.DIALECTS, "openai", small)
    with serving(provider("openai", most_requests=5)) as stub:
        assert command(["run", str(written(in_folder, stub.address)), "--json"]) == 1

        check(direct["openai"], stub)
        assert all(len(raw) <= 6000 for _, raw in stub.files.values())
        assert max(len(batch.calls) for batch in stub.batches.values()) <= 5


def test_a_provider_that_never_finishes_is_left_after_the_time_that_the_user_gives(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(provider("openai", "never finishes")) as stub:
        path = written(in_folder, stub.address)

        assert command(["run", str(path), "--json", "--wait", "0.00005"]) == IN_BATCHES

        assert len(stub.batches) == 1
        assert "batches are unfinished" in capsys.readouterr().err


def test_an_interrupt_leaves_batches_at_once_and_the_next_run_reads_them(
    in_folder: Path, capsys: pytest.CaptureFixture[str], direct: dict[str, DirectRun]
) -> None:
    with serving(provider("openai", "never finishes")) as stub:
        path = written(in_folder, stub.address)

        def interrupt() -> None:
            while not any(batch.looks > 1 for batch in stub.batches.values()):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        assert command(["run", str(path), "--json"]) == 130
        thread.join()

        assert "stopping: waiting for 0 calls in flight" in capsys.readouterr().err
        assert (len(stub.batches), run_status("run").submitted) == (1, 8)
        stub.is_finishing = True
        assert command(["run", str(path), "--json"]) == 1
        check(direct["openai"], stub)


def test_a_lost_message_batch_is_not_sent_again_while_another_of_its_size_is_under_way(
    in_folder: Path, direct: dict[str, DirectRun]
) -> None:
    with serving(provider("anthropic", "500 before creation")) as stub:
        stub.add_foreign(2, size=8, state="in_progress")

        assert command(["run", str(written(in_folder, stub.address, shape="anthropic")), "--json"]) == 1

        check(direct["anthropic"], stub)
        assert stub.searches > 4 and stub.creations == 5


def test_a_provider_that_refuses_every_batch_is_not_asked_for_ever(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(provider("openai", "always fails at validation")) as stub:
        assert command(["run", str(written(in_folder, stub.address)), "--json"]) == 1

        assert "failed: 8 calls: batch failed: internal validation went wrong" in capsys.readouterr().err
        assert len(stub.batches) == FAST.refusals + 1 and not stub.billed
        assert (run_status("run").submitted, run_status("run").failed) == (0, 8)


def test_a_batch_without_a_trace_is_sent_again_and_its_calls_count_with_their_worst_case(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(provider("openai", "never finishes")) as stub:
        path = written(in_folder, stub.address)
        assert command(["run", str(path), "--json", "--no-wait"]) == IN_BATCHES
        stub.batches.clear()
        stub.is_finishing = True

        assert command(["run", str(path), "--json"]) == 1

        assert "no longer knows it" in capsys.readouterr().err
        assert set(stub.billed.values()) == {1}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fault", ["every creation is lost", "wrong ids"])
def test_two_batches_in_a_row_that_nobody_shows_stop_the_step(
    in_folder: Path, capsys: pytest.CaptureFixture[str], shape: str, fault: str
) -> None:
    with serving(provider(shape, fault, "hides batches")) as stub:
        path = written(in_folder, stub.address, shape=shape)

        ended = [command(["run", str(path), "--json", "--no-wait"]) for _ in range(4)]

        assert ended == ([2] * 4 if fault == "every creation is lost" else [IN_BATCHES, IN_BATCHES, 2, 2])
        said = capsys.readouterr().err
        assert f"batches are lost. {stub.address} does not list 2 consecutive batches" in said
        assert stub.creations == 2

        stub.faults -= {fault, "hides batches"}
        assert command(["run", str(path), "--json", "--forget-batches"]) == 1
        assert stub.creations == 6


@pytest.mark.parametrize("shape", SHAPES)
def test_a_clock_that_jumps_does_not_make_a_batch_look_lost(
    in_folder: Path, direct: dict[str, DirectRun], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, jumps = time.time, count()
    monkeypatch.setattr(time, "time", lambda: true() + 7200 * next(jumps))
    with serving(provider(shape, "500 after creation", "listed late")) as stub:
        command(["run", str(written(in_folder, stub.address, shape=shape)), "--json"])

        check(direct[shape], stub)
        assert stub.creations == 4


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_whose_results_cannot_be_read_are_not_sent_again_by_the_same_run(
    in_folder: Path, capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    with serving(provider(shape, "unreadable results")) as stub:
        run = ["run", str(written(in_folder, stub.address, shape=shape)), "--json"]
        assert command(run) == 1

        said = capsys.readouterr().err
        assert "8 results cannot be read" in said and "failed: 8 calls: unreadable result of a batch" in said
        assert stub.creations == 1 and (run_status("run").submitted, run_status("run").failed) == (0, 8)

        stub.faults -= {"unreadable results"}
        assert command(run) == 1
        assert stub.creations == 5 and len(stub.billed) > 8


def test_a_user_can_give_up_batches_and_the_calls_are_made_again(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(provider("openai", "never finishes")) as stub:
        path = written(in_folder, stub.address)
        assert command(["run", str(path), "--json", "--no-wait"]) == IN_BATCHES
        stub.is_finishing = True

        assert command(["run", str(path), "--json", "--forget-batches"]) == 1

        assert "8 calls of a batch will be repeated" in capsys.readouterr().err
        assert len(stub.batches) == 5
        with closing(sqlite3.connect("runs/run/run.sqlite")) as connection:
            tries = connection.execute("SELECT count(*) FROM attempt WHERE reason = 'given up with its batch'")
            assert tries.fetchone()[0] == 8


def test_a_batch_at_another_address_is_not_forgotten(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(provider("openai", "never finishes")) as stub, serving(provider("openai")) as other:
        assert command(["run", str(written(in_folder, stub.address)), "--json", "--no-wait"]) == IN_BATCHES

        assert command(["run", str(written(in_folder, other.address)), "--json"]) == 2

        said = capsys.readouterr().err
        assert f"is in progress at {stub.address} (openai)" in said and "--forget-batches" in said
        assert not other.batches


@pytest.mark.parametrize("shape", SHAPES)
def test_a_server_without_batches_is_found_before_the_first_call(
    in_folder: Path, capsys: pytest.CaptureFixture[str], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = provider(shape)
    whole = stub.application

    def without() -> Any:
        application = whole()
        for resource in [r for r in application.router._resources if "batches" in (r.canonical or "")]:
            application.router._resources.remove(resource)
            application.router.unindex_resource(resource)
        return application

    monkeypatch.setattr(stub, "application", without)
    with serving(stub):
        assert command(["run", str(written(in_folder, stub.address, shape=shape)), "--json"]) == 2

    assert "cannot be used: HTTP 404" in capsys.readouterr().err
