"""What batches cost: half the price, and the worst case of all that is submitted until the results are there."""

import json
import re
from pathlib import Path

import pytest

from skillmix.calls import CallProblem, Decoding, GenerateKey, Message, Reply, Request
from skillmix.commands import main as command
from skillmix.commands.run import IN_BATCHES
from skillmix.experiment.costs import Price
from skillmix.runs.budget import Budget, Task
from skillmix.runs.journal import JournalReader, JournalWriter, StoredBatch
from skillmix.runs.run import open_run
from skillmix.scores.status import run_status
from tests.runs.batches.experiments import written
from tests.runs.batches.stub_provider import serving
from tests.runs.batches.test_faults import fast, provider

__all__ = ["fast"]
PRICES = "openai:student: {input: 1000, output: 2000}\nopenai:grader: {input: 1000, output: 2000}\n"
BOTH_COSTS = re.compile(
    r"in batches \(batch: true\), (\S+) US dollars are expected and (\S+) at most; with direct calls, (\S+) and (\S+)\."
)


def request(number: int = 0) -> Request:
    return Request(GenerateKey("s", "c", number, 1), "m", (Message("user", "Hi"),), Decoding(max_tokens=100), 7)


def batch(tag: str, requests: int) -> StoredBatch:
    at = "2026-01-01T00:00:00.000+00:00"
    return StoredBatch(tag, "student:s", "openai", "http://x/v1", requests, "written", None, None, None, at, at)


def test_a_call_in_a_batch_is_a_state_of_its_own_until_its_outcome_takes_the_place(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.record(request(1), CallProblem("failed", "HTTP 400"))
        journal.submissions.submit(batch("t", 2), [(request(0), 0.5), (request(1), None)])

    with JournalWriter(tmp_path / "run.sqlite") as journal:
        calls = journal.submissions.calls("t")
        assert [(str(call.key), call.worst) for call in calls] == [
            (str(request(n).key), w) for n, w in ((0, 0.5), (1, None))
        ]
        assert [journal.find(request(number)) for number in (0, 1)] == [None, None]
        assert journal.spent() == (0, 0.0)
        journal.record(request(0), Reply("x", cost_usd=0.25))
        assert isinstance(journal.find(request(0)), Reply)
        assert [call.key for call in journal.submissions.calls()] == [request(1).key]
        assert journal.submissions.batches()[0].tag == "t"
        journal.submissions.forget("t")
        assert (journal.submissions.batches(), journal.submissions.calls()) == ([], [])
        assert journal.spent() == (0, 0.25)
    with JournalReader(tmp_path / "run.sqlite") as reader:
        assert len(list(reader.calls("generate"))) == 1


def test_a_reply_is_never_replaced_by_a_batch(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        journal.record(request(), Reply("x"))
        with pytest.raises(ValueError, match="has its outcome"):
            journal.submissions.submit(batch("t", 1), [(request(), None)])
        assert journal.submissions.batches() == []


def test_the_worst_case_of_calls_in_batches_is_held_before_any_new_call_is_reserved() -> None:
    worst = Price(0.0, 10_000.0).worst(request())
    budget = Budget({"m": Price(0.0, 10_000.0)}, spent=(0, 0.0), max_calls=3, max_usd=1.5 * worst)
    budget.hold(request(0).key, worst)

    assert not budget.reserve(Task("m", request(1)))
    assert budget.reserve(Task("m", request(0)))
    assert budget.calls == 1
    settled = budget.settle(Task("m", request(0)), Reply("x", input_tokens=1, output_tokens=1))
    assert isinstance(settled, Reply) and settled.cost_usd == pytest.approx(0.01)
    assert budget.reserve(Task("m", request(1)))


def test_a_call_that_a_direct_run_finds_in_a_batch_costs_what_the_batch_costs() -> None:
    budget = Budget({"m": Price(0.0, 10_000.0)})
    budget.hold(request(0).key, 0.5, share=0.5)
    budget.reserve(Task("m", request(0)))

    settled = budget.settle(Task("m", request(0)), Reply("x", input_tokens=1, output_tokens=10))

    assert isinstance(settled, Reply) and settled.cost_usd == pytest.approx(0.05)


@pytest.mark.parametrize(("own", "share"), [("", 0.5), (", batch: 0.25", 0.25)])
def test_calls_in_batches_cost_their_share_of_the_price(in_folder: Path, own: str, share: float) -> None:
    prices = in_folder / "prices.yaml"
    prices.write_text(PRICES.replace("}", f"{own}}}"), encoding="utf-8")
    costs = []
    for name, is_batch in (("direct", False), ("batched", True)):
        with serving(provider("openai")) as stub:
            path = written(in_folder, stub.address, name=name, batch=is_batch, combinations=2)
            assert command(["run", str(path), "--json", "--prices", str(prices)]) in (0, 1)
            costs.append(run_status(name).cost_usd)

    assert costs[0] > 0 and costs[1] == pytest.approx(share * costs[0])


def test_the_budget_holds_the_worst_case_of_all_that_is_submitted_over_all_runs(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = in_folder / "prices.yaml"
    prices.write_text(PRICES, encoding="utf-8")
    with serving(provider("openai", "never finishes")) as stub:
        path = written(in_folder, stub.address, budget={"max_usd": 2.0})
        run = ["run", str(path), "--json", "--no-wait", "--prices", str(prices)]

        ended = [command(run) for _ in range(3)]

        assert ended == [IN_BATCHES] * 3
        submitted = sum(len(batch.calls) for batch in stub.batches.values())
        held = sum(part.worst_usd for part in run_status("run").batches)
        assert 0 < submitted < 8 and len(stub.batches) == 1
        assert 1.0 < held <= 2.0
        capsys.readouterr()
        assert command(["status", "run", "--json"]) == 0
        status = json.loads(capsys.readouterr().out)
        assert status["calls"]["submitted"] == submitted == status["batches"][0]["calls"]

        stub.is_finishing = True
        assert command([*run[:3], "--prices", str(prices)]) == 1
        assert run_status("run").cost_usd <= 2.0
        with open_run("run").read() as journal:
            assert sum(1 for _ in journal.calls("generate")) >= submitted


@pytest.mark.parametrize("shape", ["openai", "anthropic"])
def test_a_batch_that_may_exist_counts_against_the_budget(in_folder: Path, shape: str) -> None:
    prices = in_folder / "prices.yaml"
    prices.write_text(PRICES.replace("openai", shape), encoding="utf-8")
    with serving(provider(shape, "every creation is lost", "hides batches")) as stub:
        path = written(in_folder, stub.address, shape=shape, budget={"max_usd": 9.0})
        costs = []
        for _ in range(3):
            command(["run", str(path), "--json", "--no-wait", "--prices", str(prices)])
            costs.append(run_status("run").cost_usd)

        batch_usd = 0.5 * sum(0.07 + 0.06 for _ in range(sum(stub.billed.values())))
        assert stub.creations < 3 * 2
        assert batch_usd < costs[0] <= costs[-1] <= 9.0
        assert max(stub.billed.values()) <= 2


def test_a_batch_that_is_gone_is_charged_once(in_folder: Path) -> None:
    prices = in_folder / "prices.yaml"
    prices.write_text(PRICES, encoding="utf-8")
    with serving(provider("openai", "never finishes")) as stub:
        path = written(in_folder, stub.address, budget={"max_usd": 2.0})
        run = ["run", str(path), "--json", "--no-wait", "--prices", str(prices)]
        assert command(run) == IN_BATCHES
        held = sum(part.worst_usd for part in run_status("run").batches)
        stub.batches.clear()
        stub.faults |= {"hides batches"}

        command(run)
        first = run_status("run").cost_usd
        others = []
        for _ in range(2):
            stub.batches.clear()
            command(run)
            others.append(run_status("run").cost_usd)

        assert first == pytest.approx(held)
        assert others == [first, first]
        assert len(stub.batches) == 0 and run_status("run").submitted == 0


def test_an_estimate_shows_the_cost_in_batches_and_with_direct_calls(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = in_folder / "prices.yaml"
    prices.write_text(PRICES, encoding="utf-8")
    shown = []
    for is_batch in (False, True):
        path = written(in_folder, "http://models.example/v1", batch=is_batch)
        assert command(["run", str(path), "--dry-run", "--prices", str(prices)]) == 0
        shown.append(" ".join(capsys.readouterr().out.split()))

    notes = [BOTH_COSTS.findall(text) for text in shown]
    assert len(notes[0]) == 2 and notes[0] == notes[1]
    for batch_expected, batch_most, direct_expected, direct_most in notes[0]:
        assert float(direct_expected) == pytest.approx(2 * float(batch_expected), abs=0.02)
        assert float(direct_most) == pytest.approx(2 * float(batch_most), abs=0.02)
