"""Several addresses of one model: where calls go, and what becomes of them when a server fails."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from skillmix.calls import CallKey, CallProblem, Outcome, Reply, Request
from skillmix.errors import UserError
from skillmix.models.servers import replicas as module
from skillmix.models.servers.keys import servers_of
from skillmix.models.servers.protocols import OpenAIModel
from skillmix.models.servers.replicas import Listed, Replicas
from skillmix.models.specs import Access, ModelOptions, ModelSpec, parse_spec
from skillmix.runs.scheduler import Retries
from tests.hostile.kinds import KINDS
from tests.hostile.replies import SECRET
from tests.hostile.server import hostile_server
from tests.hostile.visit import holds_key
from tests.models.stub import SILENCE, Handler, Stub, ask, chat, error, request, serving


async def answered(model: OpenAIModel, *requests: Request) -> tuple[dict[CallKey, Outcome], int]:
    """The outcomes of requests, and the number of moves; a call that may move is asked again at once, as in a run."""
    outcomes: dict[CallKey, Outcome] = {}
    moves = 0
    waiting: asyncio.Queue[Request] = asyncio.Queue()
    for one in requests:
        waiting.put_nowait(one)

    async def stream() -> AsyncIterator[Request]:
        while len(outcomes) < len(requests):
            try:
                yield waiting.get_nowait()
            except asyncio.QueueEmpty:
                await asyncio.sleep(0.001)

    try:
        async for one, outcome in model.serve(stream()):
            if isinstance(outcome, CallProblem) and outcome.may_move:
                moves += 1
                waiting.put_nowait(one)
            else:
                outcomes[one.key] = outcome
    finally:
        await model.close()
    return outcomes, moves


@asynccontextmanager
async def several(*handlers: Handler, **settings: Any) -> AsyncIterator[list[Stub]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serving(handler, **settings)) for handler in handlers]


def model_at(*addresses: str, **options: Any) -> OpenAIModel:
    spec = parse_spec(f"openai:m@{','.join(addresses)}")
    return OpenAIModel(spec, ModelOptions(**{"concurrency": 16, "timeout": 5.0} | options))


def asked_at(*handlers: Handler, count: int, **options: Any) -> tuple[list[Outcome], list[Stub], int, OpenAIModel]:
    """The outcomes of so many calls, the servers, the number of moves and the model."""

    async def main() -> tuple[list[Outcome], list[Stub], int, OpenAIModel]:
        async with several(*handlers) as stubs:
            model = model_at(*(stub.address for stub in stubs), **options)
            outcomes, moves = await answered(model, *map(request, range(count)))
            return list(outcomes.values()), stubs, moves, model

    return asyncio.run(main())


def after(seconds: float) -> Callable[[dict[str, Any]], Awaitable[web.Response]]:
    async def handler(body: dict[str, Any]) -> web.Response:
        await asyncio.sleep(seconds)
        return chat("hi")

    return handler


def are_replies(outcomes: Sequence[Outcome]) -> bool:
    return all(isinstance(outcome, Reply) for outcome in outcomes)


# The spec


def test_a_spec_lists_addresses_with_commas() -> None:
    spec = parse_spec("openai:m@http://a:8000/v1/, https://b.example/v1")

    assert spec.addresses == ("http://a:8000/v1", "https://b.example/v1")
    assert str(spec) == "openai:m@http://a:8000/v1,https://b.example/v1"
    assert parse_spec(str(spec)) == spec


@pytest.mark.parametrize(
    ("addresses", "messages"),
    [
        ("http://a/v1,ftp://b/v1,http://c:0/v1", ["'ftp://b/v1' is not a valid address", "'http://c:0/v1' is not"]),
        ("http://a/v1,", ["'' is not a valid address"]),
        ("http://a/v1,,http://b/v1", ["'' is not a valid address"]),
        ("http://a/v1,http://a/v1", ["'http://a/v1' is listed twice."]),
        ("http://a/v1,http://A:80/v1/", ["'http://A:80/v1/' is listed twice, first as 'http://a/v1'"]),
        ("https://a/v1,http://b/v1,https://a:443/v1", ["'https://a:443/v1' is listed twice"]),
        ("http://a/v1,http://user:hunter2@b/v1", ["user name or a password"]),
        ("http://user:hunter2,x@b/v1", ["user name or a password"]),
    ],
)
def test_every_fault_of_the_addresses_is_named_and_no_password_is_repeated(addresses: str, messages: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_spec(f"openai:m@{addresses}")

    said = f"{caught.value.message} {caught.value.hint}"
    assert all(message in said for message in messages), said
    assert "hunter2" not in said


def test_only_openai_takes_several_addresses() -> None:
    with pytest.raises(UserError, match="anthropic: takes one address, not 2"):
        parse_spec("anthropic:m@http://a/v1,http://b/v1")


# Keys


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai-0123456789")
    monkeypatch.setenv("VLLM_KEY", "sk-vllm-0123456789")


@pytest.mark.usefixtures("keys")
def test_each_address_gets_only_the_key_that_belongs_to_it() -> None:
    mixed = parse_spec("openai:m@https://api.openai.com/v1,http://127.0.0.1:9/v1,https://models.example/v1")

    assert [server.variable for server in servers_of(mixed, Access())] == ["OPENAI_API_KEY", None, None]


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("addresses", "access", "message"),
    [
        (
            "https://api.openai.com/v1,https://b.example/v1",
            Access("OPENAI_API_KEY"),
            "sent only to https://api.openai.com/v1, not to https://b.example/v1",
        ),
        (
            "https://a.example/v1,http://10.0.0.7/v1",
            Access("VLLM_KEY"),
            "not sent to http://10.0.0.7/v1 without encryption",
        ),
    ],
)
def test_one_address_that_must_not_get_the_key_refuses_the_model(addresses: str, access: Access, message: str) -> None:
    with pytest.raises(UserError, match=message):
        servers_of(parse_spec(f"openai:m@{addresses}"), access)


@pytest.mark.usefixtures("keys")
def test_the_key_of_the_model_goes_to_its_addresses_with_calls_and_checks() -> None:
    async def main() -> list[Stub]:
        async with several(after(0), after(0)) as stubs:
            model = model_at(*(stub.address for stub in stubs), access=Access("VLLM_KEY"))
            await answered(model, *map(request, range(20)))
            return stubs

    for stub in asyncio.run(main()):
        sent = {headers.get("Authorization") for headers in (*stub.headers, *stub.probes)}
        assert sent == {"Bearer sk-vllm-0123456789"}
        assert stub.headers
        assert stub.probes


# Shares of the calls


def test_equal_servers_get_equal_shares() -> None:
    outcomes, stubs, moves, _ = asked_at(after(0.005), after(0.005), after(0.005), count=900, concurrency=24)

    shares = [len(stub.bodies) for stub in stubs]
    assert are_replies(outcomes)
    assert (sum(shares), moves) == (900, 0)
    assert max(shares) <= 1.1 * 300
    assert min(shares) >= 0.9 * 300


def test_a_slow_server_gets_fewer_calls() -> None:
    outcomes, stubs, _, _ = asked_at(after(0.005), after(0.2), count=200)

    assert are_replies(outcomes)
    assert len(stubs[1].bodies) < 0.4 * len(stubs[0].bodies)


def test_concurrency_is_that_of_all_addresses_together() -> None:
    now = most = 0

    async def handler(body: dict[str, Any]) -> web.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return chat("hi")

    asked_at(handler, handler, handler, count=120, concurrency=9)

    assert most == 9


def test_the_default_concurrency_is_that_of_one_address_times_their_number() -> None:
    assert model_at("http://a/v1", "http://b/v1", concurrency=None).limits.in_flight == 128
    assert model_at("http://a/v1", concurrency=None).limits.in_flight == 64


# Failures


def test_a_server_that_refuses_connections_loses_no_call() -> None:
    async def main() -> tuple[dict[CallKey, Outcome], Stub, list[str]]:
        async with several(after(0.002), after(0.002)) as (good, dead):
            assert dead.stop is not None
            await dead.stop()
            said: list[str] = []
            model = model_at(good.address, dead.address, say=said.append)
            assert await model.probe() is None
            outcomes, moves = await answered(model, *map(request, range(60)))
            assert moves == 0  # the check before the first call has found it
            assert said == [line for line in said if dead.address in line and "no connection" in line][:1]
            return outcomes, good, said

    outcomes, good, said = asyncio.run(main())

    assert are_replies(list(outcomes.values()))
    assert len(good.bodies) == 60
    assert said


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (lambda body: error(500, "oops"), "HTTP 500"),
        (lambda body: error(503, "loading"), "HTTP 503"),
        (lambda body: web.Response(text="{broken"), "invalid JSON"),
        (lambda body: error(429, "slow down"), "HTTP 429"),
    ],
)
def test_calls_of_a_failing_server_move_at_once_and_it_is_left_alone(
    failure: Handler, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 60.0)
    began = time.monotonic()
    outcomes, (bad, good), moves, model = asked_at(failure, after(0.002), count=100, concurrency=8)

    assert are_replies(outcomes), reason
    assert len(good.bodies) == 100
    assert moves == len(bad.bodies) <= 8  # those that were sent before the first failure came back
    assert time.monotonic() - began < 10
    assert model._pool.room == 8  # the other address is not slowed down


def test_a_silent_server_costs_one_timeout_and_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 60.0)
    outcomes, (silent, _), moves, _ = asked_at(lambda body: SILENCE, after(0.002), count=60, concurrency=8, timeout=0.3)

    assert are_replies(outcomes)
    assert moves == len(silent.bodies) <= 8


def test_one_failure_of_a_server_that_answers_other_calls_does_not_stop_its_calls() -> None:
    numbers = iter(range(1000))

    async def now_and_then(body: dict[str, Any]) -> web.Response:
        number = next(numbers)
        await asyncio.sleep(0.02 + 0.01 * (number % 7))  # so that no failed call is the first reply after a pause
        return error(500, "oops") if number % 20 == 19 else chat("hi")

    outcomes, (first, second), moves, _ = asked_at(now_and_then, after(0.05), count=400)

    assert are_replies(outcomes)
    assert moves >= 5
    assert len(first.bodies) > 0.7 * len(second.bodies)


def test_a_server_that_asks_to_wait_gets_no_call_until_then() -> None:
    came: list[float] = []

    def limited(body: dict[str, Any]) -> web.Response:
        came.append(time.monotonic())
        if came[-1] < came[0] + 0.5:
            return web.Response(status=429, headers={"Retry-After": "0.7"})
        return chat("hi")

    outcomes, (_, good), moves, model = asked_at(limited, after(0.02), count=500, concurrency=8)

    early = [at for at in came if at < came[0] + 0.7]
    assert are_replies(outcomes)
    assert moves == len(early) <= 8  # those that were sent before the first reply
    assert len(came) - len(early) > 10  # it has joined again
    assert model._pool.room == 8
    assert len(good.bodies) + len(came) == 500 + moves


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (422, "bad", "failed"),
        (413, "long", "failed"),
        (400, "bad", "failed"),
        (403, "no", "failed"),
        (401, "", "fatal"),
    ],
)
def test_a_request_that_every_server_refuses_is_refused_and_no_address_is_set_aside(
    status: int, message: str, kind: str
) -> None:
    def refuse(body: dict[str, Any]) -> web.Response:
        return error(status, message)

    said: list[str] = []
    outcomes, stubs, moves, _ = asked_at(refuse, refuse, count=12, say=said.append)

    assert moves == (0 if status in (413, 422) else 12)
    assert sum(len(stub.bodies) for stub in stubs) == 12 + moves
    assert {outcome.kind for outcome in outcomes if isinstance(outcome, CallProblem)} == {kind}
    assert all(any(s.address in o.detail for s in stubs) for o in outcomes if isinstance(o, CallProblem))
    assert said == []


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_an_address_that_refuses_what_another_one_answers_is_set_aside(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 60.0)
    calls = 0

    async def loses_its_model(body: dict[str, Any]) -> web.Response:
        nonlocal calls
        calls += 1
        number = calls
        await asyncio.sleep(0.002)
        return chat("hi") if number <= 20 else error(status, "The model `m` does not exist.")

    said: list[str] = []
    outcomes, (bad, good), moves, _ = asked_at(loses_its_model, after(0.02), count=300, concurrency=8, say=said.append)

    assert are_replies(outcomes) and len(outcomes) == 300
    assert moves == len(bad.bodies) - 20 <= 40  # one at a time, until the other address has answered
    assert len(good.bodies) == 280
    (line,) = said
    assert bad.address in line and f"HTTP {status}" in line


def test_a_reply_of_another_model_is_reported_once() -> None:
    def named(name: str) -> Handler:
        return lambda body: web.json_response(
            {"model": name, "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
        )

    said: list[str] = []
    outcomes, (_, liar, _), _, _ = asked_at(
        named("m"), named("gpt-2-tiny"), named("m-2024-08-06"), count=40, say=said.append
    )

    assert are_replies(outcomes)
    assert said == [f"{liar.address} replies as the model 'gpt-2-tiny', but 'm' was requested"]


def test_a_request_that_fails_everywhere_goes_to_each_address_once_and_then_waits() -> None:
    outcomes, stubs, moves, _ = asked_at(*[lambda body: error(500, "oops")] * 3, count=1)

    assert [len(stub.bodies) for stub in stubs] == [1, 1, 1]
    assert moves == 2
    (problem,) = outcomes
    assert isinstance(problem, CallProblem)
    assert all(stub.address in problem.detail for stub in stubs)


class Silent:
    """A server for tests of the choice alone."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def listed(self) -> Listed:
        return None

    async def answer(self, request: Request) -> Outcome:
        return Reply("hi")


class TooLong(Silent):
    """A server for which every prompt is too long."""

    async def answer(self, request: Request) -> Outcome:
        return CallProblem("failed", "prompt too long")


def test_a_refusal_does_not_end_the_trial_of_an_address() -> None:
    async def main() -> tuple[Outcome, bool]:
        replicas = Replicas([TooLong(f"http://{number}/v1") for number in range(2)])
        await replicas.answer(request())
        for replica in replicas._replicas:
            replica.is_on_trial = True
        outcome = await replicas.answer(request())
        return outcome, all(replica.is_on_trial for replica in replicas._replicas)

    outcome, are_on_trial = asyncio.run(main())

    assert isinstance(outcome, CallProblem) and "http://" in outcome.detail
    assert are_on_trial


class Refusing(Silent):
    """A server that works, and has an error for every call."""

    async def answer(self, request: Request) -> Outcome:
        return CallProblem("passing", "HTTP 500")


def test_a_call_that_moves_does_not_go_back_to_an_address_that_works_for_others() -> None:
    async def main() -> list[tuple[str, bool]]:
        replicas = Replicas([Refusing(f"http://{number}/v1") for number in range(3)])
        tries = []
        for _ in range(6):
            for replica in replicas._replicas:
                replica.answered_at = time.monotonic() + 60
            problem = await replicas.answer(request())
            assert isinstance(problem, CallProblem)
            tries.append((problem.detail, problem.may_move))
        return tries

    tries = asyncio.run(main())

    assert [may_move for _, may_move in tries] == [True, True, False] * 2
    assert len({address for address, _ in tries[:3]}) == 3
    assert len({address for address, _ in tries[3:]}) == 3


def test_moves_do_not_wait_but_count_as_tries() -> None:
    retries = Retries(tries=4, first_wait=1.0)
    moved, stuck = CallProblem("passing", "HTTP 500", may_move=True), CallProblem("passing", "HTTP 500")

    waits = [retries.wait_after(request(), problem) for problem in (moved, moved, stuck, moved)]

    assert waits[:2] == [0.0, 0.0]
    assert waits[2] is not None
    assert 0.5 <= waits[2] < 1.5  # the first wait, not the third
    assert waits[3] is None


def test_a_server_that_comes_back_gets_calls_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.05)

    async def main() -> tuple[dict[CallKey, Outcome], int, list[str]]:
        async with several(after(0.005), after(0.005)) as (steady, first_life):
            said: list[str] = []
            model = model_at(steady.address, first_life.address, concurrency=8, say=said.append)
            port = int(first_life.address.split(":")[2].removesuffix("/v1"))
            calls = asyncio.create_task(answered(model, *map(request, range(1500))))
            await asyncio.sleep(0.1)
            assert first_life.stop is not None
            await first_life.stop()
            await asyncio.sleep(0.15)
            async with serving(after(0.005), port=port) as second_life:
                outcomes, _ = await calls
                return outcomes, len(second_life.bodies), said

    outcomes, calls, said = asyncio.run(main())

    assert are_replies(list(outcomes.values()))
    assert calls > 50
    assert [line.split(" (")[0].split(" ", 1)[1] for line in said] == ["is paused", "receives calls again"]


def test_a_server_that_comes_back_with_another_model_gets_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.05)

    async def main() -> tuple[dict[CallKey, Outcome], int, list[str]]:
        kept: dict[str, Any] = {"models": ["m"], "models_status": 200}
        async with several(after(0.005), after(0.005), details={"root": "/a/m1"}, **kept) as (steady, first_life):
            said: list[str] = []
            model = model_at(steady.address, first_life.address, concurrency=8, say=said.append)
            port = int(first_life.address.split(":")[2].removesuffix("/v1"))
            calls = asyncio.create_task(answered(model, *map(request, range(300))))
            await asyncio.sleep(0.1)
            assert first_life.stop is not None
            await first_life.stop()
            monkeypatch.setattr(module, "_QUIET", 0.0)
            async with serving(after(0.005), port=port, details={"root": "/b/m2"}, **kept) as second_life:
                outcomes, _ = await calls
                return outcomes, len(second_life.bodies), said

    outcomes, calls, said = asyncio.run(main())

    assert are_replies(list(outcomes.values()))
    assert calls == 0
    assert "different models" in said[-1]
    assert "m2" in said[-1]


# Which model


def probed(*details: dict[str, object], models: Sequence[Sequence[str]] | None = None) -> tuple[Any, list[Stub]]:
    async def main() -> tuple[Any, list[Stub]]:
        async with AsyncExitStack() as stack:
            stubs = [
                await stack.enter_async_context(
                    serving(
                        after(0), models=list(models[index]) if models else ["m"], models_status=200, details=detail
                    )
                )
                for index, detail in enumerate(details)
            ]
            model = model_at(*(stub.address for stub in stubs))
            problem = await model.probe()
            outcomes = await ask(model, request())
            # Without a probe before it, a call finds the same.
            assert (outcomes[0][1] == problem) == (problem is not None)
            return problem, stubs

    return asyncio.run(main())


def test_an_address_without_the_model_is_refused_with_its_name() -> None:
    problem, stubs = probed({}, {}, models=[["m", "x"], ["x"]])

    assert (problem.kind, problem.reason) == ("fatal", "unknown model")
    assert stubs[1].address in problem.detail
    assert stubs[0].address not in problem.detail
    assert not any(stub.bodies for stub in stubs)


@pytest.mark.parametrize(
    ("usual", "other", "words"),
    [
        ({"root": "/data/step-100"}, {"root": "/data/step-200"}, "has the weights step-200"),
        ({"max_model_len": 8192}, {"max_model_len": 4096}, "has a context of 4096 tokens"),
    ],
)
def test_the_address_whose_model_differs_from_the_others_is_named(
    usual: dict[str, object], other: dict[str, object], words: str
) -> None:
    problem, stubs = probed(other, usual, usual)

    assert (problem.kind, problem.reason) == ("fatal", "different models")
    assert problem.detail.startswith(f"{stubs[0].address} {words}, and {stubs[1].address} has")


def test_the_same_weights_in_other_folders_and_unknown_ones_are_no_difference() -> None:
    problem, _ = probed({"root": "/a/m", "max_model_len": 9}, {"root": "/b/c/m/"}, {"root": 7, "max_model_len": "9"})

    assert problem is None


def test_a_wrong_key_at_one_address_is_fatal_and_names_it() -> None:
    async def main() -> tuple[Any, Stub]:
        async with several(after(0)) as (good,), serving(after(0), models_status=401) as locked:
            model = model_at(good.address, locked.address)
            try:
                return await model.probe(), locked
            finally:
                await model.close()

    problem, locked = asyncio.run(main())

    assert (problem.kind, problem.reason) == ("fatal", "HTTP 401")
    assert locked.address in problem.detail


def test_when_no_address_answers_the_probe_and_the_calls_name_all_of_them() -> None:
    addresses = ["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1", "http://127.0.0.1:11/v1"]

    async def main() -> tuple[CallProblem | None, Outcome]:
        model = model_at(*addresses)
        return await model.probe(), (await ask(model, request()))[0][1]

    problems = asyncio.run(main())

    assert [(p.kind, p.reason) for p in problems if isinstance(p, CallProblem)] == [
        ("fatal", "no connection"),
        ("passing", "no connection"),
    ]
    assert all(address in p.detail for p in problems if isinstance(p, CallProblem) for address in addresses)


def test_a_hung_address_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_START", 0.1)
    monkeypatch.setattr(module, "_LONGEST_CHECK", 0.3)

    async def main() -> tuple[CallProblem | None, dict[CallKey, Outcome]]:
        async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()  # until the client gives up
            writer.close()

        silent = await asyncio.start_server(silence, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/v1"
        try:
            async with several(after(0.002)) as (good,):
                model = model_at(address, good.address)
                problem = await model.probe()
                outcomes, _ = await answered(model, *map(request, range(30)))
                return problem, outcomes
        finally:
            silent.close()

    problem, outcomes = asyncio.run(main())

    assert problem is None
    assert are_replies(list(outcomes.values()))


# Hostile replies


def test_hostile_replies_of_one_address_cost_no_call_and_show_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds that would leave calls without an outcome, beside one good server; all of them with SKILLMIX_LONG=1."""
    monkeypatch.setenv("HOSTILE_KEY", SECRET)
    kinds = [
        name
        for name, kind in KINDS.items()
        if "openai" in kind.protocols and kind.end == "missing" and kind.role == "student" and kind.reply
    ]
    assert len(kinds) > 60
    kinds = kinds if os.environ.get("SKILLMIX_LONG") else kinds[::6]

    async def main(address: str) -> tuple[list[str], list[Outcome], list[str]]:
        lost, problems, unseen = [], list[Outcome](), []
        for name in kinds:
            spec = ModelSpec("openai", "student", f"{address}/openai/{name}/v1", (f"{address}/openai/good/v1",))
            timeout = 0.2 if KINDS[name].is_slow else 5.0
            model = OpenAIModel(spec, ModelOptions(4, timeout, Access("HOSTILE_KEY")))
            outcomes, moves = await answered(model, *map(request, range(6)))
            missing = [outcome for outcome in outcomes.values() if isinstance(outcome, CallProblem)]
            lost += [name for problem in missing if problem.kind == "passing"]
            unseen += [name] if not moves and not missing else []
            problems += missing
        return lost, problems, unseen

    with hostile_server() as server:
        lost, problems, unseen = asyncio.run(main(server.address))

    assert lost == []
    assert unseen == []  # each kind had calls: they moved, or the server refused them as requests
    assert not any(holds_key(str(problem).encode()) for problem in problems)
