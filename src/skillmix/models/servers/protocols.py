"""Chat endpoints: OpenAI's, with the quirks of the many compatible servers, and Anthropic's messages.

Replies are not trusted: a schema checks each body, which becomes either a reply or a problem with a reason.

If several servers have the same model, each call is sent to the least loaded server that works. A server that fails, or
that rejects calls while another one answers, receives no calls until it works again. A call that fails or is rejected
can move to another server at once.
"""

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, ClassVar, Final, Protocol, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skillmix.calls import CallKey, CallProblem, Limits, Outcome, Reply, Request, is_count
from skillmix.grading.answers import OPENING
from skillmix.models.servers.http import Endpoint, Refused, error_text, fatal_in_probe, json_in
from skillmix.models.servers.keys import Server, servers_of
from skillmix.models.servers.masking import MASK
from skillmix.models.simple import CONCURRENCY, Pool
from skillmix.models.specs import ModelOptions, ModelSpec, provider_of

FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 60.0
LONGEST_ASKED_WAIT: Final = 600.0
"""The most seconds for which an address receives no calls, even if its server requests a longer wait."""
_LONGEST_CHECK: Final = 6.0
"""Seconds after which a server that has not listed its models counts as unreachable; a whole probe may take 8 s."""
_START: Final = 2.0  # seconds for which the first calls wait until all addresses are checked
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
    """One address of a model."""

    address: str

    async def listed(self) -> Listed:
        """Look for the model in the server's list of models."""
        ...

    async def answer(self, request: Request) -> Outcome:
        """Make one call."""
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
    """When a message said that the server receives no calls; None if it receives them again."""

    @property
    def is_up(self) -> bool:
        """Whether the server receives calls."""
        return self.down_until is None

    def take_down(self, problem: CallProblem, now: float, least: float = 0.0) -> None:
        """Send the server no calls for a while, twice as long after each consecutive failure."""
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
        """Choose the least loaded server that works and has not failed this call, or the next one to be checked."""
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
        """Record an address's failure, and return the call's problem, which states whether another can take it."""
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
        """Check a server; if it has the other servers' model, send it calls, at first one at a time."""
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


_MAY_BE_LEFT_OUT: Final = ("seed", "temperature", "top_p")
_COMPLAINT: Final = re.compile(
    r"support|recogni[sz]ed|unknown|unexpected|permitted|allowed|extra|invalid|must be|deprecated|not accept|param",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"\w+")
_DEFAULT_LIMIT: Final = 1024
"""The token limit of requests to Anthropic that set none, because the endpoint requires a limit."""
_FILTERED: Final = ("content_filter", "sensitive", "safety")
_ABORTED: Final = ["abort", "aborted", "cancelled", "error", "insufficient_system_resource", "network_error", "timeout"]
"""Finish reasons from a server that failed before the model had finished its text."""


class _Part(BaseModel):
    """A part of a reply; fields that are not in the schema are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _TextPart(_Part):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None


# Stop at the first fault, because a hostile list may contain a million faults.
_Parts = Annotated[list[_TextPart], Field(fail_fast=True, max_length=10_000)]


class _ChatMessage(_Part):
    content: str | _Parts | None = None
    refusal: str | None = None
    reasoning: object = None
    reasoning_content: object = None


class _Choice(_Part):
    message: _ChatMessage
    finish_reason: str | None = None


class _ChatCompletion(_Part):
    choices: Annotated[list[_Choice], Field(fail_fast=True, max_length=100)] | None = None
    error: object = None
    usage: object = None
    model: object = None


class _AnthropicMessage(_Part):
    content: _Parts | None = None
    stop_reason: str | None = None
    error: object = None
    usage: object = None
    model: object = None


class _ListedModel(_Part):
    id: str
    root: object = None
    max_model_len: object = None


class _ModelList(_Part):
    data: Annotated[list[_ListedModel], Field(fail_fast=True, max_length=20_000)]


_Schema = TypeVar("_Schema", bound=BaseModel)
_Tokens = tuple[int | None, int | None]


def _parsed(raw: bytes, schema: type[_Schema]) -> _Schema | CallProblem:
    document = json_in(raw)
    if isinstance(document, CallProblem):
        return document
    try:
        return schema.model_validate(document)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location = ".".join(map(str, fault["loc"]))
        return CallProblem("passing", "unexpected reply", MASK.line(f"{location}: {fault['msg']}"))


def _empty(reason: str, error: object) -> CallProblem:
    return CallProblem("passing", "error in a reply" if error else reason, MASK.line(error_text(error)))


def _joined(parts: list[_TextPart]) -> str:
    return "".join(part.text or "" for part in parts if part.type == "text")


def _tokens(usage: object, *names: str) -> _Tokens:
    """Return a server's token counts; a missing or invalid count is None."""
    counts = [usage.get(name) if isinstance(usage, dict) else None for name in names]
    first, second = (count if is_count(count) else None for count in counts)
    return first, second


class ChatServer(ABC):
    """One address of a chat model."""

    def __init__(self, server: Server, spec: ModelSpec, options: ModelOptions, headers: dict[str, str]) -> None:
        self.address = server.address
        self.endpoint = Endpoint(server, headers=headers, timeout=options.timeout)
        self._name = spec.name
        self._is_own = server.is_own
        self._say = options.say
        self._has_said = False

    @abstractmethod
    async def listed(self) -> ListedModel | CallProblem | None:
        """Return the model in the server's list of models, or why it cannot be used; None if the server has no list."""

    @abstractmethod
    async def answer(self, request: Request) -> Outcome:
        """Make one call."""

    @abstractmethod
    def body(self, request: Request) -> dict[str, object]:
        """Return the body of a request."""

    @abstractmethod
    def outcome(self, request: Request, raw: bytes) -> Outcome:
        """Convert the response to a request into a reply or a problem."""

    async def close(self) -> None:
        """Close the connections."""
        await self.endpoint.aclose()

    def refusal(self, request: Request, status: int, raw: bytes) -> CallProblem:
        """Convert the error response to one call of a batch into a problem."""
        return self.endpoint.failure(status, raw)

    def _check_name(self, replied: object) -> None:
        """Report once if replies name a different model; a date or a folder in a name makes no difference."""
        if self._has_said or not isinstance(replied, str) or not replied:
            return
        requested = self._name.casefold().rsplit("/", 1)[-1].removesuffix("latest").rstrip(":-")
        name = replied.casefold().rsplit("/", 1)[-1]
        if requested not in name and name not in requested:
            self._has_said = True
            shown = MASK.line(replied, longest=80)
            self._say(f"{self.address} replies as the model {shown!r}, but {self._name!r} was requested")

    def _checked(
        self, request: Request, text: str | None, finish: str | None, tokens: _Tokens, model: object, unsent: list[str]
    ) -> Outcome:
        """Return the reply with its keys hidden, or the problem indicated by its finish reason or its length."""
        reason, max_tokens = (finish or "").lower(), request.decoding.max_tokens
        if reason in _FILTERED:
            return CallProblem("final", "content filter", tokens=tokens)
        if reason in _ABORTED:
            return CallProblem("passing", "aborted by the server", MASK.line(f"finish reason {reason}"))
        if text is None and finish is None:
            return CallProblem("passing", "no content", "the reply has neither a text nor a finish reason")
        text = text or ""
        if max_tokens is not None and len(text) > 100 * max_tokens + 10_000:
            return CallProblem("passing", "reply too long", f"{len(text)} characters for at most {max_tokens} tokens")
        self.endpoint.has_answered = True
        self._check_name(model)
        shown = None if finish is None else MASK.line(finish, longest=60)
        return Reply(MASK.reply(text), shown, *tokens, not_sent=tuple(unsent))


class OpenAIServer(ChatServer):
    """One address with `/chat/completions`, and the parameters that its server rejects."""

    def __init__(
        self, server: Server, spec: ModelSpec, options: ModelOptions, *, key_header: str | None = None
    ) -> None:
        provider = provider_of(spec)
        headers = {"Authorization": f"Bearer {server.secret}"} if server.secret else {}
        key_header = key_header or provider.key_header
        if key_header and server.secret:
            headers[key_header] = server.secret
        super().__init__(server, spec, options, headers)
        self._sent_as = {"seed": provider.seed_field or "seed", "max_tokens": "max_tokens"}
        self._left_out = set() if provider.seed_field else {"seed"}

    async def listed(self) -> ListedModel | CallProblem | None:
        """Look for the model in `/models`."""
        listed = await self.endpoint.get("/models")
        if isinstance(listed, CallProblem):
            return None if listed.reason == "HTTP 404" else fatal_in_probe(listed)
        document = _parsed(listed, _ModelList)
        models = [] if isinstance(document, CallProblem) else document.data
        names = self._name, f"{self._name}:latest", f"models/{self._name}"
        found = next((model for model in models if model.id in names), None)
        if found is not None:
            # Machines may have the same weights in different folders, so only the last part of a path is compared.
            path = found.root.rstrip("/") if isinstance(found.root, str) else ""
            context = found.max_model_len if is_count(found.max_model_len) else None
            return ListedModel(path.rsplit("/", 1)[-1] or None, context)
        if not models:
            return None
        shown = ", ".join(MASK.line(model.id, longest=80) for model in models[:8])
        return CallProblem("fatal", "unknown model", f"{self._name!r} is not one of the server's: {MASK.line(shown)}")

    async def answer(self, request: Request) -> Outcome:
        """Make one call; if the server rejects a parameter, omit it from now on, and record this in the reply."""
        while True:
            body = self.body(request)
            result = await self.endpoint.post("/chat/completions", body, max_tokens=request.decoding.max_tokens)
            if isinstance(result, bytes):
                return self.outcome(request, result)
            if not (isinstance(result, Refused) and self._leave_out(result.detail, body)):
                return result

    def body(self, request: Request) -> dict[str, object]:
        """Return the body of a request, without the parameters that the server rejects."""
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        wanted = _parameters(request)
        used = {self._sent_as.get(name, name): wanted[name] for name in wanted if name not in self._left_out}
        return {**request.decoding.extra_fields(), "model": self._name, "messages": messages, **used}

    def refusal(self, request: Request, status: int, raw: bytes) -> CallProblem:
        """Convert the error response to one call of a batch; a retry omits a rejected parameter."""
        problem = self.endpoint.failure(status, raw)
        # Include parameters that are omitted by now, because another call of the batch may have had the same problem.
        named = {**_parameters(request), "max_tokens": 0}
        if isinstance(problem, Refused) and self._leave_out(problem.detail, named):
            return replace(problem, kind="passing")
        return problem

    def _leave_out(self, message: str, body: dict[str, object]) -> bool:
        """Omit the parameter named in an error message from later calls; return False if it names none in this call."""
        if "max_completion_tokens" in message and "max_tokens" in body:
            self._sent_as["max_tokens"] = "max_completion_tokens"
            return True
        for name in _MAY_BE_LEFT_OUT:
            sent = self._sent_as.get(name, name)
            if {name, sent} & body.keys() and sent in _WORD.findall(message) and _COMPLAINT.search(message):
                self._left_out.add(name)
                return True
        return False

    def outcome(self, request: Request, raw: bytes) -> Outcome:
        """Convert the response to a request into a reply or a problem."""
        document = _parsed(raw, _ChatCompletion)
        if isinstance(document, CallProblem):
            return document
        if not document.choices:
            return _empty("no choices", document.error)
        message = document.choices[0].message
        tokens = _tokens(document.usage, "prompt_tokens", "completion_tokens")
        if message.refusal:
            return CallProblem("final", "refusal", MASK.line(message.refusal), tokens=tokens)
        text = _joined(message.content) if isinstance(message.content, list) else message.content
        thought = message.reasoning_content or message.reasoning
        if not text and thought and isinstance(thought, str):
            text = OPENING + thought
        finish, not_sent = document.choices[0].finish_reason, sorted(self._left_out & _parameters(request).keys())
        return self._checked(request, text, finish, tokens, document.model, not_sent)


def _parameters(request: Request) -> dict[str, object]:
    """Return, by name, those parameters of a call that some servers reject, and its token limit."""
    decoding = request.decoding
    given = {"temperature": decoding.temperature, "top_p": decoding.top_p, "seed": request.seed}
    return {name: value for name, value in {**given, "max_tokens": decoding.max_tokens}.items() if value is not None}


class AnthropicServer(ChatServer):
    """One address with `/messages`."""

    def __init__(self, server: Server, spec: ModelSpec, options: ModelOptions) -> None:
        key = {"x-api-key": server.secret} if server.secret else {}
        super().__init__(server, spec, options, {**key, "anthropic-version": "2023-06-01"})

    async def listed(self) -> ListedModel | CallProblem | None:
        """Request the model's description, which a compatible server may lack."""
        description = await self.endpoint.get(f"/models/{quote(self._name, safe='')}")
        if not isinstance(description, CallProblem) or (description.reason == "HTTP 404" and not self._is_own):
            return None
        return fatal_in_probe(description)

    async def answer(self, request: Request) -> Outcome:
        """Make one call without its seed, which the endpoint does not accept."""
        limit = request.decoding.max_tokens or _DEFAULT_LIMIT
        result = await self.endpoint.post("/messages", self.body(request), max_tokens=limit)
        return self.outcome(request, result) if isinstance(result, bytes) else result

    def body(self, request: Request) -> dict[str, object]:
        """Return the body of a request."""
        decoding = request.decoding
        system = "\n\n".join(m.content for m in request.messages if m.role == "system")
        optional = {"temperature": decoding.temperature, "top_p": decoding.top_p, "system": system or None}
        return {
            **decoding.extra_fields(),
            "model": self._name,
            "max_tokens": decoding.max_tokens or _DEFAULT_LIMIT,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages if m.role != "system"],
            **{name: value for name, value in optional.items() if value is not None},
        }

    def outcome(self, request: Request, raw: bytes) -> Outcome:
        """Convert the response to a request into a reply or a problem."""
        document = _parsed(raw, _AnthropicMessage)
        if isinstance(document, CallProblem):
            return document
        if document.content is None:
            return _empty("no content", document.error)
        tokens = _tokens(document.usage, "input_tokens", "output_tokens")
        if document.stop_reason == "refusal":
            return CallProblem("final", "refusal", tokens=tokens)
        text = _joined(document.content) if document.content else None
        thought = "".join(part.thinking or "" for part in document.content)
        if not text and thought:
            text = OPENING + thought
        not_sent = [] if request.seed is None else ["seed"]
        return self._checked(request, text, document.stop_reason, tokens, document.model, not_sent)


class _ServedModel:
    """A chat model at one or several addresses."""

    server: ClassVar[type[OpenAIServer] | type[AnthropicServer]]

    def __init__(self, spec: ModelSpec, options: ModelOptions) -> None:
        servers = [self.server(place, spec, options) for place in servers_of(spec, options.access)]
        self._servers = servers
        most = options.concurrency or CONCURRENCY * len(servers)
        self.limits = Limits(in_flight=most)
        self._replicas = Replicas(servers, say=options.say) if len(servers) > 1 else None
        self.answer = servers[0].answer if self._replicas is None else self._replicas.answer
        self._pool = Pool(self.answer, limit=most)

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests concurrently."""
        return self._pool.serve(requests)

    async def probe(self) -> CallProblem | None:
        """Look for the model in each server's list of models."""
        if self._replicas is not None:
            return await self._replicas.probe()
        listed = await self._servers[0].listed()
        return listed if isinstance(listed, CallProblem) else None

    async def close(self) -> None:
        """Close the connections."""
        if self._replicas is not None:
            await self._replicas.close()
        for server in self._servers:
            await server.close()


class OpenAIModel(_ServedModel):
    """A chat model behind `/chat/completions`."""

    server = OpenAIServer


class AnthropicModel(_ServedModel):
    """A chat model behind `/messages`."""

    server = AnthropicServer
