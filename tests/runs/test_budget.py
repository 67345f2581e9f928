"""What a budget holds against: servers that lie about tokens, tries without a reply, processes that die."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skillmix.calls import CallProblem, Decoding, GenerateKey, Message, Model, Outcome, Reply, Request
from skillmix.experiment.costs import Price
from skillmix.runs.budget import Budget, Task
from skillmix.runs.journal import Attempt, JournalReader, JournalWriter
from skillmix.runs.scheduler import CallCounts, Retries, Scheduler, StopReason
from tests.runs.databases import attempts

PRICE = Price(input=0.0, output=1e5)
"""A full reply of ten tokens costs one dollar."""
WORST = 1.0


def task(number: int) -> Task:
    key = GenerateKey("s", f"c{number}", 0, 1)
    return Task("m", Request(key, "fake", (Message("user", str(number)),), Decoding(max_tokens=10), 1))


class Fake(Model):
    """Answers each request with the next of its outcomes, the last one for ever."""

    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes = list(outcomes)
        self.asked = 0

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        async for request in requests:
            self.asked += 1
            yield request, self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]

    async def probe(self) -> CallProblem | None:
        return None

    async def close(self) -> None:
        pass


def run(folder: Path, model: Fake, *, count: int = 400, max_usd: float = 5.0) -> tuple[CallCounts, float]:
    """How a run went, and what it spent over all runs."""

    async def main() -> tuple[CallCounts, float]:
        with JournalWriter(folder / "run.sqlite") as journal:
            budget = Budget({"m": PRICE}, spent=journal.spent(), max_usd=max_usd)
            scheduler = Scheduler({"m": model}, journal, budget=budget, retries=Retries(tries=4, first_wait=0.001))
            call_counts = await scheduler.run(iter([task(n) for n in range(count)]), lambda *_: [])
            assert journal.spent()[1] == pytest.approx(budget.usd)
            return call_counts, budget.usd

    return asyncio.run(main())


LIES: dict[str, tuple[Any, Any]] = {
    "negative": (-(10**9), -(10**9)),
    "half negative": (10, -(10**9)),
    "missing": (None, None),
    "half missing": (None, 3),
    "not numbers": ("many", [3]),
    "zero": (0, 0),
    "true": (True, True),
    "fractions": (1.5, 1e-9),
    "not a number": (float("nan"), float("nan")),
    "beyond the worst case": (10**12, 10**12),
    "beyond 64 bits": (2**80, 2**80),
}


@pytest.mark.parametrize("counts", LIES.values(), ids=LIES)
def test_usage_that_cannot_be_true_costs_the_worst_case(tmp_path: Path, counts: tuple[Any, Any]) -> None:
    model = Fake(Reply("x", input_tokens=counts[0], output_tokens=counts[1]))

    call_counts, spent = run(tmp_path, model)

    assert model.asked == 5
    assert spent == pytest.approx(5 * WORST)
    assert call_counts.stopped == StopReason.BUDGET
    assert call_counts.cost_usd == pytest.approx(5 * WORST)


@pytest.mark.parametrize(
    "problem", [CallProblem("passing", reason) for reason in ("timeout", "broken reply", "HTTP 500", "invalid JSON")]
)
def test_tries_that_may_have_been_billed_count(tmp_path: Path, problem: CallProblem) -> None:
    model = Fake(problem)

    _, spent = run(tmp_path, model)
    _, later = run(tmp_path, model)

    assert model.asked == 5
    assert spent == later == pytest.approx(5 * WORST)


def test_tries_that_nobody_bills_are_free(tmp_path: Path) -> None:
    free = CallProblem("passing", "HTTP 429", is_free=True)

    call_counts, spent = run(tmp_path, Fake(free, free, Reply("x", input_tokens=5, output_tokens=5)), count=1)

    assert call_counts.failed == {}
    assert spent == pytest.approx(0.5)


def test_a_refusal_costs_what_was_counted_or_the_worst_case(tmp_path: Path) -> None:
    counted = CallProblem("final", "refusal", tokens=(5, 2))

    _, spent = run(tmp_path, Fake(counted, CallProblem("final", "refusal")), count=2)

    assert spent == pytest.approx(0.2 + WORST)


def test_calls_in_flight_when_a_process_dies_count_as_billed(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        for number in range(3):
            journal.record_sent(task(number).request, WORST)
        # The reply to one call came; then the process died.
        journal.record_attempts([Attempt(task(0).request, Reply("x"), 0.1, None)])

    model = Fake(Reply("x", input_tokens=5, output_tokens=10))
    call_counts, spent = run(tmp_path, model)

    assert model.asked == 3
    assert spent == pytest.approx(5 * WORST)
    with JournalReader(tmp_path / "run.sqlite") as reader:
        assert [reason for _, _, reason in attempts(reader)].count("lost with its process") == 2
    assert call_counts.stopped == StopReason.BUDGET


def test_calls_that_are_left_count_as_billed(tmp_path: Path) -> None:
    class Silent(Fake):
        async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
            async for _ in requests:
                self.asked += 1
                if self.asked == 3:
                    await asyncio.sleep(60)
            yield task(0).request, Reply("never")

    async def main() -> tuple[int, float]:
        with JournalWriter(tmp_path / "run.sqlite") as journal:
            budget = Budget({"m": PRICE}, max_usd=50.0)
            scheduler = Scheduler({"m": Silent(Reply(""))}, journal, budget=budget)
            working = asyncio.create_task(scheduler.run(iter([task(n) for n in range(3)]), lambda *_: []))
            await asyncio.sleep(0.2)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return journal.spent()

    tries, spent = asyncio.run(main())

    assert tries == 3
    assert spent == pytest.approx(3 * WORST)


def test_a_prompt_beyond_ascii_is_worth_all_its_bytes() -> None:
    price = Price(input=1e6, output=0.0)

    def worst(text: str) -> float:
        return price.worst(Request(task(0).request.key, "m", (Message("user", text),), Decoding(), 1))

    assert worst("a" * 30) == 11
    assert worst("字" * 10) >= 30
    assert worst("🐟" * 10) >= 40


def test_a_new_try_waits_for_room_in_the_budget_like_a_new_call(tmp_path: Path) -> None:
    """All reserves are taken when one call fails; the others turn out cheap, and the budget is enough for all."""
    lost = CallProblem("passing", "timeout")
    model = Fake(lost, Reply("x", input_tokens=5, output_tokens=1))

    call_counts, spent = run(tmp_path, model, count=5)

    assert (call_counts.stopped, call_counts.failed) == (None, {})
    assert spent == pytest.approx(WORST + 5 * 0.1)
