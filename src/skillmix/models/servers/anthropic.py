"""Anthropic's messages endpoint."""

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from skillmix.calls import CallProblem, Outcome, Reply, Request
from skillmix.models.servers.http import Endpoint, Refused, probed
from skillmix.models.servers.keys import door_of
from skillmix.models.servers.pool import CONCURRENCY, Pool
from skillmix.models.servers.replies import anthropic_answer
from skillmix.models.specs import ModelOptions, ModelSpec

VERSION: Final = "2023-06-01"
_FALLBACK_LIMIT: Final = 1024
"""The endpoint insists on a limit."""


class AnthropicModel:
    """A chat model behind `/messages`."""

    def __init__(self, spec: ModelSpec, options: ModelOptions) -> None:
        door = door_of(spec, options.access)
        self._name = spec.name
        self._is_own = door.is_own
        key = {"x-api-key": door.secret} if door.secret else {}
        self._endpoint = Endpoint(door, headers={**key, "anthropic-version": VERSION}, timeout=options.timeout)
        self._pool = Pool(self.answer, limit=options.concurrency or CONCURRENCY)

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests, many at once."""
        return self._pool.serve(requests)

    async def probe(self) -> CallProblem | None:
        """Ask for the model's description; a compatible server need not have one."""
        described = await self._endpoint.get(f"/models/{quote(self._name, safe='')}")
        if not isinstance(described, CallProblem) or (described.reason == "HTTP 404" and not self._is_own):
            return None
        return probed(described)

    async def close(self) -> None:
        """Give the connections back."""
        await self._endpoint.close()

    async def answer(self, request: Request) -> Outcome:
        """One call; the endpoint takes no seed, and the reply says so."""
        limit = request.decoding.max_tokens or _FALLBACK_LIMIT
        result = await self._endpoint.post("/messages", self._body(request, limit), most_tokens=limit)
        if isinstance(result, CallProblem):
            return result
        if isinstance(result, Refused):
            return result.problem
        return self._outcome(request, result)

    def _body(self, request: Request, limit: int) -> dict[str, object]:
        decoding = request.decoding
        system = "\n\n".join(m.content for m in request.messages if m.role == "system")
        optional = {"temperature": decoding.temperature, "top_p": decoding.top_p, "system": system or None}
        return {
            "model": self._name,
            "max_tokens": limit,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages if m.role != "system"],
            **{name: value for name, value in optional.items() if value is not None},
        }

    def _outcome(self, request: Request, raw: bytes) -> Outcome:
        answer = anthropic_answer(raw, most_tokens=request.decoding.max_tokens)
        if isinstance(answer, CallProblem):
            return answer
        self._endpoint.answered()
        return Reply(
            text=answer.text,
            finish=answer.finish,
            input_tokens=answer.tokens[0],
            output_tokens=answer.tokens[1],
            not_sent=() if request.seed is None else ("seed",),
        )
