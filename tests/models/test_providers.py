"""The table of providers: where calls go, with which key, and in which form."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from skillmix.calls import Outcome, Reply
from skillmix.errors import UserError
from skillmix.models.servers.keys import servers_of
from skillmix.models.specs import PROVIDERS, Access, ModelOptions, open_model, parse_spec
from tests.models.stub import ask, chat, request, serving

KEY = "sk-0123456789abcdef"
HOSTED = [provider for provider in PROVIDERS.values() if provider.address and provider.key]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in PROVIDERS.values():
        if provider.key:
            monkeypatch.setenv(provider.key, KEY)


@pytest.mark.parametrize("provider", HOSTED, ids=lambda provider: provider.name)
def test_a_hosted_provider_has_its_address_and_its_key(provider: Any) -> None:
    server = servers_of(parse_spec(f"{provider.name}:some/model"), Access())[0]

    assert (server.address, server.secret, server.variable) == (provider.address, KEY, provider.key)
    assert server.is_own and server.address.startswith("https://")


@pytest.mark.parametrize("name", ["ollama", "lmstudio"])
def test_a_server_on_this_machine_needs_no_key(name: str) -> None:
    server = servers_of(parse_spec(f"{name}:m"), Access())[0]

    assert server.secret is None and server.address.startswith("http://localhost:")


def called(spec: str, **options: Any) -> tuple[Outcome, list[str], list[dict[str, str]], list[dict[str, Any]]]:
    """The outcome of one call to a server on loopback, with its paths, headers and bodies."""
    paths: list[str] = []
    headers: list[dict[str, str]] = []
    bodies: list[dict[str, Any]] = []

    async def answer(asked: web.Request) -> web.Response:
        paths.append(str(asked.rel_url))
        headers.append(dict(asked.headers))
        if asked.method == "GET":
            return web.json_response({"data": [{"id": "d"}]})
        bodies.append(await asked.json())
        return chat("hi")

    async def main() -> Outcome:
        application = web.Application()
        application.router.add_route("*", "/{rest:.*}", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        model = open_model(parse_spec(spec.replace("ADDRESS", address)), ModelOptions(**options))
        try:
            assert await model.probe() is None
            return (await ask(model, request()))[0][1]
        finally:
            await model.close()
            await runner.cleanup()

    return asyncio.run(main()), paths, headers, bodies


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        ("azure:d@ADDRESS", ["/openai/v1/models", "/openai/v1/chat/completions"]),
        (
            "azure:d@ADDRESS?api-version=2024-10-21",
            [
                "/openai/deployments/d/models?api-version=2024-10-21",
                "/openai/deployments/d/chat/completions?api-version=2024-10-21",
            ],
        ),
    ],
)
def test_azure_gets_its_own_paths_and_header(spec: str, paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)

    outcome, asked, headers, _ = called(spec, access=Access("MY_KEY"))

    assert isinstance(outcome, Reply) and asked == paths
    assert {one["api-key"] for one in headers} == {KEY}


def test_azures_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://me.openai.azure.com/")
    (server,) = servers_of(parse_spec("azure:d"), Access())
    assert (server.address, server.secret, server.is_own) == ("https://me.openai.azure.com/openai/v1", KEY, True)

    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT")
    with pytest.raises(UserError, match="AZURE_OPENAI_ENDPOINT is not set"):
        servers_of(parse_spec("azure:d"), Access())


def test_an_azure_address_without_a_key_is_refused_before_the_first_call() -> None:
    with pytest.raises(UserError, match=r"no key for https://me\.openai\.azure\.com") as error:
        servers_of(parse_spec("azure:d@https://me.openai.azure.com"), Access())

    assert "AZURE_OPENAI_ENDPOINT=https://me.openai.azure.com" in str(error.value.hint)


@pytest.mark.parametrize(
    ("provider", "field", "not_sent"),
    [("gemini", "seed", ()), ("mistral", "random_seed", ()), ("deepseek", None, ("seed",))],
)
def test_a_seed_has_the_name_that_the_provider_gives_it(
    provider: str, field: str | None, not_sent: tuple[str, ...]
) -> None:
    outcome, _, _, (body,) = called(f"{provider}:d@ADDRESS/v1")

    assert isinstance(outcome, Reply) and outcome.not_sent == not_sent
    assert {"seed", "random_seed"} & body.keys() == ({field} if field else set())


def test_a_key_goes_to_its_own_provider_only() -> None:
    async def main() -> list[dict[str, str]]:
        async with serving(lambda body: chat("hi")) as stub:
            for name in ("gemini", "openrouter"):
                model = open_model(parse_spec(f"{name}:m@{stub.address}"))
                await ask(model, request())
                await model.close()
            return stub.headers

    assert not any("Authorization" in headers for headers in asyncio.run(main()))
