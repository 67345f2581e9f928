"""Drawing ahead: enough in flight, nothing written in vain where calls cost money, and no say in what is kept."""

import asyncio
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from skillmix.calls import CallProblem, Outcome, Request
from skillmix.catalog.combinations import combination_of
from skillmix.datasets.from_runs import FromRuns, dataset_of_runs
from skillmix.datasets.writing import sampling
from skillmix.datasets.writing.decided_texts import DecidedTexts
from skillmix.datasets.writing.draw_ahead import DrawAhead, key_of
from skillmix.datasets.writing.sampling import Candidate, Candidates, Sampler, Target
from skillmix.errors import UserError
from skillmix.experiment.recipes import DataRecipe
from skillmix.models import specs
from skillmix.models.scripted import ScriptedModel
from skillmix.runs.journal.ahead import ConversationsAhead
from skillmix.runs.retries import Retries
from skillmix.runs.run import open_run
from skillmix.runs.texts import run_records
from skillmix.steps.run import run_experiment
from skillmix.steps.step_kind import RunResult
from tests.datasets.writing.ledgers import KeysDecided, begun, undecided

FILES = ("train.jsonl", "validation.jsonl", "skillmix.json", "README.md")
SLOTS = 48


class SlottedModel(ScriptedModel):
    """A scripted student in this process with slots; calls end in another order each time."""

    slots = SLOTS
    waits_for = 0
    """Requests that must be there before the first one is answered."""

    def __init__(self, spec: specs.ModelSpec, options: specs.ModelOptions) -> None:
        super().__init__(spec)

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer up to as many requests at once as there are slots."""
        done: asyncio.Queue[Request | None] = asyncio.Queue()
        room = asyncio.Semaphore(SLOTS)
        enough = asyncio.Event()
        in_flight = 0

        async def feed() -> None:
            async for request in requests:
                await room.acquire()
                loop.call_later(random.uniform(0.001, 0.01), done.put_nowait, request)
                nonlocal in_flight
                in_flight += 1
                if in_flight >= self.waits_for:
                    enough.set()
            enough.set()
            done.put_nowait(None)

        loop = asyncio.get_running_loop()
        feeding = asyncio.create_task(feed())
        is_fed = False
        await asyncio.wait_for(enough.wait(), timeout=20)
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


def conversations_in(folder: Path, ks: Sequence[int] = (1, 2, 3)) -> int:
    with closing(sqlite3.connect(folder / "runs/data/journal/calls.sqlite")) as connection, connection:
        query = (
            "SELECT count(DISTINCT combination || '/' || generation) FROM calls "
            "JOIN combinations ON combinations.id = combination "
            f"WHERE json_array_length(skills) IN ({', '.join(map(str, ks))})"
        )
        return int(connection.execute(query).fetchone()[0])


@pytest.mark.usefixtures("slotted")
@pytest.mark.parametrize("more", [{}, {"step": {"per_skill": {"ceiling": 2}}}], ids=["plain", "ceiling"])
def test_a_set_is_the_same_with_and_without_drawing_ahead(in_folder: Path, more: dict[str, Any]) -> None:
    ahead = run_experiment(written(in_new_folder(in_folder, "ahead"), **more))
    limited = {"budget": {"max_calls": 10**6}, **more}  # with a limit, nothing is drawn ahead
    in_waves = run_experiment(written(in_new_folder(in_folder, "waves"), **limited))

    assert bytes_of(ahead) == bytes_of(in_waves)
    assert [y.written for y in ahead.datasets["d"].yields] == [y.written for y in in_waves.datasets["d"].yields]
    assert ahead.called >= in_waves.called


@pytest.mark.usefixtures("slotted")
def test_slots_are_filled_before_the_first_text_is_there(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlottedModel, "waits_for", SLOTS)

    result = run_experiment(written(in_folder))

    assert [y.target for y in result.datasets["d"].yields] == [40, 40]  # a first wave alone would leave slots empty


@pytest.mark.usefixtures("slotted")
def test_slots_that_this_k_cannot_fill_are_filled_by_the_next(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlottedModel, "waits_for", 38)
    # All 20 conversations of k = 1 and the 10 of the first wave of k = 2 are fewer.
    step = {"target": {1: 10, 2: 10}, "most": 20, "per_skill": {"ceiling": 40}, "least": 0}

    result = run_experiment(written(in_folder, step=step))

    assert [y.k for y in result.datasets["d"].yields] == [1, 2]


def test_a_wave_does_not_wait_for_the_decisions_on_other_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    other = threading.Event()

    def decide(self: DecidedTexts, conversations: Any) -> list[Any]:
        assert ("b", 0) not in conversations or other.wait(20)
        return []

    monkeypatch.setattr(DecidedTexts, "_decide", decide)
    decided = DecidedTexts(None, "w", None, ledger=KeysDecided())  # type: ignore[arg-type]
    with decided:
        assert decided.finish([("a", 0)]) == {("a", 0): False}
        decided.add(("b", 0))
        time.sleep(0.11)
        decided.poll()
        started = time.monotonic()
        assert decided.finish([("a", 0)]) == {}
        assert time.monotonic() - started < 5
        other.set()
        assert decided.finish([("b", 0)]) == {("b", 0): False}


@pytest.mark.usefixtures("slotted")
def test_killed_while_drawing_ahead_it_makes_the_same_bytes(in_folder: Path) -> None:
    alone = in_new_folder(in_folder, "alone")
    started = time.monotonic()
    expected = bytes_of(run_experiment(written(alone)))
    seconds = time.monotonic() - started
    path = written(in_new_folder(in_folder, "killed"))
    chance = random.Random(7)

    kills = sum(was_killed(path, after=chance.uniform(0.1, 0.7) * seconds) for _ in range(6))

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
def test_the_texts_in_vain_are_no_more_than_the_device_holds(in_folder: Path) -> None:
    result = run_experiment(written(in_folder))

    tried = sum(y.written for y in result.datasets["d"].yields)
    assert tried <= conversations_in(in_folder) <= tried + 2 * SLOTS


@pytest.mark.usefixtures("slotted")
@pytest.mark.parametrize(
    ("writer", "grader"),
    [("scripted:student?skill=0.7", "scripted:grader"), ("slotted:student?skill=0.7", "paid:grader")],
    ids=["served writer", "paid grader"],
)
@pytest.mark.parametrize(
    "per_skill", [{}, {"ceiling": 2}, {"floor": 1, "ceiling": 4}], ids=["plain", "ceiling", "floor"]
)
def test_nothing_is_written_in_vain_where_calls_may_cost_money(
    in_folder: Path, writer: str, grader: str, per_skill: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # 40 texts with three skills each are more than a ceiling of 2 allows, and the search for the last ones ends sooner.
    monkeypatch.setattr(sampling, "_SEARCH", 500)
    graders = {"judge": {"model": grader, "rounds": 1}}
    step = {"k": [1, 2, 3], "target": {1: 40, 2: 40, 3: 40}, "per_skill": per_skill} if per_skill else {}
    result = run_experiment(written(in_folder, writer=writer, graders=graders, step=step))

    assert conversations_in(in_folder) == sum(y.written for y in result.datasets["d"].yields)


@pytest.mark.usefixtures("slotted")
@pytest.mark.parametrize("more", [{}, {"step": {"k": [1, 2, 3], "target": {1: 40, 2: 40, 3: 40}}}], ids=["same", "a k"])
def test_what_is_written_is_not_written_again_while_its_decisions_are_slow(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    run_experiment(written(in_folder))
    before = conversations_in(in_folder, ks=(1, 2))
    (in_folder / "runs/data/finished.json").unlink()
    decide = DecidedTexts._decide

    def slowly(self: DecidedTexts, conversations: Any) -> Any:
        time.sleep(0.3)
        return decide(self, conversations)

    monkeypatch.setattr(DecidedTexts, "_decide", slowly)
    again = run_experiment(written(in_folder, **more))

    assert conversations_in(in_folder, ks=(1, 2)) == before
    assert more or again.called == 0


@pytest.mark.usefixtures("slotted")
@pytest.mark.parametrize("kind", ["failed", "passing"])
def test_a_failed_call_in_vain_does_not_keep_a_step_from_being_finished(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Literal["failed", "passing"]
) -> None:
    folder = in_new_folder(in_folder, "waves")
    in_waves = run_experiment(written(folder, budget={"max_calls": 10**6}))
    with closing(sqlite3.connect(folder / "runs/data/journal/calls.sqlite")) as connection, connection:
        needed = set(connection.execute("SELECT combination, generation FROM calls"))
    expected = bytes_of(in_waves)
    failures: list[Request] = []
    answer = SlottedModel.answer

    def failing(self: SlottedModel, request: Request) -> Outcome:
        if (request.key.combination, request.key.generation) in needed:
            return answer(self, request)
        failures.append(request)
        return CallProblem(kind, "broken")

    monkeypatch.setattr(SlottedModel, "answer", failing)
    monkeypatch.setattr(Retries, "wait_after", lambda *_: None)
    ahead = run_experiment(written(in_new_folder(in_folder, "ahead")))

    assert failures
    assert not ahead.counts["d"].failed
    assert bytes_of(ahead) == expected
    assert ahead.run.finished.record("d") is not None


def from_the_journal() -> tuple[dict[str, bytes], dict[str, Any]]:
    recipe = DataRecipe("k = 1, 2", (1, 2), "all")
    made = dataset_of_runs(FromRuns(runs=["data"], recipe=recipe, near_duplicates=None))
    return {name: (made.folder / name).read_bytes() for name in FILES}, made.record()


@pytest.mark.usefixtures("slotted")
def test_texts_written_in_vain_are_in_no_data_set_of_the_journal(in_folder: Path) -> None:
    run = run_experiment(written(in_new_folder(in_folder, "ahead"))).run
    in_vain = ConversationsAhead(run.journal).untried
    ahead = from_the_journal()
    run_experiment(written(in_new_folder(in_folder, "waves"), budget={"max_calls": 10**6}))

    assert in_vain
    assert from_the_journal() == ahead
    assert ahead[1]["left"]["undecided"] == ahead[1]["left"]["unfinished"] == 0


@pytest.mark.usefixtures("slotted")
def test_texts_written_in_vain_are_not_shown(in_folder: Path) -> None:
    result = run_experiment(written(in_folder))

    shown = {text.conversation for text in run_records(open_run("data")).texts}

    in_vain = ConversationsAhead(result.run.journal).untried
    assert in_vain
    assert not in_vain & shown
    assert len(shown) == sum(y.written for y in result.datasets["d"].yields)


@pytest.mark.usefixtures("slotted")
def test_texts_written_in_vain_belong_to_a_step_that_tries_them(in_folder: Path) -> None:
    run = run_experiment(written(in_folder)).run
    in_vain = ConversationsAhead(run.journal).untried
    texts = {"name": "t", "stage": "generate", "purpose": "training", "students": ["w"], "settings": ["train"]}
    document = yaml.safe_load((in_folder / "data.yaml").read_text(encoding="utf-8"))
    document["steps"].append(texts | {"k": [1, 2], "combinations": 200})
    (in_folder / "data.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")

    run_experiment(in_folder / "data.yaml")

    assert in_vain
    assert not ConversationsAhead(run.journal).untried & in_vain


def test_a_line_that_a_crash_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    ConversationsAhead(tmp_path).begin([("w", "a", 0), ("w", "b", 0)])
    with (tmp_path / "ahead.jsonl").open("a", encoding="utf-8") as file:
        file.write('["begun", "w", "c')
    ahead = ConversationsAhead(tmp_path)

    ahead.note_tried([("w", "a", 0), ("w", "z", 0)])
    ahead.begin([("w", "a", 0), ("w", "d", 1)])

    assert ConversationsAhead(tmp_path).untried == ahead.untried == {("w", "b", 0), ("w", "d", 1)}


def test_a_note_of_conversations_ahead_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "ahead.jsonl").mkdir()

    with pytest.raises(UserError, match=r"ahead\.jsonl cannot be read"):
        ConversationsAhead(tmp_path)


def candidates() -> Candidates:
    return Candidates([combination_of([f"s{n % 9}"], f"topic {n}") for n in range(400)], generations=1)


def is_good(candidate: Candidate, seed: int, rate: float) -> bool:
    return random.Random(f"{seed} {key_of(candidate)}").random() < rate


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.floats(0.1, 1.0), st.integers(0, 10**6))
def test_what_is_surely_needed_is_tried_in_the_end(kept: int, rate: float, seed: int) -> None:
    sampler = Sampler(candidates(), Target(kept=kept, most=400))
    ahead = DrawAhead(sampler)
    order = random.Random(seed)
    open_ones: list[Candidate] = []
    while wave := sampler.next_wave():
        open_ones += ahead.begin(wave)
        while not undecided(ahead).isdisjoint(map(key_of, wave)):
            open_ones += ahead.begin(ahead.draw(min(ahead.surely_needed(), order.randint(0, 9))))
            ended = open_ones.pop(order.randrange(len(open_ones)))
            ahead.note(key_of(ended), is_full=is_good(ended, seed, rate))
        sampler.learn(is_good(c, seed, rate) for c in sampler.tried)
        ahead.learn(sum(sampler.accepted))

    assert begun(ahead) == {key_of(c) for c in sampler.tried}
