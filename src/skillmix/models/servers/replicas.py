"""Several servers with the same model; each call is sent to the least loaded server that works.

A server that fails, or that rejects calls while another one answers, receives no calls until it works again. A call
that fails or is rejected can move to another server at once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final, Protocol

from skillmix.calls import CallKey, CallProblem, Outcome, Request
from skillmix.models.servers.masking import MASK

FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 60.0
LONGEST_ASKED_WAIT: Final = 600.0
"""The most seconds for which an address receives no calls, even if its server requests a longer wait."""
_LONGEST_CHECK: Final = 6.0
"""Seconds after which a server that has not listed its models counts as unreachable; a whole probe may take 8 s."""
_START: Final = 2.0  # seconds that the first calls wait for the checks of all addresses
_QUIET: Final = 60.0  # seconds between two messages about the failures of one address
_REFUSALS: Final = ("HTTP 400", "HTTP 401", "HTTP 403", "HTTP 404")
"""Problems that may be specific to one server; the request is to blame only if every server reports them."""
_MOST_REFUSALS: Final = 3  # consecutive calls that an address may reject while another one answers, before it is paused
_NO_CONNECTION: Final = "no connection"


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model in a server's list; a value that the server does not report is None."""

    weights: str | None = None  # the last part of the path or name of its weights
    context: int | None = None  # the most tokens in a prompt and its reply together


Listed = ListedModel | CallProblem | None
"""The model in a server's list, or why the server cannot be used; None if the server has no list."""


class ReplicaServer(Protocol):
    """A client for one of a model's addresses."""

    address: str

    async def listed(self) -> Listed:
        """Look for the model in the server's list of models."""
        ...

    async def answer(self, request: Request) -> Outcome:
        """Send one request to the server, and return the outcome."""
        ...


@dataclass(eq=False, slots=True)
class Replica:
    """The state of one address; failures and refusals are counted since its last answer."""

    server: ReplicaServer
    in_flight: int = 0
    down_until: float | None = inf  # when the server is checked again; None while it receives calls
    problem: CallProblem | None = None  # why the server receives no calls
    is_checking: bool = False
    is_on_trial: bool = False
    """Whether the server has not answered a call since it failed; such a server receives one call at a time."""
    failures: int = 0
    refusals: int = 0
    sent_at: float = -inf
    answered_at: float = -inf
    down_at: float = -inf
    said_at: float | None = None
    """When the user was last told that the server is paused; None once it receives calls again."""

    @property
    def is_up(self) -> bool:
        """Whether the server receives calls."""
        return self.down_until is None

    def take_down(self, problem: CallProblem, now: float, least: float = 0.0) -> None:
        """Pause the server, twice as long after each consecutive failure."""
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self.failures, 20))
        self.failures += 1
        self.down_at = now
        self.down_until = now + max(wait, least)
        self.problem = problem


class Replicas:
    """Distributes a model's calls among its addresses."""

    def __init__(
        self,
        servers: Sequence[ReplicaServer],
        *,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replicas = [Replica(server) for server in servers]
        self._clock = clock
        self._say = say
        self._tried: dict[CallKey, set[Replica]] = {}  # the addresses where each open call failed
        self._listed: dict[str, ListedModel] = {}
        self._unusable: CallProblem | None = None
        self._is_started = False
        self._starting: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()

    async def probe(self) -> CallProblem | None:
        """Look for the model on all servers; return a problem if one cannot be used or differs, or if none answers.

        An unreachable server is not a problem while another one answers, because it may come back during the run.
        """
        answers = await asyncio.gather(*(_checked(replica.server) for replica in self._replicas))
        found = dict(zip((replica.server.address for replica in self._replicas), answers, strict=True))
        if problem := _refused(found) or _different(found):
            return problem
        if all(isinstance(answer, CallProblem) for answer in found.values()):
            return CallProblem("fatal", _NO_CONNECTION, f"no address answers: {_named(dict.fromkeys(found, ''))}")
        return None

    async def close(self) -> None:
        """Cancel the checks in progress."""
        tasks = [*self._checks, *([self._starting] if self._starting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def answer(self, request: Request) -> Outcome:
        """Make one call at one address; a problem states whether another address can take the call at once."""
        if not self._is_started:
            self._starting = self._starting or asyncio.create_task(self._first_checks())
            await asyncio.shield(self._starting)
        if self._unusable is not None:
            return self._unusable
        replica = self._choose(request.key)
        sent_at = replica.sent_at = self._clock()
        replica.in_flight += 1
        try:
            outcome = await replica.server.answer(request)
        finally:
            replica.in_flight -= 1
        if isinstance(outcome, CallProblem) and (outcome.kind == "passing" or outcome.reason in _REFUSALS):
            return self._moved(request.key, replica, outcome, sent_at)
        self._tried.pop(request.key, None)
        if isinstance(outcome, CallProblem) and outcome.kind != "final":
            return _at(replica.server.address, outcome)
        replica.answered_at, replica.refusals = self._clock(), 0
        if sent_at >= replica.down_at:  # an answer to an older call does not end a pause that the server requested
            replica.is_on_trial, replica.failures, replica.down_until = False, 0, None
            self._say_back(replica)
        return outcome

    def _choose(self, key: CallKey) -> Replica:
        """Choose the least loaded working server that has not failed this call, or else the next one to be checked."""
        for replica in self._replicas:  # check the servers whose wait is over
            if replica.down_until is not None and not replica.is_checking and self._clock() >= replica.down_until:
                self._begin_check(replica)
        up = [replica for replica in self._replicas if replica.is_up]
        if not up:
            return min(self._replicas, key=lambda replica: replica.down_until or 0.0)
        fresh = [replica for replica in up if replica not in self._tried.get(key, ())] or up
        free = [replica for replica in fresh if not (replica.is_on_trial and replica.in_flight)] or fresh
        return min(free, key=lambda replica: (replica.in_flight, replica.sent_at))

    def _moved(self, key: CallKey, replica: Replica, problem: CallProblem, sent_at: float) -> CallProblem:
        """Record a failure, and return the call's problem, which states whether another address can take the call."""
        now, was_up = self._clock(), replica.is_up
        is_refused = problem.kind != "passing"
        asked = min(problem.retry_after or 0.0, LONGEST_ASKED_WAIT)
        if is_refused:
            # Allow one call at a time: rejections are fast, so a rejecting server would otherwise attract most calls.
            replica.refusals += 1
            replica.is_on_trial = True
            others_answer = any(one.is_up and one.answered_at > replica.answered_at for one in self._replicas)
            if was_up and replica.refusals >= _MOST_REFUSALS and others_answer:
                replica.take_down(problem, now)
        elif replica.down_until is not None and now < replica.down_until:
            replica.down_until = max(replica.down_until, now + asked)
        elif asked or max(replica.answered_at, replica.down_at) < sent_at:
            # A server that has answered another call since this one was sent works, unless it requests a pause.
            replica.take_down(problem, now, asked)
        if was_up and not replica.is_up:
            self._say_down(replica)
        tried = self._tried.setdefault(key, set())
        tried.add(replica)
        address = replica.server.address
        if any(other.is_up and other not in tried for other in self._replicas):
            return replace(_at(address, problem), kind="passing", may_move=True)
        del self._tried[key]
        if is_refused:
            return _at(address, problem)
        if problem.retry_after is not None:  # the call waits for the address whose next check is due first
            due = min(other.down_until or now for other in self._replicas)
            problem = replace(problem, retry_after=max(0.0, due - now))
        if any(other.is_up for other in self._replicas):
            return _at(address, problem)
        replica.problem = problem
        why = {one.server.address: one.problem.reason if one.problem else "not checked" for one in self._replicas}
        return replace(problem, detail=f"no address answers: {_named(why)}")

    def _begin_check(self, replica: Replica) -> asyncio.Task[None]:
        replica.is_checking = True
        task = asyncio.create_task(self._check(replica))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)
        return task

    async def _first_checks(self) -> None:
        """Check all addresses; an address that takes too long joins later."""
        tasks = [self._begin_check(replica) for replica in self._replicas]
        _, pending = await asyncio.wait(tasks, timeout=_START)
        while pending and not any(replica.is_up for replica in self._replicas):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        refused = {replica.server.address: replica.problem for replica in self._replicas}
        self._unusable = _refused(refused) or _different(self._listed)
        self._is_started = True

    async def _check(self, replica: Replica) -> None:
        """Check a server, and let it receive calls if it has the same model as the other servers."""
        try:
            listed = await _checked(replica.server)
        finally:
            replica.is_checking = False
        if self._is_started and isinstance(listed, ListedModel):
            listed = _different({**self._listed, replica.server.address: listed}) or listed
        if isinstance(listed, CallProblem):
            replica.take_down(listed, self._clock(), LONGEST_WAIT if listed.reason != _NO_CONNECTION else 0.0)
            self._say_down(replica)
            return
        if listed is not None:
            self._listed[replica.server.address] = listed
        replica.down_until, replica.is_on_trial = None, replica.failures > 0
        if self._is_started:
            self._say_back(replica)

    def _say_down(self, replica: Replica) -> None:
        now = self._clock()
        if replica.said_at is not None and now - replica.said_at < _QUIET:
            return
        replica.said_at = now
        others, problem = sum(other.is_up for other in self._replicas), replica.problem
        why = f"{problem.reason}: {problem.detail}".removesuffix(": ") if problem else "not checked"
        left = f"{others} other address{'' if others == 1 else 'es'} in use" if others else "no other address answers"
        self._say(f"{replica.server.address} is paused ({why}); {left}")

    def _say_back(self, replica: Replica) -> None:
        if replica.said_at is not None:
            replica.said_at = None
            self._say(f"{replica.server.address} receives calls again")


async def _checked(server: ReplicaServer) -> Listed:
    try:
        return await asyncio.wait_for(server.listed(), _LONGEST_CHECK)
    except TimeoutError:
        return CallProblem("fatal", _NO_CONNECTION, f"no answer within {_LONGEST_CHECK:g} s")


def _refused(found: Mapping[str, Listed]) -> CallProblem | None:
    """Return the problem of the first server that answers but cannot be used."""
    for address, problem in found.items():
        if isinstance(problem, CallProblem) and problem.kind == "fatal" and problem.reason != _NO_CONNECTION:
            return _at(address, problem)
    return None


def _different(found: Mapping[str, Listed]) -> CallProblem | None:
    """Return a problem if servers list the model with different weights or context lengths."""
    models = {address: model for address, model in found.items() if isinstance(model, ListedModel)}
    weights = {address: MASK.line(model.weights, longest=80) for address, model in models.items() if model.weights}
    contexts = {address: f"{model.context} tokens" for address, model in models.items() if model.context is not None}
    for said, values in (("the weights", weights), ("a context of", contexts)):
        if len(set(values.values())) > 1:
            usual = Counter(values.values()).most_common(1)[0][0]
            reference = next(address for address, value in values.items() if value == usual)
            others = ", ".join(f"{a} has {said} {value}" for a, value in values.items() if value != usual)
            return CallProblem("fatal", "different models", f"{others}, and {reference} has {said} {usual}")
    return None


def _at(address: str, problem: CallProblem) -> CallProblem:
    """Prefix a problem's detail with its server's address, unless it already contains the address."""
    if address in problem.detail:
        return problem
    return replace(problem, detail=f"{address}: {problem.detail}".removesuffix(": "))


def _named(addresses: Mapping[str, str]) -> str:
    """List up to 16 addresses in one line, each with its reason."""
    shown = [f"{address} ({why})" if why else address for address, why in list(addresses.items())[:16]]
    left = len(addresses) - len(shown)
    return ", ".join(shown) + (f" and {left} others" if left else "")
