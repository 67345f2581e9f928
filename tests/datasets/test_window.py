"""A data set is the same whatever arrives when, however large the window is, and wherever a run was stopped."""

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillmix.calls import CallProblem, Outcome, Request
from skillmix.catalog.combinations import Combination
from skillmix.catalog.files import load_catalog
from skillmix.datasets import window
from skillmix.datasets.copies import KeptText
from skillmix.datasets.corpus import corpus_of
from skillmix.datasets.from_runs import plan_of
from skillmix.datasets.window import ConversationKey, DatasetWriting, Decided, Window
from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of
from skillmix.experiment.steps import DatasetStep
from skillmix.models import specs
from skillmix.models.scripted import ScriptedModel
from skillmix.runs.calling import StepContext
from skillmix.runs.run import Run
from skillmix.runs.scheduler import CallCounts, Retries
from skillmix.steps.run import run_experiment
from skillmix.steps.step_kind import RunResult
from tests.runs.databases import forget_steps

FILES = ("train.jsonl", "validation.jsonl", "skillmix.json", "README.md")
SLOTS = 48


@dataclass(frozen=True)
class World:
    """What becomes of each conversation, by its key."""

    seed: int
    full: float
    words: int
    """The number of different words in a text: few of them make copies."""
    waiting: float = 0.0

    def outcome(self, key: ConversationKey) -> Decided:
        chance = random.Random(f"{self.seed} {key}")
        if chance.random() < self.waiting:
            return Decided("unfinished")
        if chance.random() >= self.full:
            return Decided(chance.choice(["less", "less", "undecided", "refused"]))
        text = " ".join(chance.choice("abcdefghij"[: self.words]) for _ in range(chance.choice([0, 2, 6, 9, 9])))
        meant = Combination(key[0], ("s",), "t")
        facts = ("fine", "m", ("", ""), "p", ("g",), ("[[1]]",))
        kept = KeptText("r", "w", meant, key[1], (0, len(text)), "", (text, text), *facts)
        return Decided("full", kept, chance.choice([None] * 8 + ["shows one thing", "shows another"]))

    def decided(self, keys: Sequence[ConversationKey]) -> list[tuple[ConversationKey, Decided]]:
        outcomes = [(key, self.outcome(key)) for key in keys]
        return [(key, outcome) for key, outcome in outcomes if outcome.kind != "unfinished"]


class Made:
    """A run without calls: outcomes come in any order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def context(self) -> StepContext:
        step = {"name": "d", "stage": "dataset", "writer": "w", "graders": ["judge"], "k": [1, 2], "target": 9}
        document = {
            "name": "data",
            "catalog": "paper",
            "students": {"w": {"model": "scripted:student"}},
            "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
            "steps": [step],
        }
        experiment, catalog = experiment_of(document, source="test"), load_catalog("paper")
        run = Run(self._folder / "runs/data")
        with run.write():
            run.continue_with(experiment, catalog)
        nothing: Any = lambda _: None  # noqa: E731
        journal: Any = SimpleNamespace(
            calls_by_conversation=lambda _: {}, add_combinations=nothing, count_conversations=nothing, find=nothing
        )
        return StepContext(experiment, catalog, run, journal, nothing)

    def writing(self, **changes: Any) -> DatasetWriting:
        """The writing of a changed step."""
        step = self.context.experiment.steps[0]
        assert isinstance(step, DatasetStep)
        changed = DatasetStep.model_validate(step.model_dump(exclude_unset=True) | changes)
        return DatasetWriting(changed, self.context, plan_of(changed, self.context), CallCounts())

    def written(
        self, monkeypatch: pytest.MonkeyPatch, world: World, *, order: int, **changes: Any
    ) -> tuple[DatasetWriting, list[ConversationKey]]:
        """Write with outcomes in a random order; also gives the conversations that began."""
        chance = random.Random(order)
        begun: list[ConversationKey] = []
        room = chance.choice([1, 7, 50, 1000])

        async def serve(used: Any, source: Any, follow: Any, context: Any, counts: CallCounts, begin: Any) -> None:
            scheduler = SimpleNamespace(in_flight=0)
            begin(scheduler)
            flying: list[Request] = []
            for task in source:
                if task is not None:
                    flying.append(task.request)
                    begun.append((task.request.key.combination, task.request.key.generation))
                    counts.started += 1
                while flying and (task is None or len(flying) > room or chance.random() < 0.3):
                    request = flying.pop(chance.randrange(len(flying)))
                    follow(request, CallProblem("final", "no model"))
                    if task is None and chance.random() < 0.5:
                        break
                scheduler.in_flight = len(flying)

        with monkeypatch.context() as patch:
            patch.setattr(window, "serve", serve)
            patch.setattr(window, "_LOOK_EVERY_S", 0)
            patch.setattr(window, "_READ_AT_ONCE", 7)
            patch.setattr(window, "_SEARCH", 60)
            patch.setattr(window, "Decisions", lambda *run, **chosen: nullcontext())
            patch.setattr(DatasetWriting, "_decide", lambda self, _, keys: world.decided(keys))
            made = self.writing(**changes)
            asyncio.run(made.run())
        return made, begun


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("window"))


WORLDS = st.builds(
    World,
    seed=st.integers(0, 10**6),
    full=st.sampled_from([0.05, 0.3, 0.6, 1.0]),
    words=st.sampled_from([2, 3, 10]),
)
CHANGES = st.fixed_dictionaries(
    {
        "target": st.builds(lambda one, two: {1: one, 2: two}, st.integers(1, 40), st.integers(1, 40)),
        "generations": st.sampled_from([1, 3]),
        "most": st.sampled_from([60, 200]),
        "near_duplicates": st.sampled_from([None, 0.4, 0.7]),
        "exact_duplicates": st.sampled_from(["keep", "drop"]),
    }
).map(lambda found: found | ({"exact_duplicates": "drop"} if found["near_duplicates"] else {}))
SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def first_acceptable(
    made: DatasetWriting, world: World, k: int, before: Sequence[KeptText]
) -> tuple[list[KeptText], int, "Counter[str]"]:
    """The plain rule: the first texts in draw order that pass, the number of conversations up to the last, copies."""
    texts, taken, removed = list(before), list[KeptText](), Counter[str]()
    step = made.step
    kept, most = step.target_of(k), step.max_conversations(k)
    for index, candidate in enumerate(islice(made._candidates(k), most)):
        outcome = world.outcome(candidate.key)
        if outcome.kept is None:
            continue
        corpus = corpus_of(kept.text for kept in [*texts, outcome.kept])
        copies = [found for found in made.plan.removals(corpus) if found.text_index == len(texts)]
        removed.update(found.why for found in copies)
        if copies:
            continue
        texts.append(outcome.kept)
        taken += [] if outcome.shows else [outcome.kept]
        if len(taken) == kept:
            return taken, index + 1, removed
    return taken, most, removed


@settings(SETTINGS, max_examples=12)
@given(world=WORLDS, changes=CHANGES, order=st.integers(0, 10**6))
def test_the_first_acceptable_texts_in_draw_order_are_kept(
    made: Made, monkeypatch: pytest.MonkeyPatch, world: World, changes: dict[str, Any], order: int
) -> None:
    written, _ = made.written(monkeypatch, world, order=order, **changes)

    expected: list[KeptText] = []
    removed: Counter[str] = Counter()
    for result in written.yields:
        taken, number, copies = first_acceptable(written, world, result.k, expected)
        assert (result.taken, result.written) == (len(taken), number)
        expected += taken
        removed += copies
    assert [y.k for y in written.yields] == [1, 2]
    assert written.texts.texts == expected
    assert written.left.removed == removed
    assert not written.is_broken


@SETTINGS
@given(
    world=WORLDS,
    changes=CHANGES,
    orders=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    per_skill=st.sampled_from([{}, {"ceiling": 3}, {"floor": 1}, {"floor": 1, "ceiling": 4}, {"floor": 3}]),
)
def test_neither_the_texts_nor_the_conversations_depend_on_arrival(
    made: Made,
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    changes: dict[str, Any],
    orders: tuple[int, int],
    per_skill: dict[str, int],
) -> None:
    (one, begun), (other, again) = (
        made.written(monkeypatch, world, order=order, per_skill=per_skill, **changes) for order in orders
    )

    assert one.texts.texts == other.texts.texts
    assert (one.yields, one.left) == (other.yields, other.left)
    assert sorted(begun) == sorted(again)


@pytest.mark.parametrize("size", [1, 5, 400])
def test_the_size_of_the_window_does_not_change_the_set(made: Made, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    world = World(seed=5, full=0.3, words=4)
    plain, few = made.written(monkeypatch, world, order=1, target=30)
    monkeypatch.setattr(window, "_FEWEST_AHEAD", size)

    other, begun = made.written(monkeypatch, world, order=2, target=30)

    assert other.texts.texts == plain.texts.texts
    assert (other.yields, other.left) == (plain.yields, plain.left)
    assert len(begun) > len(few) if size == 400 else begun


def test_a_conversation_that_lacks_calls_stops_the_step_only_if_it_is_needed(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = set()
    for seed in range(30):
        world = World(seed=seed, full=0.6, words=10, waiting=0.03)
        written, begun = made.written(monkeypatch, world, order=seed, target=12)
        waiting = [key for key in begun if world.outcome(key).kind == "unfinished"]
        assert waiting or not written.is_broken
        assert written.is_broken == (len(written.yields) < 2)
        ends.add((written.is_broken, bool(waiting)))

    assert ends == {(True, True), (False, True), (False, False)}


class SlottedModel(ScriptedModel):
    """A scripted student in this process with slots; calls end in another order each time."""

    slots = SLOTS

    def __init__(self, spec: specs.ModelSpec, options: specs.ModelOptions) -> None:
        super().__init__(spec)

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer up to as many requests at once as there are slots."""
        done: asyncio.Queue[Request | None] = asyncio.Queue()
        room = asyncio.Semaphore(SLOTS)
        in_flight = 0

        async def feed() -> None:
            async for request in requests:
                await room.acquire()
                loop.call_later(random.uniform(0.001, 0.01), done.put_nowait, request)
                nonlocal in_flight
                in_flight += 1
            done.put_nowait(None)

        loop = asyncio.get_running_loop()
        feeding = asyncio.create_task(feed())
        is_fed = False
        while not is_fed or in_flight:
            request = await done.get()
            if request is None:
                is_fed = True
                continue
            in_flight -= 1
            room.release()
            yield request, self.answer(request)
        await feeding


@pytest.fixture
def slotted(monkeypatch: pytest.MonkeyPatch) -> None:
    row = specs.Provider("slotted", "slotted:student", SlottedModel, is_in_process=True, is_free=True)
    paid = specs.Provider("paid", "paid:grader", lambda spec, _: ScriptedModel(spec))
    monkeypatch.setattr(specs, "PROVIDERS", {**specs.PROVIDERS, "slotted": row, "paid": paid})
    specs._provider.cache_clear()


def written(folder: Path, writer: str = "slotted:student?skill=0.7", **more: Any) -> Path:
    step = {"name": "d", "stage": "dataset", "writer": "w", "graders": ["judge"], "k": [1, 2], "target": {1: 40, 2: 40}}
    document = {
        "name": "data",
        "students": {"w": {"model": writer}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [step | {"near_duplicates": None} | more.pop("step", {})],
        **more,
    }
    path = folder / "data.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def bytes_of(result: RunResult) -> dict[str, bytes]:
    folder = result.datasets["d"].folder
    return {name: (folder / name).read_bytes() for name in FILES}


def in_new_folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    os.chdir(folder / name)
    return folder / name


def begun_in(folder: Path) -> set[tuple[str, int]]:
    with closing(sqlite3.connect(folder / "runs/data/run.sqlite")) as connection, connection:
        return set(connection.execute("SELECT combination, generation FROM call"))


@pytest.mark.usefixtures("slotted")
@pytest.mark.parametrize("per_skill", [{}, {"floor": 1, "ceiling": 4}], ids=["plain", "floor"])
def test_two_runs_with_random_delays_make_the_same_bytes_and_the_same_conversations(
    in_folder: Path, per_skill: dict[str, int]
) -> None:
    one = run_experiment(written(in_new_folder(in_folder, "one"), step={"per_skill": per_skill}))
    begun = begun_in(Path.cwd())
    other = run_experiment(written(in_new_folder(in_folder, "other"), step={"per_skill": per_skill}))

    assert bytes_of(one) == bytes_of(other)
    assert begun_in(Path.cwd()) == begun
    assert sum(y.written for y in one.datasets["d"].yields) <= len(begun)


@pytest.mark.usefixtures("slotted")
def test_with_two_local_models_in_turns_the_set_is_the_same(in_folder: Path) -> None:
    one = run_experiment(written(in_new_folder(in_folder, "one"), step={"target": 15}))
    graders = {"judge": {"model": "slotted:grader", "rounds": 1}}
    other = run_experiment(written(in_new_folder(in_folder, "other"), step={"target": 15}, graders=graders))

    assert [(y.taken, y.written) for y in other.datasets["d"].yields] == [
        (y.taken, y.written) for y in one.datasets["d"].yields
    ]


@pytest.mark.usefixtures("slotted")
def test_killed_at_any_time_it_makes_the_same_bytes(in_folder: Path) -> None:
    begin = time.monotonic()
    expected = bytes_of(run_experiment(written(in_new_folder(in_folder, "alone"))))
    took = time.monotonic() - begin
    path = written(in_new_folder(in_folder, "killed"))
    chance = random.Random(7)

    kills = sum(was_killed(path, after=chance.uniform(0.05, 0.6) * took) for _ in range(4))

    assert kills > 0
    assert bytes_of(run_experiment(path)) == expected


def was_killed(path: Path, *, after: float) -> bool:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, after)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            run_experiment(path)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.usefixtures("slotted")
def test_a_run_that_its_budget_stops_continues_to_the_same_set(in_folder: Path) -> None:
    expected = bytes_of(run_experiment(written(in_new_folder(in_folder, "alone"))))
    folder = in_new_folder(in_folder, "stopped")

    stopped = run_experiment(written(folder, budget={"max_calls": 100}, step={"least": 0}))
    [first] = stopped.datasets["d"].yields
    assert 0 < first.taken < 40
    path = written(folder)
    assert bytes_of(run_experiment(path)) == expected
    assert run_experiment(path).called == 0


@pytest.mark.usefixtures("slotted")
def test_what_is_written_is_not_written_again(in_folder: Path) -> None:
    expected = bytes_of(run_experiment(written(in_folder)))
    forget_steps("data")

    again = run_experiment(written(in_folder))

    assert again.called == 0
    assert bytes_of(again) == expected


@pytest.mark.usefixtures("slotted")
def test_a_yield_of_zero_ends_at_the_most_with_an_error(in_folder: Path) -> None:
    with pytest.raises(UserError, match=r"No text is left for .*: 40 less than full marks\. Nothing was written\."):
        run_experiment(written(in_folder, writer="slotted:student?skill=0", step={"most": 20}))

    assert len(begun_in(in_folder)) == 40


@pytest.mark.usefixtures("slotted")
@pytest.mark.parametrize("kind", ["failed", "passing"])
def test_a_failed_call_beyond_the_last_text_does_not_keep_a_step_from_being_finished(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Literal["failed", "passing"]
) -> None:
    needed: set[tuple[str, int]] = set()
    learn = DatasetWriting._close

    def closing_k(self: DatasetWriting, own: Window) -> None:
        needed.update(candidate.key for candidate in own.begun[: len(own.accepted)])
        learn(self, own)

    with monkeypatch.context() as patch:
        patch.setattr(DatasetWriting, "_close", closing_k)
        expected = bytes_of(run_experiment(written(in_new_folder(in_folder, "whole"))))
    assert needed < begun_in(Path.cwd())
    failures: list[Request] = []
    answer = SlottedModel.answer

    def failing(self: SlottedModel, request: Request) -> Outcome:
        if (request.key.combination, request.key.generation) in needed:
            return answer(self, request)
        failures.append(request)
        return CallProblem(kind, "broken")

    monkeypatch.setattr(SlottedModel, "answer", failing)
    monkeypatch.setattr(Retries, "wait_after", lambda *_: None)
    other = run_experiment(written(in_new_folder(in_folder, "failing")))

    assert failures
    assert not other.counts["d"].failed
    assert bytes_of(other) == expected
    assert other.run.finished("d") is not None
