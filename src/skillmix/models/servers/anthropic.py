"""Anthropic's messages endpoint."""

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from skillmix.calls import CallProblem, Limits, Outcome, Reply, Request
from skillmix.models.servers.http import Endpoint, Refused, fatal_in_probe
from skillmix.models.servers.keys import server_of
from skillmix.models.servers.pool import CONCURRENCY, Pool
from skillmix.models.servers.replies import NamesInReplies, anthropic_answer
from skillmix.models.specs import ModelOptions, ModelSpec

VERSION: Final = "2023-06-01"
_DEFAULT_LIMIT: Final = 1024
"""The endpoint requires a limit."""


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
        if isinstance(result, CallProblem):
            return result
        if isinstance(result, Refused):
            return result.problem
        return self.outcome(request, result)

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
        result = self.endpoint.failure(status, raw)
        return result if isinstance(result, CallProblem) else result.problem

    def outcome(self, request: Request, raw: bytes) -> Outcome:
        """Read the reply to a request."""
        answer = anthropic_answer(raw, max_tokens=request.decoding.max_tokens)
        if isinstance(answer, CallProblem):
            return answer
        self.endpoint.note_good_reply()
        self._names.check(answer.model)
        return Reply(
            text=answer.text,
            finish=answer.finish,
            input_tokens=answer.tokens[0],
            output_tokens=answer.tokens[1],
            not_sent=() if request.seed is None else ("seed",),
        )
