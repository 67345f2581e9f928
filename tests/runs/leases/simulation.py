"""Workers in this process behind a network that loses, repeats, delays and reorders packets."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from skillmix.calls import CallKey, CallProblem, GenerateKey, Model, Outcome, Request
from skillmix.catalog.catalog import Catalog
from skillmix.experiment.plan import Settings
from skillmix.models.scripted import ScriptedModel
from skillmix.models.servers.pool import Pool
from skillmix.models.specs import ModelSpec, parse_spec
from skillmix.runs.leases.driving import LentWork, LostWorker, UnreachableWorker, WorkerLink
from skillmix.runs.leases.lease import OwnerLetter, WorkerLetter
from skillmix.runs.leases.mailbox import Packet
from skillmix.runs.leases.rank_work import RankWork
from skillmix.runs.leases.worker import LeaseWorker
from skillmix.runs.retries import Retries


@dataclass
class Asked:
    """What all models of a simulation were asked, and which of their calls a busy server turned away."""

    by_key: Counter[str] = field(default_factory=Counter)
    turned_away: set[str] = field(default_factory=set)
    turns_away: float = 0.0
    """The share of calls that are turned away when they come first."""
    usable: int | None = None
    """Calls after which the models cannot be used any more."""
    stored: set[str] = field(default_factory=set)
    """Keys that are in the journal, if the test notes them."""
    too_early: set[str] = field(default_factory=set)
    """Calls that were asked before the call that they depend on was stored."""


class _Model(Model):
    """A scripted model that takes a while; some calls are turned away when they come first."""

    def __init__(self, model: str, asked: Asked, chance: random.Random) -> None:
        self._model = ScriptedModel(parse_spec(model))
        self._asked = asked
        self._chance = chance

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        return Pool(self._answer, limit=6).serve(requests)

    async def _answer(self, request: Request) -> Outcome:
        key = str(request.key)
        self._asked.by_key[key] += 1
        before = _before(request.key)
        if before is not None and str(before) not in self._asked.stored:
            self._asked.too_early.add(key)
        await asyncio.sleep(self._chance.random() * 0.004)
        if self._asked.usable is not None and self._asked.by_key.total() > self._asked.usable:
            return CallProblem("fatal", "no such model", is_free=True)
        if self._asked.by_key[key] == 1 and self._chance.random() < self._asked.turns_away:
            self._asked.turned_away.add(key)
            return CallProblem("passing", "busy", is_free=True)
        return self._model.answer(request)

    async def probe(self) -> CallProblem | None:
        return None

    async def close(self) -> None:
        pass


def _before(key: CallKey) -> GenerateKey | None:
    """The turn on which a call depends."""
    if isinstance(key, GenerateKey):
        return replace(key, turn=1) if key.turn == 2 else None
    return GenerateKey(key.student, key.combination, key.generation, 2)


@dataclass(frozen=True)
class Faults:
    """How often the network fails, and after how many exchanges workers are lost."""

    rate: float = 0.0
    lost_after: tuple[int, ...] = ()
    """One number for each worker that is lost, from the first worker on."""
    lives_on: bool = False
    """Whether a lost worker goes on as a zombie."""
    interrupted_after: int | None = None
    """Exchanges of the first worker after which the user presses Ctrl-C."""
    come_late: tuple[int, ...] = ()
    """Looks for newcomers after which one more worker comes, such as one in the place of a lost one."""


class _Link:
    def __init__(self, worker: LeaseWorker, faults: Faults, chance: random.Random, lost_after: int | None) -> None:
        self._worker = worker
        self._faults = faults
        self._chance = chance
        self._left = lost_after
        self._exchanges = 0
        self.running = asyncio.create_task(worker.run())
        self.late: list[asyncio.Task[None]] = []

    async def exchange(self, packet: Packet[OwnerLetter]) -> Packet[WorkerLetter]:
        if self._exchanges == self._faults.interrupted_after:
            os.kill(os.getpid(), signal.SIGINT)
        self._exchanges += 1
        fault = self._chance.random() / self._faults.rate if self._faults.rate else 9.0
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                await self._lose(packet)
        if fault < 0.25:
            raise UnreachableWorker
        if fault < 0.5:
            await self._worker.exchange(packet)
            raise UnreachableWorker
        if fault < 0.75:
            await asyncio.sleep(0.03)  # frozen, and thawed
        elif fault < 1:
            self.late.append(asyncio.create_task(self._again(packet)))
        return await self._worker.exchange(packet)

    async def _lose(self, packet: Packet[OwnerLetter]) -> None:
        """The owner hears nothing more of the worker; a zombie still gets the last packet, and works on."""
        if self._faults.lives_on:
            self.late.append(asyncio.create_task(self._again(packet)))
        else:
            self.running.cancel()
        raise LostWorker("simulated")

    async def _again(self, packet: Packet[OwnerLetter]) -> None:
        await asyncio.sleep(self._chance.random() * 0.03)
        await self._worker.exchange(packet)


class SimulatedWorkers:
    """As many workers as wanted, behind faulty links."""

    def __init__(self, asked: Asked, *, seed: int, workers: int = 3, faults: Faults | None = None) -> None:
        self.asked = asked
        self._chance = random.Random(seed)
        self._count = workers
        self._faults = faults or Faults()
        self._links: list[_Link] = []
        self._looks = 0

    def why_not(self, models: Mapping[str, Settings]) -> str | None:
        return None

    def announce(self, spec: ModelSpec) -> None:
        pass

    def verdict_pool(self, catalog: Catalog) -> None:
        return None

    def run_ranks(self, work: RankWork) -> bool:
        return False

    async def links(self, work: LentWork) -> Mapping[str, WorkerLink]:
        self._work = work
        self._looks = 0
        return {f"worker {index}": self._link(index) for index in range(self._count)}

    async def newcomers(self) -> Mapping[str, WorkerLink]:
        self._looks += 1
        index = len(self._links)
        return {f"worker {index}": self._link(index) for _ in range(self._faults.come_late.count(self._looks))}

    def _link(self, index: int) -> _Link:
        models = {name: _Model(str(s.asked), self.asked, self._chance) for name, s in self._work.models.items()}
        worker = LeaseWorker(
            models,
            self._work.conversations,
            max_open=24,
            leaves=dict.fromkeys(models, 8),
            retries=Retries(first_wait=0.001),
        )
        lost = self._faults.lost_after
        after = lost[index] if index < len(lost) else None
        faults = self._faults if index == 0 else replace(self._faults, interrupted_after=None)
        self._links.append(_Link(worker, faults, self._chance, after))
        return self._links[-1]

    async def end_step(self) -> None:
        for link in self._links:
            tasks = [link.running, *link.late]
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)
        self._links.clear()
