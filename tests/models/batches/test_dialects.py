"""Forms of batches as data: states, limits, ids, and what can be read from replies that are not trusted."""

import re
from pathlib import Path

import pytest
import yaml

from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of
from skillmix.models.batches.clients import LineResult, identifier, open_batches
from skillmix.models.specs import DIALECTS, ModelOptions, batch_fault, dialect_of, parse_spec
from skillmix.runs.journal import custom_id


def file_line(raw: bytes) -> LineResult | None:
    spec = parse_spec("openai:m@http://127.0.0.1:1/v1")
    return open_batches(spec, ModelOptions(), DIALECTS["openai"]).read_line(raw)


def inline_line(raw: bytes) -> LineResult | None:
    spec = parse_spec("anthropic:m@http://127.0.0.1:1/v1")
    return open_batches(spec, ModelOptions(), DIALECTS["anthropic"]).read_line(raw)


def test_the_id_of_a_call_is_one_that_every_provider_takes_and_holds_its_tag() -> None:
    made = custom_id("skx0123456789abcdef", "generate/s/c/0/1", "ab")

    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", made)
    assert made.startswith("skx0123456789abcdef-")
    assert made != custom_id("skx0123456789abcdef", "generate/s/c/0/2", "ab")


@pytest.mark.parametrize(
    ("spec", "choice", "name"),
    [
        ("openai:gpt-4o", True, "openai"),
        ("openai:m@http://localhost:8000/v1", True, "openai"),
        ("openai:m@http://localhost:8000/v1", "azure", "azure"),
        ("openai:d@https://me.openai.azure.com/openai/v1", True, "azure"),
        ("openai:d@https://openai.azure.com.evil.example/v1", True, "openai"),
        ("anthropic:claude", True, "anthropic"),
    ],
)
def test_the_form_of_batches_follows_from_the_provider_and_the_host(spec: str, choice: bool | str, name: str) -> None:
    found = dialect_of(parse_spec(spec), choice)

    assert found is not None and found.name == name


@pytest.mark.parametrize(
    ("spec", "choice", "fault"),
    [
        ("scripted:student", True, "scripted: models do not support batches"),
        ("local:x", True, "local: models do not support batches"),
        ("anthropic:claude", "azure", "anthropic: models do not support batch: azure"),
        ("openai:m", "bedrock", "one of openai, azure, anthropic, not 'bedrock'"),
        ("openai:m@http://a/v1,http://b/v1", True, "a batch goes to one server"),
    ],
)
def test_a_model_that_cannot_have_batches_says_why(spec: str, choice: bool | str, fault: str) -> None:
    assert fault in str(batch_fault(parse_spec(spec), choice))
    document = {
        "name": "x",
        "students": {"s": {"model": spec, "batch": choice}},
        "steps": [{"name": "g", "stage": "generate", "students": ["s"], "k": [1], "combinations": 1}],
    }
    with pytest.raises(UserError, match=re.escape(fault)):
        experiment_of(document, source="x.yaml")


def test_an_experiment_without_batches_keeps_its_form() -> None:
    step = {"name": "g", "stage": "generate", "students": ["s"], "k": [1], "combinations": 1}
    plain = experiment_of({"name": "x", "students": {"s": {"model": "openai:m"}}, "steps": [step]}, source="x")
    batched = experiment_of(
        {"name": "x", "students": {"s": {"model": "openai:m", "batch": True}}, "steps": [step]}, source="x"
    )

    assert "batch" not in plain.model_dump(mode="json")["students"]["s"]
    assert batched.model_dump(mode="json")["students"]["s"]["batch"] is True


def test_the_experiment_on_the_page_about_batches_is_valid_and_every_form_is_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "costs.md").read_text(encoding="utf-8")
    (document,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)

    experiment = experiment_of(yaml.safe_load(document), source="docs/costs.md")

    assert experiment.students["gpt"].batch is True and experiment.graders["judge"].batch is True
    assert all(f"`{name}`" in page for name in DIALECTS)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_a_state_that_nobody_knows_means_that_the_batch_is_under_way(dialect: object) -> None:
    assert dialect.state("dreaming") == dialect.state("") == "in progress"  # type: ignore[attr-defined]


NOT_LINES = [b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"custom_id": 7}', b'{"custom_id": ""}', b'{"a": 1}', b"[" * 5000]


@pytest.mark.parametrize("raw", NOT_LINES)
def test_what_is_no_line_of_results_is_none(raw: bytes) -> None:
    assert file_line(raw) is None
    assert inline_line(raw) is None


@pytest.mark.parametrize(
    ("line", "kind", "status"),
    [
        (b'{"custom_id": "a", "response": null, "error": null}', "nothing", 200),
        (b'{"custom_id": "a", "response": "x", "error": []}', "nothing", 200),
        (b'{"custom_id": "a", "response": {"status_code": "200", "body": {}}}', "nothing", 200),
        (b'{"custom_id": "a", "response": {"status_code": 200, "body": null}}', "answer", 200),
        (b'{"custom_id": "a", "response": {"status_code": 429, "body": {}}}', "refusal", 429),
        (b'{"custom_id": "a", "response": null, "error": {"code": "batch_expired"}}', "not made", 500),
        (b'{"custom_id": "a", "response": null, "error": {"code": "odd"}}', "refusal", 500),
    ],
)
def test_a_line_of_a_file_has_one_meaning(line: bytes, kind: str, status: int) -> None:
    found = file_line(line)

    assert found is not None and (found.kind, found.status) == (kind, status)


@pytest.mark.parametrize(
    ("result", "kind", "status"),
    [
        (b"null", "nothing", 200),
        (b'{"type": "succeeded"}', "nothing", 200),
        (b'{"type": "succeeded", "message": {}}', "answer", 200),
        (b'{"type": "CANCELED"}', "not made", 200),
        (b'{"type": "errored", "error": {"error": {"type": "rate_limit_error"}}}', "refusal", 429),
        (b'{"type": "errored", "error": {"type": "odd"}}', "refusal", 500),
        (b'{"type": "errored"}', "nothing", 200),
    ],
)
def test_a_result_of_a_message_has_one_meaning(result: bytes, kind: str, status: int) -> None:
    found = inline_line(b'{"custom_id": "a", "result": ' + result + b"}")

    assert found is not None and (found.kind, found.status) == (kind, status)


def test_an_id_that_could_lead_elsewhere_is_no_id() -> None:
    for value in ("../files", "a/b", "", "a?b", " a", "x" * 300, 7, None):
        assert identifier({"id": value}, "id") is None
    assert identifier({"id": "batch_abc-1"}, "id") == "batch_abc-1"


@pytest.mark.parametrize(
    ("spec", "address"),
    [
        ("openai:d@https://me.openai.azure.com/openai/v1", "https://me.openai.azure.com/openai/v1"),
        ("azure:d@https://me.openai.azure.com", "https://me.openai.azure.com/openai/v1"),
        ("openai:d@https://me.openai.azure.com/openai", "https://me.openai.azure.com/openai?api-version=2024-10-21"),
        (
            "azure:d@https://me.openai.azure.com?api-version=2025-01-01",
            "https://me.openai.azure.com/openai?api-version=2025-01-01",
        ),
    ],
)
def test_an_azure_address_without_a_version_gets_one(spec: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "abcdefgh12345678")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://me.openai.azure.com")
    client = open_batches(parse_spec(spec), ModelOptions(), DIALECTS["azure"])

    server = client.server.endpoint._server
    assert "?".join(filter(None, (server.address, server.query))) == address
