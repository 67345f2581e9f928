"""Exchange letters with the workers of a step until every conversation is over."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from skillmix.errors import UserError
from skillmix.experiment.plan import Settings
from skillmix.models.specs import ModelSpec
from skillmix.runs.conversations import Conversations
from skillmix.runs.leases.lease import OwnerLetter, WorkerLetter
from skillmix.runs.leases.mailbox import Packet
from skillmix.runs.leases.owner import LeaseOwner

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0
"""Seconds before a worker that cannot be reached is asked again."""
_LONG_SILENCE: Final = 30.0
"""Seconds after which a line says that a worker does not answer."""


class LentWork(NamedTuple):
    """What a process needs to make the calls of a step, besides the conversations that lack calls."""

    conversations: Conversations
    models: Mapping[str, Settings]
    """The settings of the models that the step calls, by the names that tasks use."""
    following: Mapping[str, Settings] = {}
    """The models that are called after these."""
    files: Mapping[str, Any] = {}
    """Where the workers find the weights of models, by the same names."""


class UnreachableWorker(Exception):
    """A worker does not answer now; it may live and hold its leases."""


class LostWorker(Exception):
    """A worker is certainly gone."""


class WorkerLink(Protocol):
    """The way to one worker."""

    async def exchange(self, packet: Packet[OwnerLetter]) -> Packet[WorkerLetter]:
        """Hand a packet over and wait for the answer; `UnreachableWorker` or `LostWorker` if there is none."""
        ...


class CallWorkers(Protocol):
    """Workers that can make the calls of a step."""

    def why_not(self, models: Mapping[str, Settings]) -> str | None:
        """Why they cannot ask these models, in words; None if they can."""
        ...

    def announce(self, spec: ModelSpec) -> None:
        """Note which model the next step begins with, so that it can be loaded ahead."""
        ...

    async def links(self, work: LentWork) -> Mapping[str, WorkerLink]:
        """Let every worker begin with a step; the ways to them by their names."""
        ...

    async def end_step(self) -> None:
        """Let workers forget the step, whether or not it is over."""
        ...


async def drive(owner: LeaseOwner, links: Mapping[str, WorkerLink]) -> None:
    """Work until all is over or stopped; calls under way count as sent if this is cancelled or fails."""
    for worker in links:
        owner.join(worker)
    driving = [asyncio.create_task(_drive_one(owner, worker, link)) for worker, link in links.items()]
    try:
        await asyncio.gather(*driving)
    finally:
        for task in driving:
            task.cancel()
        await asyncio.gather(*driving, return_exceptions=True)
        owner.leave()
    if owner.problem is not None:
        raise owner.problem
    if not owner.is_over and owner.counts.stopped is None:
        raise UserError(
            "All workers were lost.", hint="Finished calls are kept. Run the same command again to make the others."
        )


async def _drive_one(owner: LeaseOwner, worker: str, link: WorkerLink) -> None:
    failures = 0
    while owner.is_here(worker):
        silent = f"{worker} has not answered for {_LONG_SILENCE:g} s; it keeps its conversations, and is waited for"
        timer = asyncio.get_running_loop().call_later(_LONG_SILENCE, owner.say, silent)
        try:
            answer = await link.exchange(owner.packet_for(worker))
        except UnreachableWorker:
            if failures == 0:
                owner.say(f"{worker} cannot be reached; it keeps its conversations, and is asked again")
            await asyncio.sleep(min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(failures, 10)))
            failures += 1
        except LostWorker as error:
            calls = owner.lose(worker)
            owner.say(f"{worker} is lost ({error}); at most {calls} calls that it had under way are asked twice")
        else:
            failures = 0
            owner.receive(worker, answer)
        finally:
            timer.cancel()
