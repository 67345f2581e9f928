"""The table of providers."""

import pytest

from skillmix.errors import UserError
from skillmix.models.local.model import LocalModel
from skillmix.models.scripted import ScriptedModel
from skillmix.models.servers.protocols import AnthropicModel, OpenAIModel
from skillmix.models.specs import PROVIDERS, open_model, parse_spec, provider_of


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("openai:m@http://127.0.0.1:9/v1", OpenAIModel),
        ("anthropic:m@http://127.0.0.1:9/v1", AnthropicModel),
        ("local:folder", LocalModel),
        ("bundled:smollm2-135m", LocalModel),
        ("scripted:student", ScriptedModel),
    ],
)
def test_each_provider_opens_its_own_model(spec: str, kind: type) -> None:
    assert type(open_model(parse_spec(spec))) is kind


def test_code_that_grades_is_no_model_to_open() -> None:
    with pytest.raises(UserError, match="rules: is not a model that can be called"):
        open_model(parse_spec("rules:"))


def test_only_a_provider_with_a_server_takes_an_address() -> None:
    for name, provider in PROVIDERS.items():
        if provider.needs_name:
            address = "http://127.0.0.1:9/v1"
            assert (parse_spec(f"{name}:m@{address}").address == address) == provider.is_served


def test_what_has_a_checkpoint_runs_in_this_process_and_is_free() -> None:
    rows = [provider_of(f"{name}:m") for name in ("local", "bundled")]

    assert all(row.has_checkpoint and row.is_in_process and row.is_free for row in rows)
    assert not provider_of("openai:m").is_free


@pytest.mark.parametrize("spec", ["gpt-4o", "nowhere:gpt-4o", ":", ""])
def test_an_unknown_provider_is_told_the_known_ones(spec: str) -> None:
    with pytest.raises(UserError, match="is not a model") as error:
        parse_spec(spec)

    listed = [name for name, provider in PROVIDERS.items() if provider.is_listed]
    assert error.value.hint == f"Write PROVIDER:NAME with one of these providers: {', '.join(listed)}."
    assert "inspect" not in listed, "only an import writes its specs"
