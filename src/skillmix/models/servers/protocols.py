"""Chat endpoints: those compatible with OpenAI's, with the quirks of many servers, and Anthropic's messages."""

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from skillmix.calls import CallProblem, Limits, Outcome, Request
from skillmix.models.servers.http import Endpoint, Refused, fatal_in_probe
from skillmix.models.servers.keys import Server, server_of, servers_of
from skillmix.models.servers.masking import MASK
from skillmix.models.servers.pool import CONCURRENCY, Pool
from skillmix.models.servers.replicas import Replicas
from skillmix.models.servers.replies import ListedModel, NamesInReplies, anthropic_answer, chat_answer, listed_models
from skillmix.models.specs import ModelOptions, ModelSpec, provider_of

_MAY_BE_LEFT_OUT: Final = ("seed", "temperature", "top_p")
_COMPLAINT: Final = re.compile(
    r"support|recogni[sz]ed|unknown|unexpected|permitted|allowed|extra|invalid|must be|deprecated|not accept|param",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"\w+")
_NAMES_SHOWN: Final = 8
VERSION: Final = "2023-06-01"
_DEFAULT_LIMIT: Final = 1024
"""The endpoint requires a limit."""


class OpenAIModel:
    """A chat model behind `/chat/completions`, at one address or at several."""

    def __init__(self, spec: ModelSpec, options: ModelOptions) -> None:
        places = servers_of(spec, options.access)
        provider = provider_of(spec)
        quirks = {"key_header": provider.key_header, "seed_field": provider.seed_field}
        servers = [ChatServer(place, spec.name, options.timeout, say=options.say, **quirks) for place in places]
        self._servers = servers
        most = options.concurrency or CONCURRENCY * len(servers)
        self.limits = Limits(in_flight=most)
        """The calls in flight, over all addresses."""
        self._replicas = Replicas(servers, say=options.say) if len(servers) > 1 else None
        self.answer = servers[0].answer if self._replicas is None else self._replicas.answer
        """Make one call."""
        self._pool = Pool(self.answer, limit=most)

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests, many at once."""
        return self._pool.serve(requests)

    async def probe(self) -> CallProblem | None:
        """Look for the model in the list of each server that has a list."""
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


class ChatServer:
    """One address of a chat model, and the parameters that its server refuses."""

    def __init__(
        self,
        server: Server,
        name: str,
        timeout: float,
        *,
        key_header: str | None = None,
        seed_field: str | None = "seed",
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        headers = {"Authorization": f"Bearer {server.secret}"} if server.secret else {}
        if key_header and server.secret:
            headers[key_header] = server.secret
        self.address = server.address
        self._name = name
        self.endpoint = Endpoint(server, headers=headers, timeout=timeout)
        self._names = NamesInReplies(name, server.address, say)
        self._sent_as = {"seed": seed_field or "seed", "max_tokens": "max_tokens"}
        self._left_out = set() if seed_field else {"seed"}

    async def listed(self) -> ListedModel | CallProblem | None:
        """The model in the server's list of models, or why it cannot be used; None if the server has no list."""
        listed = await self.endpoint.get("/models")
        if isinstance(listed, CallProblem):
            return None if listed.reason == "HTTP 404" else fatal_in_probe(listed)
        models = listed_models(listed) if isinstance(listed, bytes) else []
        found = [
            model for model in models if model.name in (self._name, f"{self._name}:latest", f"models/{self._name}")
        ]
        if found or not models:
            return found[0] if found else None
        shown = ", ".join(MASK.line(model.name, longest=80) for model in models[:_NAMES_SHOWN])
        return CallProblem("fatal", "unknown model", f"{self._name!r} is not among {MASK.line(shown)}")

    async def close(self) -> None:
        """Close the connections."""
        await self.endpoint.close()

    async def answer(self, request: Request) -> Outcome:
        """Make one call; a parameter that the server refuses is left out from then on, and the reply says so."""
        while True:
            body = self.body(request)
            result = await self.endpoint.post("/chat/completions", body, max_tokens=request.decoding.max_tokens)
            if isinstance(result, bytes):
                return self.outcome(request, result)
            if not (isinstance(result, Refused) and self._leave_out(result.detail, body)):
                return result

    def body(self, request: Request) -> dict[str, object]:
        """The body of a request, without the parameters that the server refuses."""
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        wanted = _parameters(request)
        used = {self._sent_as.get(name, name): wanted[name] for name in wanted if name not in self._left_out}
        return {**request.decoding.extra_fields(), "model": self._name, "messages": messages, **used}

    def refusal(self, request: Request, status: int, raw: bytes) -> CallProblem:
        """The problem of one call in a batch; without a parameter that the server refuses, it may be asked again."""
        problem = self.endpoint.failure(status, raw)
        # Parameters count that are left out by now: another call of the same batch may have the same problem.
        named = {**_parameters(request), "max_tokens": 0}
        if isinstance(problem, Refused) and self._leave_out(problem.detail, named):
            return replace(problem, kind="passing")
        return problem

    def _leave_out(self, message: str, body: dict[str, object]) -> bool:
        """Leave out the parameter that an error message complains about; False if it complains about none.

        The parameter may already be left out of later calls: this call was sent before, and is sent again too.
        """
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
        """Read the reply to a request."""
        answer = chat_answer(raw, max_tokens=request.decoding.max_tokens)
        if isinstance(answer, CallProblem):
            return answer
        self.endpoint.note_good_reply()
        self._names.check(answer.model)
        return answer.reply(not_sent=tuple(sorted(self._left_out & _parameters(request).keys())))


def _parameters(request: Request) -> dict[str, object]:
    """The parameters of a call that some servers refuse, and its limit, by name."""
    decoding = request.decoding
    given = {"temperature": decoding.temperature, "top_p": decoding.top_p, "seed": request.seed}
    return {name: value for name, value in {**given, "max_tokens": decoding.max_tokens}.items() if value is not None}


class AnthropicModel:
    """A chat model behind `/messages`."""

    def __init__(self, spec: ModelSpec, options: ModelOptions) -> None:
        server = server_of(spec, options.access)
        self.address = server.address
        self._name = spec.name
        self._is_own = server.is_own
        self._names = NamesInReplies(spec.name, server.address, options.say)
        key = {"x-api-key": server.secret} if server.secret else {}
        self.endpoint = Endpoint(server, headers={**key, "anthropic-version": VERSION}, timeout=options.timeout)
        self.limits = Limits(in_flight=options.concurrency or CONCURRENCY)
        """The calls in flight."""
        self._pool = Pool(self.answer, limit=options.concurrency or CONCURRENCY)

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests, many at once."""
        return self._pool.serve(requests)

    async def probe(self) -> CallProblem | None:
        """Ask for the model's description, which a compatible server need not have."""
        description = await self.endpoint.get(f"/models/{quote(self._name, safe='')}")
        if not isinstance(description, CallProblem) or (description.reason == "HTTP 404" and not self._is_own):
            return None
        return fatal_in_probe(description)

    async def close(self) -> None:
        """Close the connections."""
        await self.endpoint.close()

    async def answer(self, request: Request) -> Outcome:
        """Make one call; the endpoint takes no seed, and the reply says so."""
        limit = request.decoding.max_tokens or _DEFAULT_LIMIT
        result = await self.endpoint.post("/messages", self.body(request), max_tokens=limit)
        return self.outcome(request, result) if isinstance(result, bytes) else result

    def body(self, request: Request) -> dict[str, object]:
        """The body of a request."""
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

    def refusal(self, request: Request, status: int, raw: bytes) -> CallProblem:
        """The problem of one call in a batch."""
        return self.endpoint.failure(status, raw)

    def outcome(self, request: Request, raw: bytes) -> Outcome:
        """Read the reply to a request."""
        answer = anthropic_answer(raw, max_tokens=request.decoding.max_tokens)
        if isinstance(answer, CallProblem):
            return answer
        self.endpoint.note_good_reply()
        self._names.check(answer.model)
        return answer.reply(not_sent=() if request.seed is None else ("seed",))
