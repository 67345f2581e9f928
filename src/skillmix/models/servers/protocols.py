"""Chat endpoints: OpenAI's, with the quirks of the many compatible servers, and Anthropic's messages.

Replies are not trusted: a schema checks each body, which becomes either a reply or a problem with a reason.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, ClassVar, Final, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skillmix.calls import CallProblem, Limits, Outcome, Reply, Request, is_count
from skillmix.grading.answers import OPENING
from skillmix.models.servers.http import Endpoint, Refused, error_text, fatal_in_probe, json_in
from skillmix.models.servers.keys import Server, servers_of
from skillmix.models.servers.masking import MASK
from skillmix.models.servers.replicas import ListedModel, Replicas
from skillmix.models.simple import CONCURRENCY, Pool
from skillmix.models.specs import ModelOptions, ModelSpec, provider_of

_MAY_BE_LEFT_OUT: Final = ("seed", "temperature", "top_p")
_COMPLAINT: Final = re.compile(
    r"support|recogni[sz]ed|unknown|unexpected|permitted|allowed|extra|invalid|must be|deprecated|not accept|param",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"\w+")
_DEFAULT_LIMIT: Final = 1024
"""The token limit that is sent to Anthropic if a request sets none, because the endpoint requires one."""
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
    """A client for one address of a chat model."""

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
        """Send one request to the server, and return the outcome."""

    @abstractmethod
    def body(self, request: Request) -> dict[str, object]:
        """Return the JSON object that is sent for a request."""

    @abstractmethod
    def outcome(self, request: Request, raw: bytes) -> Outcome:
        """Parse the response to a request; return the reply or the problem."""

    async def close(self) -> None:
        """Close the connections to the server."""
        await self.endpoint.aclose()

    def refusal(self, request: Request, status: int, raw: bytes) -> CallProblem:
        """Return the problem reported by an error response to one call of a batch."""
        return self.endpoint.failure(status, raw)

    def _check_name(self, replied: object) -> None:
        """Tell the user once if replies name a different model; dates and folders in names are ignored."""
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
    """A client for an address with `/chat/completions`; it remembers the parameters that the server rejects."""

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
        """Return the JSON object that is sent for a request, without the parameters that the server rejects."""
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        wanted = _parameters(request)
        used = {self._sent_as.get(name, name): wanted[name] for name in wanted if name not in self._left_out}
        return {**request.decoding.extra_fields(), "model": self._name, "messages": messages, **used}

    def refusal(self, request: Request, status: int, raw: bytes) -> CallProblem:
        """Return the problem of one call in a batch; if the server rejected a parameter, retries omit it."""
        problem = self.endpoint.failure(status, raw)
        # Include parameters that later calls already omit, because an earlier error of this batch may have named them.
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
        """Parse a chat completion; return the reply or the problem."""
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
    """Return, by name, a call's token limit and its parameters that some servers reject."""
    decoding = request.decoding
    given = {"temperature": decoding.temperature, "top_p": decoding.top_p, "seed": request.seed}
    return {name: value for name, value in {**given, "max_tokens": decoding.max_tokens}.items() if value is not None}


class AnthropicServer(ChatServer):
    """A client for an address with `/messages`."""

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
        """Return the JSON object that is sent for a request."""
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
        """Parse a message from Anthropic's endpoint; return the reply or the problem."""
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
        """Answer requests concurrently, and yield outcomes as they arrive."""
        return self._pool.serve(requests)

    async def probe(self) -> CallProblem | None:
        """Look for the model in each server's list of models."""
        if self._replicas is not None:
            return await self._replicas.probe()
        listed = await self._servers[0].listed()
        return listed if isinstance(listed, CallProblem) else None

    async def close(self) -> None:
        """Close the connections to all servers."""
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
