"""The OpenAI protocol against a server on loopback: good replies, quirks, and every failure told apart."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from skillmix.calls import CallProblem, Decoding, Outcome, Reply
from skillmix.errors import UserError
from skillmix.models.servers.protocols import OpenAIModel
from skillmix.models.specs import Access, ModelOptions, ModelSpec
from tests.models.stub import Handler, Stub, ask, chat, error, request, serving

SECRET = "sk-very-secret-key-123456"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDENT_KEY", SECRET)


def answers(
    handler: Handler, *, count: int = 1, timeout: float = 5, concurrency: int = 8
) -> tuple[list[Outcome], Stub]:
    async def main() -> tuple[list[Outcome], Stub]:
        async with serving(handler) as stub:
            spec = ModelSpec("openai", "gpt-x", stub.address)
            model = OpenAIModel(spec, ModelOptions(concurrency, timeout, Access("STUDENT_KEY")))
            results = await ask(model, *(request(number) for number in range(count)))
            return [outcome for _, outcome in results], stub

    return asyncio.run(main())


def answer(handler: Handler, **settings: Any) -> tuple[Outcome, Stub]:
    outcomes, stub = answers(handler, **settings)
    return outcomes[0], stub


def test_a_call_sends_what_the_request_says_and_nothing_else() -> None:
    outcome, stub = answer(lambda body: chat("Answer: hi"))

    assert outcome == Reply("Answer: hi", "stop", 7, 3)
    assert stub.bodies == [
        {
            "model": "gpt-x",
            "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi 0"}],
            "temperature": 0.7,
            "seed": 7,
            "max_tokens": 512,
        }
    ]
    assert stub.headers[0]["Authorization"] == f"Bearer {SECRET}"


def test_extra_fields_are_sent_and_replace_nothing() -> None:
    async def main() -> Stub:
        async with serving(lambda body: chat("hi")) as stub:
            model = OpenAIModel(ModelSpec("openai", "gpt-x", stub.address), ModelOptions(access=Access("STUDENT_KEY")))
            extra = '{"model":"other","reasoning_effort":"low","temperature":2}'
            await ask(model, request(decoding=Decoding(extra=extra)))
            return stub

    body = asyncio.run(main()).bodies[0]

    assert body["reasoning_effort"] == "low"
    assert (body["model"], body["temperature"]) == ("gpt-x", 0.7)


def test_the_official_address_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(UserError, match="OPENAI_API_KEY is not set"):
        OpenAIModel(ModelSpec("openai", "gpt-x"), ModelOptions())


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (lambda: chat(None), ""),
        (lambda: chat(""), ""),
        (lambda: chat("<think>hm\nhm</think>\n\nAnswer: x"), "<think>hm\nhm</think>\n\nAnswer: x"),
        (lambda: chat(None, message={"reasoning_content": "Answer: perhaps"}), "<think>\nAnswer: perhaps"),
        (lambda: chat("", message={"reasoning": "Hm"}), "<think>\nHm"),
        (lambda: chat("x", message={"reasoning_content": "long thoughts"}), "x"),
        (lambda: chat("x", message={"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}), "ab"),
        (
            lambda: web.json_response({"choices": [{"message": {"content": "one"}}, {"message": {"content": "two"}}]}),
            "one",
        ),
    ],
)
def test_replies_of_many_shapes_are_replies(response: Any, text: str) -> None:
    outcome, _ = answer(lambda body: response())

    assert isinstance(outcome, Reply)
    assert outcome.text == text


def test_a_model_that_wants_max_completion_tokens_gets_it() -> None:
    def handler(body: dict[str, Any]) -> web.Response:
        if "max_tokens" in body:
            return error(400, "Unsupported parameter: use 'max_completion_tokens' instead.", param="max_tokens")
        return chat("hi")

    outcomes, stub = answers(handler, count=3, concurrency=1)

    assert all(isinstance(outcome, Reply) and outcome.not_sent == () for outcome in outcomes)
    assert ["max_tokens" in body for body in stub.bodies] == [True, False, False, False]
    assert stub.bodies[-1]["max_completion_tokens"] == 512


@pytest.mark.parametrize("name", ["temperature", "seed"])
def test_a_parameter_that_is_refused_is_left_out_and_recorded(name: str) -> None:
    def handler(body: dict[str, Any]) -> web.Response:
        return error(400, f"Unsupported value: '{name}' does not support this model.") if name in body else chat("hi")

    outcome, stub = answer(handler)

    assert isinstance(outcome, Reply)
    assert outcome.not_sent == (name,)
    assert name not in stub.bodies[-1]


@pytest.mark.parametrize(
    ("response", "kind", "reason"),
    [
        (lambda: error(401, f"Incorrect API key provided: {SECRET}"), "fatal", "HTTP 401"),
        (lambda: error(403, "no"), "failed", "HTTP 403"),
        (lambda: error(404, "The model 'gpt-x' does not exist"), "fatal", "HTTP 404"),
        (lambda: error(400, "The model gpt-x does not exist", code="model_not_found"), "fatal", "HTTP 400"),
        (lambda: error(400, "something else"), "failed", "HTTP 400"),
        (lambda: error(429, "You exceeded your quota", code="insufficient_quota"), "fatal", "HTTP 429"),
        (lambda: error(400, "This model's maximum context length is 10", code="x"), "failed", "prompt too long"),
        (lambda: error(413, "too large"), "failed", "prompt too long"),
        (lambda: error(400, "blocked by content management policy"), "failed", "prompt filtered"),
        (lambda: chat("x", finish_reason="content_filter"), "final", "content filter"),
        (lambda: chat(None, message={"refusal": "I can't."}), "final", "refusal"),
        (lambda: error(429, "slow down"), "passing", "HTTP 429"),
        (lambda: error(500, "oops"), "passing", "HTTP 500"),
        (lambda: web.Response(status=502, text="<html>bad gateway</html>"), "passing", "HTTP 502"),
        (lambda: web.Response(text="{not json", content_type="application/json"), "passing", "invalid JSON"),
        (lambda: web.json_response([1]), "passing", "invalid JSON"),
        (lambda: web.json_response({"choices": []}), "passing", "no choices"),
        (lambda: web.json_response({}), "passing", "no choices"),
    ],
)
def test_failures_are_told_apart(response: Any, kind: str, reason: str) -> None:
    outcome, _ = answer(lambda body: response())

    assert isinstance(outcome, CallProblem)
    assert (outcome.kind, outcome.reason) == (kind, reason)
    assert SECRET not in json.dumps([outcome.reason, outcome.detail])


def test_retry_after_is_passed_on() -> None:
    outcome, _ = answer(lambda body: web.Response(status=429, headers={"Retry-After": "2.5"}))

    assert isinstance(outcome, CallProblem)
    assert outcome.retry_after == 2.5


def test_silence_is_a_timeout() -> None:
    async def handler(body: dict[str, Any]) -> web.Response:
        await asyncio.sleep(5)
        return chat("late")

    outcome, _ = answer(handler, timeout=0.2)

    assert outcome == CallProblem("passing", "timeout")


def test_nobody_at_the_address_is_fatal_for_a_probe_and_may_pass_for_a_call() -> None:
    async def main() -> list[Outcome | None]:
        model = OpenAIModel(ModelSpec("openai", "x", "http://127.0.0.1:9/v1"), ModelOptions())
        return [await model.probe(), (await ask(model, request()))[0][1]]

    problems = asyncio.run(main())

    kinds = [(problem.kind, problem.reason) for problem in problems if isinstance(problem, CallProblem)]
    assert kinds == [("fatal", "no connection"), ("passing", "no connection")]


def test_a_dropped_connection_after_a_good_reply_may_pass() -> None:
    calls = iter(range(10))

    async def main() -> list[Outcome]:
        async def handler(body: dict[str, Any]) -> web.StreamResponse:
            if next(calls) == 0:
                return chat("good")
            raise ConnectionResetError

        async with serving(handler) as stub:
            model = OpenAIModel(ModelSpec("openai", "x", stub.address), ModelOptions(concurrency=1))
            return [outcome for _, outcome in await ask(model, request(0), request(1))]

    first, second = asyncio.run(main())

    assert isinstance(first, Reply)
    assert isinstance(second, CallProblem)
    assert second.kind == "passing"


def test_many_calls_are_in_flight_but_not_more_than_allowed() -> None:
    async def handler(body: dict[str, Any]) -> web.Response:
        await asyncio.sleep(0.02)
        return chat(body["messages"][-1]["content"])

    outcomes, stub = answers(handler, count=60, concurrency=10)

    assert stub.most_at_once == 10
    assert {o.text for o in outcomes if isinstance(o, Reply)} == {f"Hi {number}" for number in range(60)}


def test_a_server_that_complains_gets_fewer_calls_at_once() -> None:
    complaints = iter(range(4))

    async def handler(body: dict[str, Any]) -> web.Response:
        await asyncio.sleep(0.01)
        return error(429, "slow down") if next(complaints, None) is not None else chat("hi")

    async def main() -> int:
        async with serving(handler) as stub:
            model = OpenAIModel(ModelSpec("openai", "x", stub.address), ModelOptions(concurrency=16))
            await ask(model, *(request(number) for number in range(10)))
            return model._pool.room

    assert asyncio.run(main()) < 16


def test_decoding_comes_from_the_request_alone() -> None:
    async def main() -> dict[str, Any]:
        async with serving(lambda body: chat("hi")) as stub:
            model = OpenAIModel(ModelSpec("openai", "x", stub.address), ModelOptions())
            await ask(model, request(0, Decoding(temperature=0.0, max_tokens=9, top_p=0.5)))
            return stub.bodies[0]

    body = asyncio.run(main())

    assert (body["temperature"], body["max_tokens"], body["top_p"]) == (0.0, 9, 0.5)
