"""Which key goes where: never to an address that it was not meant for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from skillmix.calls import CallProblem, Outcome
from skillmix.commands import main as command
from skillmix.errors import UserError
from skillmix.models.servers.keys import servers_of
from skillmix.models.servers.protocols import AnthropicModel, OpenAIModel
from skillmix.models.specs import Access, ModelOptions, ModelSpec, parse_spec
from skillmix.steps.run import run_experiment
from tests.hostile.replies import ANSWER, grades
from tests.models.stub import ask, chat, request, serving

OWN = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OWN.values(), "TOGETHER_API_KEY", "VLLM_KEY"):
        monkeypatch.setenv(name, f"sk-{name.lower()}-0123456789")


def model_of(provider: str, address: str, access: Access | None = None) -> OpenAIModel | AnthropicModel:
    spec = ModelSpec(provider, "m", address)
    return (OpenAIModel if provider == "openai" else AnthropicModel)(spec, ModelOptions(access=access or Access()))


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("access", [Access(), Access("VLLM_KEY")])
def test_another_address_gets_the_key_that_its_model_names_or_none(provider: str, access: Access) -> None:
    headers: list[dict[str, str]] = []

    async def main() -> None:
        async with serving(lambda body: chat("hi")) as stub:
            model = model_of(provider, stub.address, access)
            await model.probe()
            await ask(model, request())
            headers.extend(stub.headers)

    asyncio.run(main())

    sent = [value for header in headers for name, value in header.items() if name in ("Authorization", "x-api-key")]
    assert not any("api_key" in value for value in sent)
    assert len(sent) == (1 if access.key else 0)
    assert all("sk-vllm_key" in value for value in sent)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_the_providers_own_address_gets_its_key(provider: str) -> None:
    doors = [
        servers_of(ModelSpec(provider, "m"), Access())[0],
        servers_of(parse_spec(f"{provider}:m@https://api.{provider}.com/v1"), Access())[0],
    ]

    assert [server.variable for server in doors] == [OWN[provider]] * 2


def test_a_student_elsewhere_and_a_grader_of_openai_have_a_key_each() -> None:
    student = servers_of(parse_spec("openai:m@https://api.together.xyz/v1"), Access("TOGETHER_API_KEY"))[0]
    grader = servers_of(parse_spec("openai:gpt-4o"), Access())[0]

    assert (student.variable, grader.variable) == ("TOGETHER_API_KEY", "OPENAI_API_KEY")
    assert student.secret != grader.secret


@pytest.mark.parametrize(
    ("spec", "access", "message"),
    [
        ("openai:m@https://evil.example/v1", Access("OPENAI_API_KEY"), "sent only to https://api.openai.com"),
        (
            "openai:m@https://api.openai.com.evil.example/v1",
            Access("OPENAI_API_KEY"),
            "sent only to https://api.openai.com",
        ),
        ("openai:m@https://api.openai.com:8443/v1", Access("OPENAI_API_KEY"), "sent only to https://api.openai.com"),
        ("openai:m@http://api.openai.com/v1", Access("OPENAI_API_KEY"), "sent only to https://api.openai.com"),
        ("openai:m@http://127.0.0.1:1/v1", Access("ANTHROPIC_API_KEY"), "sent only to https://api.anthropic.com"),
        ("openai:m@http://models.example/v1", Access("VLLM_KEY"), "without encryption"),
        ("openai:m@http://127.0.0.1.example/v1", Access("VLLM_KEY"), "without encryption"),
        ("anthropic:m@http://10.0.0.7:8000/v1", Access("VLLM_KEY"), "without encryption"),
        ("openai:m@https://models.example/v1", Access("MISSING_KEY"), "MISSING_KEY is not set"),
    ],
)
def test_a_key_that_must_not_go_there_is_refused(spec: str, access: Access, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        servers_of(parse_spec(spec), access)[0]

    assert "0123456789" not in f"{caught.value.message} {caught.value.hint}"


def test_plain_http_with_a_key_is_allowed_where_the_file_says_so() -> None:
    server = servers_of(parse_spec("openai:m@http://10.0.0.7:8000/v1"), Access("VLLM_KEY", insecure=True))[0]

    assert server.variable == "VLLM_KEY"


@pytest.mark.parametrize(
    "value", ["sk-123456789\n", "sk-1234\r\nX-Evil: 1", "sk 123456789", "sk-ключ-123456", "sk-\x00-12345"]
)
def test_a_key_that_no_header_can_hold_is_refused_without_repeating_it(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    if "\x00" in value:
        monkeypatch.setattr("skillmix.models.servers.keys.os.environ", {"VLLM_KEY": value})
    else:
        monkeypatch.setenv("VLLM_KEY", value)

    with pytest.raises(UserError, match="VLLM_KEY does not contain a valid key") as caught:
        servers_of(parse_spec("openai:m@https://models.example/v1"), Access("VLLM_KEY"))[0]

    assert "123" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_error_that_names_the_address_and_takes_nothing_there(provider: str, status: int) -> None:
    went: list[str] = []

    async def elsewhere(asked: web.Request) -> web.Response:
        went.append(f"{asked.path} {dict(asked.headers)}")
        return web.json_response({"data": []})

    async def main() -> list[CallProblem | Outcome | None]:
        target = web.Application()
        target.router.add_route("*", "/{rest:.*}", elsewhere)
        runner = web.AppRunner(target)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/models"

        async def redirected(_: web.Request) -> web.Response:
            return web.Response(status=status, headers={"Location": address})

        source = web.Application()
        source.router.add_route("*", "/{rest:.*}", redirected)
        first = web.AppRunner(source)
        await first.setup()
        await web.TCPSite(first, "127.0.0.1", 0).start()
        model = model_of(provider, f"http://127.0.0.1:{first.addresses[0][1]}/v1", Access("VLLM_KEY"))
        try:
            problems = [await model.probe(), (await ask(model, request()))[0][1]]
        finally:
            await first.cleanup()
            await runner.cleanup()
        assert all(isinstance(p, CallProblem) and address in p.detail for p in problems)
        return problems

    problems = asyncio.run(main())

    assert went == []
    assert [p.kind for p in problems if isinstance(p, CallProblem)] == ["fatal", "fatal"]


def experiment(folder: Path, **student: Any) -> Path:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "combinations": 1, "k": [1]}
    document = {
        "name": "keys",
        "students": {"s": {"model": "openai:m@http://127.0.0.1:9/v1"} | student},
        "graders": {"g": {"model": "scripted:grader"}},
        "steps": [step],
    }
    path = folder / "keys.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("student", "message"),
    [
        ({"key": "sk-0123456789abcdef"}, "students.s.key: this must be the name of an environment variable"),
        ({"key": "AWS_SECRET_ACCESS_KEY"}, "students.s.key"),
        ({"key": "GITHUB_TOKEN"}, "students.s.key"),
        ({"key": "HOME"}, "students.s.key"),
        ({"key": "OPENAI_API_KEY"}, "sent only to https://api.openai.com"),
        ({"model": "scripted:student", "key": "VLLM_KEY"}, "over the network"),
        ({"model": "openai:m@http://"}, "not a valid address"),
        ({"model": "openai:m@http://localhost:99999/v1"}, "is invalid"),
        ({"model": "openai:m@http://[::1"}, "is invalid"),
        ({"model": "openai:m@http://user:hunter2@localhost/v1"}, "user name or a password"),
        ({"model": "openai:m@http://a..b/v1"}, "not a valid address"),
        ({"model": "openai:m@"}, "not a valid address"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"timeout": float("inf")}, "timeout"),
        ({"top_p": float("nan")}, "top_p"),
        ({"max_tokens": 10**400}, "max_tokens"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_any_call(
    in_folder: Path, student: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run_experiment(experiment(in_folder, **student))

    said = f"{caught.value.message} {caught.value.hint}"
    assert "hunter2" not in said
    assert "sk-0123456789abcdef" not in said
    assert not (in_folder / "runs").exists()


def test_a_student_and_a_grader_elsewhere_each_see_their_own_key_alone(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, set[str]] = {"student": set(), "grader": set()}
    monkeypatch.setenv("GRADER_KEY", "sk-grader_key-0123456789")

    def application(who: str) -> web.Application:
        async def answer(asked: web.Request) -> web.Response:
            seen[who].add(asked.headers.get("Authorization", "none"))
            if asked.method == "GET":
                return web.json_response({"data": [{"id": who}]})
            body = await asked.json()
            return chat(grades(body["messages"][-1]["content"]) if who == "grader" else ANSWER)

        made = web.Application()
        made.router.add_route("*", "/{rest:.*}", answer)
        return made

    async def main() -> int:
        runners = {who: web.AppRunner(application(who)) for who in seen}
        specs = {}
        for who, runner in runners.items():
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            specs[who] = f"openai:{who}@http://127.0.0.1:{runner.addresses[0][1]}/v1"
        path = experiment(in_folder, model=specs["student"], key="VLLM_KEY")
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        document["graders"]["g"] = {"model": specs["grader"], "key": "GRADER_KEY", "rounds": 1}
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        try:
            return await asyncio.to_thread(command, ["run", str(path)])
        finally:
            for runner in runners.values():
                await runner.cleanup()

    assert asyncio.run(main()) == 0
    assert seen == {
        "student": {"Bearer sk-vllm_key-0123456789"},
        "grader": {"Bearer sk-grader_key-0123456789"},
    }
    said = capsys.readouterr()
    assert "VLLM_KEY is sent to http://127.0.0.1" in said.err
    files = [path for path in (in_folder / "runs").rglob("*") if path.is_file()]
    assert not any(b"0123456789" in path.read_bytes() for path in files)
    assert "0123456789" not in said.out + said.err


def test_calls_go_through_the_proxy_of_the_environment_where_the_file_says_so(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    async def forward(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.raw_path if '//' in request.raw_path else request.url}")
        if request.method == "GET":
            return web.json_response({"data": [{"id": "m"}]})
        return chat(ANSWER)

    async def main() -> tuple[int, int]:
        proxy = web.Application()
        proxy.router.add_route("*", "/{rest:.*}", forward)
        runner = web.AppRunner(proxy)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        path = experiment(in_folder, model="openai:m@http://models.example/v1", proxy=True)
        try:
            without = await asyncio.to_thread(command, ["run", str(path)])
            monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{runner.addresses[0][1]}")
            return without, await asyncio.to_thread(command, ["run", str(path)])
        finally:
            await runner.cleanup()

    assert asyncio.run(main()) == (2, 0)
    assert set(asked) == {
        "GET http://models.example/v1/models",
        "POST http://models.example/v1/chat/completions",
    }
