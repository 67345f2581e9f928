"""Exchange letters with the workers of a step until every conversation is over; workers may come and go."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from skillmix.errors import UserError
from skillmix.experiment.experiment import WorkerSettings
from skillmix.experiment.plan import Settings
from skillmix.models.specs import ModelSpec
from skillmix.render import plural
from skillmix.runs.conversations import Conversations
from skillmix.runs.leases.lease import LentConversation, OwnerLetter, WorkerLetter
from skillmix.runs.leases.mailbox import Packet
from skillmix.runs.leases.owner import LeaseOwner
from skillmix.runs.leases.rank_work import RankWork

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0
"""Seconds before a worker that cannot be reached is asked again."""
_LONG_SILENCE: Final = 30.0
"""Seconds after which a line says that a worker does not answer."""
_LOOK_EVERY: Final = 2.0
"""Seconds between two looks for workers that have come, and half of it after a worker was lost."""
_PATIENCE: Final = 300.0
"""Seconds without any worker after which a step gives up."""
_FEED_EVERY: Final = 0.05
"""Seconds after which a source that had no conversation is asked again."""


class LentWork(NamedTuple):
    """What a process needs to make the calls of a step, besides the conversations that lack calls."""

    conversations: Conversations
    models: Mapping[str, Settings]
    """The settings of the models that the step calls, by the names that tasks use."""
    workers: WorkerSettings = WorkerSettings()
    following: Mapping[str, Settings] = {}
    """The models that are called after these."""
    files: Mapping[str, Any] = {}
    """The files with the weights of models, by the same names."""


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

    async def newcomers(self) -> Mapping[str, WorkerLink]:
        """Let workers that have come since begin with the step: new ones, and those in the place of lost ones.

        Their names are new. A `UserError` means that no worker can come any more.
        """
        ...

    async def end_step(self) -> None:
        """Let workers forget the step, whether or not it is over."""
        ...

    def run_ranks(self, work: RankWork) -> bool:
        """Train with ranks on the cluster; False if it has no GPU and the step does not ask for ranks."""
        ...


class Feed:
    """Gives conversations to an owner as they become known; a None means that none is known now."""

    def __init__(self, owner: LeaseOwner, source: Iterator[LentConversation | None]) -> None:
        self._owner = owner
        self._source = source
        owner.expects_more = True

    async def until_first(self) -> None:
        """Wait until a conversation must be lent, or none will be."""
        self._pull()
        while self._owner.expects_more and not self._owner.has_conversations:
            await asyncio.sleep(_FEED_EVERY)
            self._pull()

    async def run(self) -> None:
        """Feed until the source is empty or the calls are stopped."""
        while self._owner.expects_more:
            await asyncio.sleep(_FEED_EVERY)
            if self._owner.counts.stopped is not None:
                self._owner.expects_more = False
            else:
                self._pull()

    def _pull(self) -> None:
        known: list[LentConversation] = []
        for conversation in self._source:
            if conversation is None:
                break
            known.append(conversation)
        else:
            self._owner.expects_more = False
        if known:
            self._owner.add(known)


async def drive(owner: LeaseOwner, workers: CallWorkers, links: Mapping[str, WorkerLink], feed: Feed) -> None:
    """Work until all is over or stopped; calls under way count as sent if this is cancelled or fails."""
    team = _Team(owner, workers)
    try:
        team.join(links)
        await team.work(feed)
    except BaseException:
        await team.disband()
        with suppress(UserError):  # such as a full disk, which is the first problem as well
            owner.leave()
        raise
    await team.disband()
    owner.leave()
    if owner.problem is not None:
        raise owner.problem


class _Team:
    """The workers of a step; each is driven by a task of its own."""

    def __init__(self, owner: LeaseOwner, workers: CallWorkers) -> None:
        self._owner = owner
        self._workers = workers
        self._driving: set[asyncio.Task[None]] = set()
        self._others: list[asyncio.Task[None]] = []

    def join(self, links: Mapping[str, WorkerLink]) -> None:
        for worker, link in links.items():
            self._owner.join(worker)
            self._driving.add(asyncio.create_task(_drive_one(self._owner, worker, link)))

    async def work(self, feed: Feed) -> None:
        """Wait for all workers, and for new ones while work is left."""
        self._others = [asyncio.create_task(self._recruit()), asyncio.create_task(feed.run())]
        alone_since: float | None = None
        while self._driving or self._has_work:
            tasks = {*self._driving, *(task for task in self._others if not task.done())}
            done, _ = await asyncio.wait(tasks, timeout=_LOOK_EVERY / 4, return_when=asyncio.FIRST_COMPLETED)
            self._driving -= done
            # Two workers may fail at once; asyncio prints the traceback of an error that nobody looks at.
            for problem in [task.exception() for task in done]:
                if problem is not None:
                    raise problem
            now = asyncio.get_running_loop().time()
            if self._driving or not self._has_work:
                alone_since = None
            elif alone_since is None:
                alone_since = now
                self._owner.say(f"no worker is left; another is waited for, {_PATIENCE:g} s at most")
            elif now - alone_since > _PATIENCE:
                raise UserError(
                    f"All workers were lost, and no other came in {_PATIENCE:g} s.",
                    hint="Finished calls are kept. Run the same command again to make the others.",
                )

    @property
    def _has_work(self) -> bool:
        return not self._owner.is_over and self._owner.counts.stopped is None

    async def _recruit(self) -> None:
        """Let workers join that have come, as long as work is left."""
        said = ""
        while self._has_work:
            try:
                self.join(await self._workers.newcomers())
            except UserError as error:
                if not self._driving:
                    raise
                if error.message != said:
                    self._owner.say(error.message)
                said = error.message
            await asyncio.sleep(_LOOK_EVERY if self._driving else _LOOK_EVERY / 2)

    async def disband(self) -> None:
        tasks = [*self._driving, *self._others]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
            owner.say(
                f"{worker} is lost ({error}); at most {plural(calls, 'call')} that it had under way will be asked twice"
            )
        else:
            failures = 0
            owner.receive(worker, answer)
            await owner.stored(worker)
        finally:
            timer.cancel()
