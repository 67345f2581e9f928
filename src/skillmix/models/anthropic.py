"""Anthropic's messages endpoint."""

import os
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import quote

from skillmix.core.calls import CallProblem, Outcome, Reply, Request
from skillmix.core.specs import ModelSpec
from skillmix.models.http import Endpoint, Refused, key_from
from skillmix.models.pool import Pool

ADDRESS: Final = "https://api.anthropic.com/v1"
KEY: Final = "ANTHROPIC_API_KEY"
VERSION: Final = "2023-06-01"
_FALLBACK_LIMIT: Final = 1024
"""The endpoint insists on a limit."""


class AnthropicModel:
    """A chat model behind `/messages`."""

    def __init__(self, spec: ModelSpec, *, concurrency: int = 64, timeout: float = 600) -> None:
        secret = key_from(dict(os.environ), KEY)
        self._name = spec.name
        self._address = spec.address or ADDRESS
        self._endpoint = Endpoint(
            f"{self._address}/messages",
            headers={"x-api-key": secret, "anthropic-version": VERSION},
            secret=secret,
            timeout=timeout,
        )
        self._pool = Pool(self.answer, most=concurrency)

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests, many at once."""
        return self._pool.serve(requests)

    async def probe(self) -> CallProblem | None:
        """Ask for the model's description."""
        described = await self._endpoint.get(f"{self._address}/models/{quote(self._name, safe='')}")
        is_fatal = isinstance(described, CallProblem) and described.kind == "fatal"
        return described if is_fatal and isinstance(described, CallProblem) else None

    async def close(self) -> None:
        """Give the connections back."""
        await self._endpoint.close()

    async def answer(self, request: Request) -> Outcome:
        """One call; the endpoint takes no seed, and the reply says so."""
        result = await self._endpoint.post(self._body(request))
        if isinstance(result, CallProblem):
            return result
        if isinstance(result, Refused):
            return CallProblem("fatal", "HTTP 400", result.message)
        return self._outcome(request, result)

    def _body(self, request: Request) -> dict[str, object]:
        decoding = request.decoding
        system = "\n\n".join(m.content for m in request.messages if m.role == "system")
        optional = {"temperature": decoding.temperature, "top_p": decoding.top_p, "system": system or None}
        return {
            "model": self._name,
            "max_tokens": decoding.max_tokens or _FALLBACK_LIMIT,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages if m.role != "system"],
            **{name: value for name, value in optional.items() if value is not None},
        }

    def _outcome(self, request: Request, document: dict[str, Any]) -> Outcome:
        blocks = document.get("content")
        if not isinstance(blocks, list):
            return CallProblem("passing", "no content", self._endpoint.safe(str(document)))
        if document.get("stop_reason") == "refusal":
            return CallProblem("final", "refusal")
        usage = document.get("usage")
        tokens = usage if isinstance(usage, dict) else {}
        texts = [b.get("text", "") for b in blocks if isinstance(b, dict) and b.get("type") == "text"]
        return Reply(
            text="".join(map(str, texts)),
            finish=document.get("stop_reason"),
            input_tokens=tokens.get("input_tokens"),
            output_tokens=tokens.get("output_tokens"),
            not_sent=() if request.seed is None else ("seed",),
        )
