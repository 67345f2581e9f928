"""What the cluster's modules do without Ray: actors in this process, with everything pickled on its way."""

import asyncio
import gc
import pickle
import sys
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import yaml

from skillmix.catalog.catalog import Catalog
from skillmix.cluster import joining
from skillmix.cluster.lease_actor import LeaseActor
from skillmix.cluster.ray_workers import RayWorkers
from skillmix.commands import main as command
from skillmix.experiment.experiment import StudentSettings
from skillmix.experiment.plan import Settings
from skillmix.models.specs import ModelSpec
from skillmix.runs.leases.driving import LentWork, WorkerLink
from skillmix.runs.leases.lease import NoMoreLeases, OwnerLetter, WorkerLetter
from skillmix.runs.leases.mailbox import Packet
from skillmix.runs.leases.rank_work import RankWork
from skillmix.runs.run import open_run
from skillmix.steps.run import run_experiment

SMOKE = Path(__file__).parents[2] / "experiments/smoke.yaml"


class _Link:
    def __init__(self, actor: LeaseActor, step: int, work: bytes) -> None:
        self._actor, self._step, self._work = actor, step, work

    async def exchange(self, packet: Packet[OwnerLetter]) -> Packet[WorkerLetter]:
        await self._actor.begin(self._step, pickle.loads(self._work))  # again and again: only the first time counts
        late: Packet[OwnerLetter] = Packet(99, 0, (NoMoreLeases(),))
        before = await self._actor.exchange(self._step - 1, pickle.dumps(late))
        assert pickle.loads(before) == Packet(0, 0, ()), "a packet of the step before"
        answer: Packet[WorkerLetter] = pickle.loads(await self._actor.exchange(self._step, pickle.dumps(packet)))
        return answer


class ActorsHere:
    """Two actors that stay for all steps of a run."""

    def __init__(self) -> None:
        self._actors = [LeaseActor(), LeaseActor()]
        self.steps = 0

    def why_not(self, models: Mapping[str, Settings]) -> str | None:
        return RayWorkers(None).why_not(models)

    def announce(self, spec: ModelSpec) -> None:
        pass

    async def links(self, work: LentWork) -> Mapping[str, WorkerLink]:
        self.steps += 1
        pickled = pickle.dumps(work)
        return {f"worker {n}": _Link(actor, self.steps, pickled) for n, actor in enumerate(self._actors)}

    async def newcomers(self) -> Mapping[str, WorkerLink]:
        return {}

    def verdict_pool(self, catalog: Catalog) -> None:
        return None

    def run_ranks(self, work: RankWork) -> bool:
        return False

    async def end_step(self) -> None:
        await asyncio.gather(*(actor.end(self.steps) for actor in self._actors))


def experiment(folder: Path, name: str) -> Path:
    common = {"settings": ["all"], "k": [2], "combinations": 12, "generations": 2}
    document = {
        "name": name,
        "students": {"s": {"model": "scripted:student"}, "t": {"model": "scripted:student?skill=0.5"}},
        "graders": {"g": {"model": "scripted:grader?unreadable=0.2"}, "code": {"model": "rules:"}},
        "catalog": "verifiable",
        "steps": [
            {"name": "texts", "stage": "generate", "students": ["s"], **common},
            {"name": "marks", "stage": "grade", "of": ["texts"], "graders": ["g", "code"]},
            {"name": "scores", "stage": "evaluate", "students": ["t"], "graders": ["g"], **common},
        ],
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def test_actors_that_stay_make_the_calls_of_every_step(in_folder: Path) -> None:
    workers = ActorsHere()

    alone = run_experiment(experiment(in_folder, "alone"))
    lent = run_experiment(experiment(in_folder, "lent"), open_workers=lambda: nullcontext(workers))

    assert workers.steps == 3
    assert (lent.called, lent.found) == (alone.called, alone.found)
    journals = []
    for name in ("alone", "lent"):
        with open_run(name).read() as journal:
            calls = [*journal.calls("generate"), *journal.calls("grade")]
            journals.append([(call.key, call.request_hash, call.outcome) for call in calls])
    assert journals[0] == journals[1]


def test_a_run_on_ray_says_how_to_install_it(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.dict(sys.modules, {"ray": None}):
        code = command(["run", str(SMOKE), "--on", "ray"])

    assert code == 2
    assert "skillmix[ray]" in capsys.readouterr().err


def test_only_models_that_any_machine_can_ask_are_asked_by_workers() -> None:
    workers = RayWorkers(None)
    served = {name: StudentSettings(model=name) for name in ("openai:m@http://h/v1", "anthropic:m", "scripted:student")}

    assert workers.why_not(served) is None
    own = {"own": StudentSettings(model="local:models/own")}
    assert workers.why_not(served | own) is None, "the driver sends its files"
    with mock.patch("skillmix.cluster.ray_workers._PROVIDERS", ("openai", "anthropic", "scripted")):
        assert workers.why_not(served | own) == "workers cannot ask local: models", "so it is for other packages"


def test_a_program_that_goes_on_after_its_cluster_may_free_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    class Thing:
        own: object

    thing = Thing()
    thing.own = thing  # only the garbage collector frees it
    kept = weakref.ref(thing)
    monkeypatch.setattr(joining, "_without_paragraphs", lambda ray: nullcontext())
    monkeypatch.setenv("RAY_ADDRESS", "local")
    workers = RayWorkers(SimpleNamespace(is_initialized=lambda: False, init=mock.Mock(), shutdown=mock.Mock()))

    workers._join()
    workers.close()

    del thing
    gc.collect()
    assert kept() is None
