"""Leases: any number of workers behind any network makes the calls of one process, and asks none of them twice."""

import gc
import os
import random
import signal
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.hashing import short_id
from skillmix.runs.budget import LimitedBudget, Task
from skillmix.runs.journal.journal import JournalWriter
from skillmix.runs.journal.row_writer import RowWriter, Try
from skillmix.runs.leases import driving, owner
from skillmix.runs.leases.driving import LentWork, LostWorker, WorkerLink
from skillmix.runs.leases.lease import (
    LeaseGiven,
    LeaveAsked,
    LentConversation,
    LentTry,
    OwnerLetter,
    TriesMade,
    WorkerLetter,
    bucket_of,
)
from skillmix.runs.leases.mailbox import Mailbox, Packet
from skillmix.runs.leases.owner import LeaseOwner
from skillmix.runs.run import open_run
from skillmix.runs.scheduler import CallCounts, StopReason
from skillmix.scores.scoring import run_scores
from skillmix.steps.run import run_experiment
from skillmix.steps.step_kind import RunResult
from tests.runs.leases.simulation import Asked, Faults, SimulatedWorkers

SEEDS = range(60 if os.environ.get("SKILLMIX_LONG") else 4)
Row = tuple[str, str, str]


@pytest.fixture(autouse=True)
def small_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several leases for a small run, and no waiting for a network that fails on purpose."""
    monkeypatch.setattr(owner, "_FEWEST", 6)
    monkeypatch.setattr(driving, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(driving, "_LONGEST_WAIT", 0.01)
    monkeypatch.setattr(driving, "_LOOK_EVERY", 0.02)
    monkeypatch.setattr(driving, "_PATIENCE", 0.5)
    monkeypatch.setattr(driving, "_FEED_EVERY", 0.005)


def experiment(folder: Path, name: str, **more: Any) -> Path:
    document = {
        "name": name,
        "students": {
            "one": {"model": "scripted:student?skill=0.7&marker=0.9&empty=0.05&refusal=0.05"},
            "two": {"model": "scripted:student?skill=0.4"},
        },
        "graders": {"judge": {"model": "scripted:grader?noise=0.1&unreadable=0.2", "rounds": 3}},
        "steps": [
            {
                "name": "eval",
                "stage": "evaluate",
                "students": ["one", "two"],
                "graders": ["judge"],
                "settings": ["all"],
                "k": [1, 3],
                "combinations": 10,
                "generations": 1,
            }
        ],
    } | more
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What models are asked, with the keys that are durable in the journal of the run `leased`."""
    asked = Asked()
    put_tries = RowWriter.put_tries

    def put_and_note(writer: RowWriter, tries: Sequence[Try]) -> None:
        put_tries(writer, tries)
        if "leased" in writer.path.parts:
            asked.stored.update(str(one.request.key) for one in tries if one.stored is not None)

    monkeypatch.setattr(RowWriter, "put_tries", put_and_note)
    return asked


def run_leased(path: Path, workers: SimulatedWorkers, **more: Any) -> RunResult:
    return run_experiment(path, open_workers=lambda: nullcontext(workers), **more)


def rows(name: str) -> list[Row]:
    """Key, request and outcome of every call, without times and costs."""
    with open_run(name).read() as journal:
        return [
            (str(call.key), call.request_hash, repr(call.outcome))
            for stage in ("generate", "grade")
            for call in journal.calls(stage)
        ]


def scores(name: str) -> list[str]:
    return [repr(replace(score, run="")) for score in run_scores(name)]


@pytest.fixture
def alone(in_folder: Path) -> list[Row]:
    """The journal of one process."""
    run_experiment(experiment(in_folder, "alone"))
    return rows("alone")


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_make_the_calls_of_one_process_once(
    in_folder: Path, alone: list[Row], asked: Asked, workers: int
) -> None:
    result = run_leased(experiment(in_folder, "leased"), SimulatedWorkers(asked, seed=workers, workers=workers))

    assert rows("leased") == alone
    assert set(asked.by_key.values()) == {1}
    assert result.called == len(alone) == asked.by_key.total()
    assert (result.found, result.failed, result.stopped) == (0, {}, None)
    assert scores("leased") == scores("alone")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_faulty_network_changes_nothing(in_folder: Path, alone: list[Row], asked: Asked, seed: int) -> None:
    asked.turns_away = 0.1

    run_leased(experiment(in_folder, "leased"), SimulatedWorkers(asked, seed=seed, faults=Faults(rate=0.4)))

    assert rows("leased") == alone
    assert all(times == 1 + (key in asked.turned_away) for key, times in asked.by_key.items())
    assert asked.too_early == set()


@pytest.mark.parametrize("lives_on", [False, True], ids=["crashed", "zombie"])
@pytest.mark.parametrize("seed", SEEDS)
def test_only_calls_under_way_on_lost_workers_are_asked_twice(
    in_folder: Path, alone: list[Row], asked: Asked, capsys: pytest.CaptureFixture[str], seed: int, lives_on: bool
) -> None:
    chance = random.Random(seed)
    faults = Faults(rate=0.2, lost_after=(chance.randrange(2, 12), chance.randrange(2, 20)), lives_on=lives_on)

    result = run_leased(experiment(in_folder, "leased"), SimulatedWorkers(asked, seed=seed, faults=faults))

    assert rows("leased") == alone
    said = capsys.readouterr().err
    at_most = sum(int(line.split("at most ")[1].split()[0]) for line in said.splitlines() if "at most " in line)
    assert asked.by_key.total() - len(alone) <= at_most
    assert " is lost " in said
    assert max(asked.by_key.values()) <= 1 + said.count(" is lost ")
    assert (result.called, result.found) == (len(alone), 0)
    assert asked.too_early == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_budget_is_never_exceeded_and_the_next_run_goes_on(in_folder: Path, alone: list[Row], seed: int) -> None:
    asked = Asked(turns_away=0.1)
    limit = 40 + 10 * seed % 60
    faults = Faults(rate=0.2, lost_after=(6,), lives_on=seed % 2 == 0)
    path = experiment(in_folder, "leased", budget={"max_calls": limit})

    result = run_leased(path, SimulatedWorkers(asked, seed=seed, faults=faults))

    assert result.stopped is StopReason.BUDGET
    assert asked.by_key.total() <= limit
    assert set(rows("leased")) < set(alone)
    with open_run("leased").write() as journal:
        assert asked.by_key.total() <= journal.spent()[0] <= limit

    run_leased(experiment(in_folder, "leased"), SimulatedWorkers(asked, seed=seed))
    assert rows("leased") == alone


@pytest.mark.parametrize("seed", SEEDS)
def test_lost_calls_count_with_their_worst_case(in_folder: Path, seed: int) -> None:
    asked = Asked(turns_away=0.1)
    prices = in_folder / "prices.yaml"
    price = {"input": 1.0, "output": 2.0}
    models = ["scripted:student?skill=0.7", "scripted:grader"]
    prices.write_text(yaml.safe_dump(dict.fromkeys(models, price)), encoding="utf-8")
    path = experiment(
        in_folder,
        "leased",
        students={name: {"model": models[0]} for name in ("one", "two")},
        graders={"judge": {"model": models[1], "rounds": 3}},
        budget={"max_usd": 0.06},
    )
    faults = Faults(rate=0.2, lost_after=(4, 8), lives_on=seed % 2 == 0)

    result = run_leased(path, SimulatedWorkers(asked, seed=seed, faults=faults), prices=prices)

    assert result.stopped is StopReason.BUDGET
    with open_run("leased").write() as journal:
        calls, cost = journal.spent()
    assert 0.03 < cost <= 0.06
    assert asked.by_key.total() <= calls
    assert result.cost_usd == pytest.approx(cost)


def test_an_interrupted_run_drains_and_the_next_goes_on(in_folder: Path, alone: list[Row]) -> None:
    asked = Asked()
    path = experiment(in_folder, "leased")

    first = run_leased(path, SimulatedWorkers(asked, seed=2, faults=Faults(interrupted_after=8)))
    sent = asked.by_key.total()
    run_leased(path, SimulatedWorkers(asked, seed=2))

    assert first.stopped is StopReason.INTERRUPTED
    assert 0 < sent < len(alone) == asked.by_key.total()
    assert rows("leased") == alone


def test_a_model_that_cannot_be_used_stops_all_workers(in_folder: Path, alone: list[Row]) -> None:
    asked = Asked(usable=60)
    path = experiment(in_folder, "leased")

    with pytest.raises(UserError, match="cannot be used: no such model"):
        run_leased(path, SimulatedWorkers(asked, seed=5))
    refused = asked.by_key.total() - len(rows("leased"))
    asked.usable = None
    run_leased(path, SimulatedWorkers(asked, seed=5))

    assert rows("leased") == alone
    assert asked.by_key.total() == len(alone) + refused


def test_the_owner_refuses_what_a_lease_does_not_cover(tmp_path: Path) -> None:
    combinations = [Combination(f"c{n}", ("a",), "t") for n in range(40)]
    keys = [GenerateKey("s", combination.id, 0, 1) for combination in combinations]
    tasks = {key: Task("m", Request(key, "m", (Message("user", "u"),), Decoding(), 1)) for key in keys}
    budget = LimitedBudget({"m": None}, spent=(0, 0.0), max_calls=None, max_usd=None)
    with JournalWriter(tmp_path) as journal:
        lent = [LentConversation("s", combination, 0) for combination in combinations]
        owner = LeaseOwner(lent, journal, budget, CallCounts(), lambda *_: False)
        owner.join("a")
        owner.join("b")
        leases = [letter.lease for letter in owner.packet_for("a").letters if isinstance(letter, LeaseGiven)]
        ours = next(key for key in keys if bucket_of(key.combination) in leases[0].buckets)
        other = next(key for key in keys if bucket_of(key.combination) not in leases[0].buckets)
        epoch = leases[0].epoch

        def heard(worker: str, number: int, *letters: WorkerLetter) -> int:
            before = owner.refused
            owner.receive(worker, Packet(0, number, letters))
            return owner.refused - before

        tried = LentTry(epoch, ours, Reply("fine"), 0.1, True)
        assert heard("a", 0, TriesMade(1, (tried,))) == 1, "without leave"
        assert heard("a", 1, LeaveAsked(epoch, (tasks[other],))) == 1, "a key of another lease"
        assert heard("b", 0, LeaveAsked(epoch, (tasks[ours],))) == 1, "a lease of another worker"
        assert heard("a", 2, LeaveAsked(epoch, (tasks[ours],))) == 0
        assert heard("a", 3, LeaveAsked(epoch, (tasks[ours],))) == 1, "a call that has leave"
        assert heard("b", 1, TriesMade(1, (tried,))) == 1, "rows of another worker's lease"
        assert heard("a", 4, TriesMade(2, (tried._replace(epoch=epoch + 9),))) == 1, "an epoch that is not lent"
        assert heard("a", 5, TriesMade(3, (tried,))) == 0
        assert heard("a", 6, TriesMade(4, (tried,))) == 1, "a key that has its outcome"
        assert journal.spent()[0] == 1
        assert journal.find(tasks[ours].request) == Reply("fine")


def test_a_run_whose_workers_are_all_lost_is_continued_by_the_next(in_folder: Path, alone: list[Row]) -> None:
    asked = Asked()
    path = experiment(in_folder, "leased")

    with pytest.raises(UserError, match="All workers were lost"):
        run_leased(path, SimulatedWorkers(asked, seed=1, workers=2, faults=Faults(lost_after=(6, 8))))
    stored = len(rows("leased"))
    result = run_experiment(path)

    assert rows("leased") == alone
    assert 0 < stored == result.found < len(alone)


def test_a_run_ends_when_its_last_worker_is_lost_and_none_can_come(
    in_folder: Path, alone: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    class LastWorkers(SimulatedWorkers):
        async def newcomers(self) -> Mapping[str, WorkerLink]:
            raise UserError("No worker can come.", hint="Start one.")

    path = experiment(in_folder, "leased")

    with pytest.raises(UserError, match="No worker can come"):
        run_leased(path, LastWorkers(Asked(), seed=1, workers=2, faults=Faults(lost_after=(6, 8))))

    assert capsys.readouterr().err.count("No worker can come.") == 1, "and the others go on"
    run_experiment(path)
    assert rows("leased") == alone


def test_two_workers_that_fail_at_once_are_one_error(in_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    class RefusingLink:
        async def exchange(self, packet: Packet[OwnerLetter]) -> Packet[WorkerLetter]:
            raise UserError("The model here is another one.", hint="Copy it.")

    class RefusingWorkers(SimulatedWorkers):
        async def links(self, work: LentWork) -> Mapping[str, WorkerLink]:
            return {"worker 1": RefusingLink(), "worker 2": RefusingLink()}

    with pytest.raises(UserError, match="The model here is another one"):
        run_leased(experiment(in_folder, "leased"), RefusingWorkers(Asked(), seed=1))

    gc.collect()  # asyncio prints the traceback of an error that nobody looked at when it frees the task
    assert caplog.text == ""


def test_a_run_that_waits_for_workers_can_be_interrupted(
    in_folder: Path, alone: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    class InterruptedWorkers(SimulatedWorkers):
        is_interrupted = False

        async def newcomers(self) -> Mapping[str, WorkerLink]:
            if all(link.running.done() for link in self._links) and not self.is_interrupted:
                self.is_interrupted = True
                os.kill(os.getpid(), signal.SIGINT)
            return {}

    monkeypatch.setattr(driving, "_PATIENCE", 60.0)
    path = experiment(in_folder, "leased")

    faults = Faults(lost_after=(6, 8))
    result = run_leased(path, InterruptedWorkers(Asked(), seed=1, workers=2, faults=faults))

    assert result.stopped is StopReason.INTERRUPTED
    run_experiment(path)
    assert rows("leased") == alone


def test_a_leased_run_continues_what_one_process_began(in_folder: Path, alone: list[Row]) -> None:
    asked = Asked()
    path = experiment(in_folder, "leased", budget={"max_calls": 70})
    began = run_experiment(path).called

    result = run_leased(experiment(in_folder, "leased"), SimulatedWorkers(asked, seed=3))

    assert rows("leased") == alone
    assert (result.found, asked.by_key.total()) == (began, len(alone) - began)


def test_a_grade_step_leaves_out_texts_that_are_not_written(in_folder: Path) -> None:
    steps = [
        {
            "name": "write",
            "stage": "generate",
            "students": ["one", "two"],
            "settings": ["all"],
            "k": [1],
            "combinations": 9,
        },
        {"name": "marks", "stage": "grade", "of": ["write"], "graders": ["judge"]},
    ]
    paths = {name: experiment(in_folder, name, steps=steps) for name in ("alone", "leased")}
    results = {}
    for name, path in paths.items():
        opened = SimulatedWorkers(Asked(), seed=4) if name == "leased" else None
        results[name] = run_experiment(path, open_workers=lambda opened=opened: nullcontext(opened))  # type: ignore[misc]

    assert rows("leased") == rows("alone")
    counts = {name: result.counts["marks"] for name, result in results.items()}
    assert (counts["leased"].found, counts["leased"].left_out) == (counts["alone"].found, counts["alone"].left_out)


def test_letters_arrive_once_and_in_order_through_any_network() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        here, there = Mailbox[int, int](), Mailbox[int, int]()
        arrived: dict[str, list[int]] = {"here": [], "there": []}
        old = []
        for number in range(30):
            here.put(number)
            there.put(-number)
            old += [("there", here.packet()), ("here", there.packet())]
            for place, packet in chance.choices(old, k=chance.randrange(4)):
                arrived[place] += (here if place == "here" else there).take(packet)
        arrived["there"] += there.take(here.packet())
        arrived["here"] += here.take(there.packet())

        assert arrived == {"there": list(range(30)), "here": [-n for n in range(30)]}


def test_rows_of_a_worker_that_was_given_up_are_refused(in_folder: Path, alone: list[Row]) -> None:
    """The owner hears a worker that Ray reported as dead: its last packet was under way."""

    class LateWorkers(SimulatedWorkers):
        async def links(self, work: LentWork) -> Mapping[str, WorkerLink]:
            links = dict(await super().links(work))
            self.late = _LateLink(links["worker 0"])
            return links | {"worker 0": self.late}

    given_up: list[int] = []

    def lose_and_hear(self: LeaseOwner, worker: str) -> int:
        under_way = lose(self, worker)
        before = self.refused
        with open_run("leased").read() as journal:
            stored = journal.tries()
        self.receive(worker, workers.late.packet)
        with open_run("leased").read() as journal:
            assert journal.tries() == stored
        given_up.append(self.refused - before)
        return under_way

    lose = LeaseOwner.lose
    workers = LateWorkers(Asked(), seed=1)
    with mock.patch.object(LeaseOwner, "lose", lose_and_hear):
        run_leased(experiment(in_folder, "leased"), workers)

    assert given_up and given_up[0] > 0
    assert rows("leased") == alone


class _LateLink:
    """Loses its worker just when a packet with tries is under way."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link

    async def exchange(self, packet: Packet[OwnerLetter]) -> Packet[WorkerLetter]:
        answer = await self._link.exchange(packet)
        if any(isinstance(letter, TriesMade) for letter in answer.letters):
            self.packet = answer
            raise LostWorker("simulated")
        return answer


def test_a_worker_with_slots_gets_enough_conversations_to_fill_them_and_no_more_than_its_part() -> None:
    def held(conversations: int, workers: int, *, slots: bool) -> list[int]:
        """The conversations that each worker has after many packets."""
        each = [LentConversation("s", Combination(short_id(n), ("a",), "t"), 0) for n in range(conversations)]
        lender = LeaseOwner(each, mock.Mock(), mock.Mock(), CallCounts(), lambda *_: False)
        if slots:
            lender.fill_slots(workers)
        names = [f"w{n}" for n in range(workers)]
        for name in names:
            lender.join(name)
        for _ in range(200):
            for name in names:
                lender.packet_for(name)
        leases: dict[str, list[int]] = {name: [] for name in names}
        for lent in lender._lent.values():
            leases[lent.worker].append(len(lent.lease.conversations))
        return [sum(leases[name]) for name in names]

    assert all(3072 <= count < 1.5 * 3072 for count in held(20_000, 2, slots=True))
    assert all(count < 1024 for count in held(20_000, 2, slots=False))
    assert all(200 < count < 300 for count in held(1000, 4, slots=True)), "one worker does not take all"
