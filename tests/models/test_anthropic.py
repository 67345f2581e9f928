import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from skillmix.calls import CallProblem, Decoding, Outcome, Reply
from skillmix.errors import UserError
from skillmix.models.servers.protocols import AnthropicModel
from skillmix.models.specs import Access, ModelOptions, ModelSpec
from tests.models.stub import Handler, Stub, ask, request, serving

SECRET = "sk-ant-very-secret-123456"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDENT_KEY", SECRET)


def answer(handler: Handler, decoding: Decoding | None = None) -> tuple[Outcome, Stub]:
    async def main() -> tuple[Outcome, Stub]:
        async with serving(handler) as stub:
            model = AnthropicModel(
                ModelSpec("anthropic", "claude-x", stub.address), ModelOptions(access=Access("STUDENT_KEY"))
            )
            return (await ask(model, request(decoding=decoding)))[0][1], stub

    return asyncio.run(main())


def message(text: str, **changes: Any) -> web.Response:
    usage = {"input_tokens": 7, "output_tokens": 3}
    return web.json_response(
        {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": usage} | changes
    )


def test_a_call_sends_the_system_prompt_apart_and_says_that_no_seed_was_sent() -> None:
    outcome, stub = answer(lambda body: message("Answer: hi"))

    assert outcome == Reply("Answer: hi", "end_turn", 7, 3, None, ("seed",))
    assert stub.bodies == [
        {
            "model": "claude-x",
            "max_tokens": 512,
            "messages": [{"role": "user", "content": "Hi 0"}],
            "temperature": 0.7,
            "system": "Be brief",
        }
    ]
    assert stub.headers[0]["x-api-key"] == SECRET
    assert stub.headers[0]["anthropic-version"]


def test_extra_fields_are_sent_and_replace_nothing() -> None:
    extra = '{"model":"other","thinking":{"type":"disabled"}}'
    _, stub = answer(lambda body: message("hi"), Decoding(extra=extra))

    assert stub.bodies[0]["thinking"] == {"type": "disabled"}
    assert stub.bodies[0]["model"] == "claude-x"


@pytest.mark.parametrize(
    ("response", "kind", "reason"),
    [
        (lambda: message("", stop_reason="refusal"), "final", "refusal"),
        (lambda: web.json_response({"type": "message"}), "passing", "no content"),
        (
            lambda: web.json_response({"error": {"type": "overloaded_error", "message": "busy"}}, status=529),
            "passing",
            "HTTP 529",
        ),
        (
            lambda: web.json_response({"error": {"message": f"invalid x-api-key {SECRET}"}}, status=401),
            "fatal",
            "HTTP 401",
        ),
        (
            lambda: web.json_response({"error": {"message": "prompt is too long: 9"}}, status=400),
            "failed",
            "prompt too long",
        ),
        (lambda: web.json_response({"error": {"message": "odd"}}, status=400), "failed", "HTTP 400"),
    ],
)
def test_failures_are_told_apart(response: Any, kind: str, reason: str) -> None:
    outcome, _ = answer(lambda body: response())

    assert isinstance(outcome, CallProblem)
    assert (outcome.kind, outcome.reason) == (kind, reason)
    assert SECRET not in json.dumps([outcome.reason, outcome.detail])


def test_an_empty_reply_is_a_reply() -> None:
    outcome, _ = answer(lambda body: message("", content=[]))

    assert isinstance(outcome, Reply)
    assert outcome.text == ""


def test_it_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)

    with pytest.raises(UserError, match="ANTHROPIC_API_KEY is not set"):
        AnthropicModel(ModelSpec("anthropic", "claude-x"), ModelOptions())
