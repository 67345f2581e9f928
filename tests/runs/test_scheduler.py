"""The scheduler: only what is missing is called, every outcome is journaled first, failures have their own ways."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from skillmix.calls import CallProblem, Decoding, GenerateKey, Message, Model, Outcome, Reply, Request
from skillmix.errors import UserError
from skillmix.experiment.costs import Price
from skillmix.runs.budget import Budget, Task
from skillmix.runs.journal import JournalReader, JournalWriter
from skillmix.runs.scheduler import CallCounts, Retries, Scheduler, StopReason
from tests.runs.databases import attempts


class Fake(Model):
    """Answers by a function, and remembers what it was asked."""

    def __init__(self, answer: Callable[[Request], Outcome]) -> None:
        self._answer = answer
        self.asked: list[Request] = []

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        async for request in requests:
            self.asked.append(request)
            yield request, self._answer(request)

    async def probe(self) -> CallProblem | None:
        return None

    async def close(self) -> None:
        pass


def task(number: int, turn: int = 1) -> Task:
    key = GenerateKey("s", f"c{number}", 0, turn)
    return Task("m", Request(key, "fake", (Message("user", f"{number}/{turn}"),), Decoding(max_tokens=10), 1))


def test_names_of_one_model_share_it(tmp_path: Path) -> None:
    served: list[int] = []

    class Shared(Fake):
        async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
            served.append(1)
            async for pair in super().serve(requests):
                yield pair

    shared, other = (Shared(lambda request: Reply("fine")) for _ in range(2))
    tasks = [task(n)._replace(model=("m", "also m", "other")[n % 3]) for n in range(9)]

    async def main() -> CallCounts:
        with JournalWriter(tmp_path / "run.sqlite") as journal:
            budget = Budget({"m": None, "also m": None, "other": None}, spent=(0, 0.0), max_calls=None, max_usd=None)
            models = {"m": shared, "also m": shared, "other": other}
            return await Scheduler(models, journal, budget=budget).run(iter(tasks), lambda *_: [])

    assert asyncio.run(main()).called == 9
    assert (len(shared.asked), len(other.asked), len(served)) == (6, 3, 2)


def second_turn(request: Request, outcome: Outcome) -> Iterator[Task]:
    key = request.key
    if isinstance(outcome, Reply) and isinstance(key, GenerateKey) and key.turn == 1:
        yield task(int(key.combination[1:]), turn=2)


def no_limit() -> Budget:
    return Budget({"m": None})


def run(
    folder: Path, model: Fake, count: int = 5, *, budget: Budget | None = None, tries: int = 4, max_open: int = 8
) -> CallCounts:
    async def main() -> CallCounts:
        with JournalWriter(folder / "run.sqlite") as journal:
            scheduler = Scheduler(
                {"m": model},
                journal,
                budget=budget or no_limit(),
                retries=Retries(tries=tries, first_wait=0.001),
                max_open=max_open,
            )
            return await scheduler.run(iter([task(n) for n in range(count)]), second_turn)

    return asyncio.run(main())


def stored(folder: Path) -> dict[str, Outcome | None]:
    with JournalReader(folder / "run.sqlite") as reader:
        return {str(call.key): call.outcome for call in reader.calls("generate")}


def echo(request: Request) -> Outcome:
    return Reply(request.messages[-1].content)


def test_what_depends_on_an_outcome_follows_it(tmp_path: Path) -> None:
    counts = run(tmp_path, Fake(echo), 50)

    assert (counts.called, counts.found, counts.failed) == (100, 0, {})
    assert len(stored(tmp_path)) == 100


def test_a_second_run_calls_nothing_and_a_longer_one_only_the_rest(tmp_path: Path) -> None:
    run(tmp_path, Fake(echo), 5)
    again, longer = Fake(echo), Fake(echo)

    same = run(tmp_path, again, 5)
    more = run(tmp_path, longer, 8)

    assert (same.called, same.found, again.asked) == (0, 10, [])
    assert (more.called, more.found) == (6, 10)


def test_a_passing_problem_is_tried_again_with_the_same_request(tmp_path: Path) -> None:
    failures = iter(range(3))
    model = Fake(lambda r: CallProblem("passing", "HTTP 500") if next(failures, None) is not None else echo(r))

    counts = run(tmp_path, model, 1)

    assert (counts.called, counts.retried, counts.failed) == (5, 3, {})
    assert len(set(model.asked)) == 2
    with JournalReader(tmp_path / "run.sqlite") as reader:
        assert [outcome for _, outcome, _ in attempts(reader)] == ["passing"] * 3 + ["reply"] * 2


def test_a_call_that_never_passes_is_given_up_listed_and_called_again_later(tmp_path: Path) -> None:
    counts = run(tmp_path, Fake(lambda r: CallProblem("passing", "timeout")), 2)

    assert counts.called == 8
    assert sorted(map(str, counts.failed)) == ["generate/s/c0/0/1", "generate/s/c1/0/1"]
    assert run(tmp_path, Fake(echo), 2).called == 4
    assert all(isinstance(outcome, Reply) for outcome in stored(tmp_path).values())


def test_a_final_problem_is_an_outcome_and_the_run_goes_on(tmp_path: Path) -> None:
    def answer(request: Request) -> Outcome:
        return CallProblem("final", "refusal") if request.messages[-1].content == "1/1" else echo(request)

    counts = run(tmp_path, Fake(answer), 3)

    assert (counts.called, counts.failed) == (5, {})
    assert run(tmp_path, Fake(echo), 3).called == 0


def test_a_fatal_problem_stops_at_once_and_keeps_what_is_done(tmp_path: Path) -> None:
    def answer(request: Request) -> Outcome:
        return CallProblem("fatal", "HTTP 401", "bad key") if request.messages[-1].content == "3/1" else echo(request)

    with pytest.raises(UserError, match="HTTP 401"):
        run(tmp_path, Fake(answer), 10, max_open=1)

    assert sum(isinstance(outcome, Reply) for outcome in stored(tmp_path).values()) == 6


def test_an_empty_reply_is_never_retried(tmp_path: Path) -> None:
    assert run(tmp_path, Fake(lambda r: Reply("")), 3).called == 6


def test_a_limit_of_calls_holds_over_resumes(tmp_path: Path) -> None:
    def budget(spent: tuple[int, float]) -> Budget:
        return Budget({"m": None}, spent=spent, max_calls=7)

    first = run(tmp_path, Fake(echo), 10, budget=budget((0, 0.0)))
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        spent = journal.spent()
    second = run(tmp_path, Fake(echo), 10, budget=budget(spent))

    assert first.called == spent[0] == 7
    assert (second.called, second.stopped) == (0, StopReason.BUDGET)


def test_tries_count_towards_the_limit_of_calls(tmp_path: Path) -> None:
    budget = Budget({"m": None}, max_calls=7)

    counts = run(tmp_path, Fake(lambda r: CallProblem("passing", "HTTP 500")), 10, budget=budget, tries=12)

    assert (counts.called, counts.stopped) == (7, StopReason.BUDGET)


def test_a_limit_in_dollars_counts_the_worst_of_what_is_in_flight(tmp_path: Path) -> None:
    price = Price(input=0.0, output=1e6 / 10)  # a full reply of ten tokens costs one dollar
    budget = Budget({"m": price}, max_usd=3.0)
    model = Fake(lambda r: Reply("x", input_tokens=1, output_tokens=5))

    counts = run(tmp_path, model, 100, budget=budget)

    assert counts.stopped == StopReason.BUDGET
    assert 2.0 < budget.usd <= 3.0
    with JournalWriter(tmp_path / "run.sqlite") as journal:
        assert journal.spent()[1] == pytest.approx(budget.usd)


def test_memory_does_not_hold_the_whole_source(tmp_path: Path) -> None:
    pulled = 0
    most_ahead = 0
    model = Fake(echo)

    def source() -> Iterator[Task]:
        nonlocal pulled, most_ahead
        for number in range(300):
            pulled += 1
            most_ahead = max(most_ahead, pulled - len(model.asked))
            yield task(number)

    async def main() -> None:
        with JournalWriter(tmp_path / "run.sqlite") as journal:
            await Scheduler({"m": model}, journal, budget=no_limit(), max_open=10).run(source(), lambda r, o: ())

    asyncio.run(main())

    assert most_ahead <= 11
