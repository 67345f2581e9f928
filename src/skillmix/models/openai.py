"""Any OpenAI-compatible chat endpoint, with the quirks of the many servers that call themselves so."""

import os
import re
from collections.abc import AsyncIterator
from typing import Any, Final

from skillmix.core.calls import CallProblem, Outcome, Reply, Request
from skillmix.core.specs import ModelSpec
from skillmix.models.http import Endpoint, Refused, key_from
from skillmix.models.pool import Pool

ADDRESS: Final = "https://api.openai.com/v1"
KEY: Final = "OPENAI_API_KEY"
_THINKING = re.compile(r"^\s*<think>.*?</think>\s*", re.DOTALL)
_MAY_BE_LEFT_OUT: Final = ("seed", "temperature", "top_p")


class OpenAIModel:
    """A chat model behind `/chat/completions`."""

    def __init__(self, spec: ModelSpec, *, concurrency: int = 64, timeout: float = 600) -> None:
        environment = dict(os.environ)
        secret = environment.get(KEY) if spec.address else key_from(environment, KEY)
        self._name = spec.name
        self._address = spec.address or ADDRESS
        self._endpoint = Endpoint(
            f"{self._address}/chat/completions",
            headers={"Authorization": f"Bearer {secret}"} if secret else {},
            secret=secret,
            timeout=timeout,
        )
        self._pool = Pool(self.answer, most=concurrency)
        self._limit_name = "max_tokens"
        self._left_out: set[str] = set()

    def serve(self, requests: AsyncIterator[Request]) -> AsyncIterator[tuple[Request, Outcome]]:
        """Answer requests, many at once."""
        return self._pool.serve(requests)

    async def probe(self) -> CallProblem | None:
        """Ask for the list of models; a server that has none to show is taken at its word."""
        listed = await self._endpoint.get(f"{self._address}/models")
        if isinstance(listed, CallProblem):
            missing = listed.reason == "HTTP 404"
            return listed if listed.kind == "fatal" and not missing else None
        entries = listed.get("data") if isinstance(listed, dict) else None
        names = [str(entry.get("id")) for entry in entries or [] if isinstance(entry, dict)]
        if not names or any(name in (self._name, f"{self._name}:latest") for name in names):
            return None
        return CallProblem("fatal", "unknown model", f"{self._name!r} is not among {', '.join(names[:8])}")

    async def close(self) -> None:
        """Give the connections back."""
        await self._endpoint.close()

    async def answer(self, request: Request) -> Outcome:
        """One call; a parameter that the server will not take is left out from then on, and said so."""
        while True:
            result = await self._endpoint.post(self._body(request))
            if isinstance(result, CallProblem):
                return result
            if not isinstance(result, Refused):
                return self._outcome(request, result)
            if not self._leave_out(result.message):
                return CallProblem("fatal", "HTTP 400", result.message)

    def _body(self, request: Request) -> dict[str, object]:
        wanted = {
            "temperature": request.decoding.temperature,
            "top_p": request.decoding.top_p,
            "seed": request.seed,
            self._limit_name: request.decoding.max_tokens,
        }
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        sent = {name: value for name, value in wanted.items() if value is not None and name not in self._left_out}
        return {"model": self._name, "messages": messages, **sent}

    def _leave_out(self, message: str) -> bool:
        """Change what is sent according to a complaint; False if it is about something else."""
        if "max_completion_tokens" in message and self._limit_name == "max_tokens":
            self._limit_name = "max_completion_tokens"
            return True
        for name in _MAY_BE_LEFT_OUT:
            if re.search(rf"\b{name}\b", message) and name not in self._left_out:
                self._left_out.add(name)
                return True
        return False

    def _outcome(self, request: Request, document: dict[str, Any]) -> Outcome:
        choices = document.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            return CallProblem("passing", "no choices", self._endpoint.safe(str(document)))
        if message.get("refusal"):
            return CallProblem("final", "refusal", self._endpoint.safe(str(message["refusal"])))
        if choice.get("finish_reason") == "content_filter":
            return CallProblem("final", "content filter")
        usage = document.get("usage") if isinstance(document.get("usage"), dict) else {}
        asked = {"temperature": request.decoding.temperature, "top_p": request.decoding.top_p, "seed": request.seed}
        return Reply(
            text=_THINKING.sub("", _text_of(message.get("content"))),
            finish=choice.get("finish_reason"),
            input_tokens=_count(usage, "prompt_tokens"),
            output_tokens=_count(usage, "completion_tokens"),
            not_sent=tuple(name for name in sorted(self._left_out) if asked.get(name) is not None),
        )


def _text_of(content: object) -> str:
    """Content as a string, or as a list of parts; none at all is an empty reply."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict) and part.get("type") == "text")


def _count(usage: object, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) else None
