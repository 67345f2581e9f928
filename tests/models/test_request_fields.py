"""System texts and extra fields: which are refused, how an experiment stores them, and what a chat template does."""

import json
from pathlib import Path
from typing import Any

import pytest

from skillmix.calls import Decoding, GenerateKey, Message, Request, extra_json
from skillmix.errors import UserError
from skillmix.experiment.experiment import GraderSettings, StudentSettings, experiment_of
from skillmix.grading.answers import without_thought
from skillmix.models.request_fields import extra_faults, system_fault, template_option_faults

SECRET = "sk-proj-0123456789abcdefghij"


@pytest.mark.parametrize(
    "extra",
    [
        {"reasoning_effort": "low"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"seed": False},
        {"seed": None},
        {"seed": "off"},
        {"stop_token_ids": [1, 2], "metadata": {"study": "key-figures and task-lists"}},
        {},
    ],
)
def test_fields_that_a_server_may_want_are_accepted(extra: dict[str, Any]) -> None:
    assert list(extra_faults(extra)) == []


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"model": "other"}, "setting model"),
        ({"messages": []}, "messages cannot be set"),
        ({"max_completion_tokens": 5}, "setting max_tokens"),
        ({"temperature": 1}, "setting temperature"),
        ({"system": "x"}, "setting system"),
        ({"models": ["a", "b"]}, "which model answered"),
        ({"stream": True}, "not streamed"),
        ({"n": 3}, "one reply"),
        ({"extra_body": {"a": 1}}, "directly under extra"),
        ({"seed": 7}, "seed can only be off"),
        ({"seed": 0}, "seed can only be off"),
        ({"api_key": "x"}, "looks like a secret"),
        ({"options": [{"Authorization": "x"}]}, "looks like a secret"),
        ({"options": {"token": "x"}}, "looks like a secret"),
        ({"user": SECRET}, "looks like a key"),
        ({"options": {"list": [f"Bearer {SECRET}"]}}, "looks like a key"),
        ({"penalty": float("inf")}, "infinite or NaN"),
        ({"schema": "x" * 3000}, "at most 2000"),
    ],
)
def test_fields_that_would_change_the_request_or_carry_a_secret_are_refused(
    extra: dict[str, Any], expected: str
) -> None:
    faults = list(extra_faults(extra))

    assert len(faults) == 1
    assert expected in faults[0]
    assert SECRET not in faults[0]


def test_a_system_text_is_neither_empty_nor_a_key() -> None:
    assert system_fault("You are a helpful assistant.") is None
    assert "remove system" in (system_fault(" \n") or "")
    assert "looks like a key" in (system_fault(f"Use {SECRET}.") or "")


def test_a_model_in_this_process_takes_options_of_its_chat_template_only() -> None:
    assert list(template_option_faults({"chat_template_kwargs": {"enable_thinking": False}})) == []
    faults = list(
        template_option_faults({"reasoning_effort": "low", "seed": False, "chat_template_kwargs": {"tools": []}})
    )
    assert [fault.split()[0] for fault in faults] == ["reasoning_effort", "a", "chat_template_kwargs.tools"]


def document(**student: Any) -> dict[str, Any]:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"]}
    return {"name": "x", "students": {"s": student}, "graders": {"g": {"model": "scripted:grader"}}, "steps": [step]}


@pytest.mark.parametrize(
    ("student", "expected"),
    [
        (
            {"model": "openai:m", "extra": {"model": "n"}},
            r"students\.s\.extra: model cannot be in extra; use the setting model",
        ),
        ({"model": "openai:m", "extra": "low"}, r"students\.s\.extra: the value is not a mapping"),
        ({"model": "openai:m", "system": ""}, r"students\.s\.system: the text is empty"),
        ({"model": "openai:m", "system": ["a"]}, r"students\.s\.system: the value is not text"),
        ({"model": "local:m", "extra": {"seed": False}}, r"always uses seeds"),
        ({"model": "openai:m", "extras": {}}, r'students\.s\.extras: there is no such key. Did you mean "extra"'),
    ],
)
def test_an_experiment_file_names_the_fault_and_its_location(student: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected) as error:
        experiment_of(document(**student), source="x.yaml")

    assert ("system, extra" if "no such key" in expected else "`skillmix schema`") in (error.value.hint or "")


def test_code_reads_no_system_text() -> None:
    with pytest.raises(ValueError, match="is code"):
        GraderSettings(model="rules:", system="Be strict.")
    with pytest.raises(ValueError, match="is code"):
        GraderSettings(model="rules:", extra={"a": 1})
    assert GraderSettings(model="rules:openai:m", system="Be strict.").system == "Be strict."


def test_settings_without_additions_are_stored_as_before() -> None:
    plain, told = (
        StudentSettings(model="openai:m"),
        StudentSettings(model="openai:m", system="Hi.", extra={"seed": "off"}),
    )

    assert not {"system", "extra"} & plain.model_dump(mode="json").keys()
    assert told.model_dump(mode="json")["extra"] == {"seed": False}
    assert StudentSettings(**told.model_dump(mode="json")) == told
    assert (plain.additions, told.additions) == ("", 'system "Hi.", no seed')


def request(extra: dict[str, Any] | None = None, seed: int | None = 7) -> Request:
    decoding = Decoding(extra=extra_json(extra or {}))
    return Request(GenerateKey("s", "c", 0, 1), "openai:m", (Message("user", "Hi"),), decoding, seed)


def test_a_request_without_extra_fields_keeps_the_hash_of_older_journals() -> None:
    assert request().content_hash == "8b44ba06cbc6902642dd5930b95151d0"


def test_extra_fields_and_a_missing_seed_make_another_request() -> None:
    variants = [request(), request({"a": 1}), request({"a": 1.0}), request({"a": True}), request(seed=None)]

    assert len({variant.content_hash for variant in variants}) == 5
    assert request({"a": 1, "b": 2}).content_hash == request({"b": 2, "a": 1}).content_hash


TEMPLATES = {
    "knows": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if loud %}!{% endif %}",
    "skips": "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "raises": "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}",
}


def template_folder(folder: Path, template: str) -> Path:
    from tests.models.tiny_checkpoint import write_checkpoint

    path = write_checkpoint(folder)
    (path / "chat_template.jinja").write_text(TEMPLATES[template], encoding="utf-8")
    return path


def renderer_of(folder: Path) -> Any:
    from skillmix.models.checkpoints import checkpoint_of
    from skillmix.models.local.chat import Renderer
    from skillmix.models.local.loading import read_tokenizer
    from skillmix.models.specs import parse_spec

    return Renderer(read_tokenizer(checkpoint_of(parse_spec(f"local:{folder}")))[0], name="tiny")


def render(folder: Path, system: str | None, extra: str | None = None) -> str:
    turns = (Message("user", "a b"),)
    text: str = renderer_of(folder)._rendered((Message("system", system), *turns) if system else turns, extra)
    return text


@pytest.mark.machine
def test_the_chat_template_gets_the_system_turn_and_its_options(tmp_path: Path) -> None:
    folder = template_folder(tmp_path, "knows")

    assert render(folder, "c d") == "<system>c d<user>a b"
    assert render(folder, None, extra_json({"chat_template_kwargs": {"loud": True}})) == "<user>a b!"


@pytest.mark.machine
@pytest.mark.parametrize(("template", "expected"), [("skips", "omits the system prompt"), ("raises", "not supported")])
def test_a_chat_template_without_system_turns_is_an_error_before_the_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, expected: str
) -> None:
    from skillmix.steps.run import run_checked

    monkeypatch.chdir(tmp_path)
    folder = template_folder(tmp_path / "m", template)
    experiment = experiment_of(document(model=f"local:{folder}", system="Be brief."), source="x.yaml")

    with pytest.raises(UserError, match=expected) as error:
        run_checked(experiment)

    assert "Remove system" in (error.value.hint or "")
    assert not Path("runs/x/run.sqlite").exists()


@pytest.mark.machine
def test_a_local_models_thought_is_marked_in_its_reply(tmp_path: Path) -> None:
    """The template may open the thought in the prompt, and the tags of a thought may be special tokens."""
    from tests.models.tiny_checkpoint import write_checkpoint

    folder = write_checkpoint(tmp_path)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    form = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for number, token in ((10, "[THINK]"), (11, "[/THINK]")):
        tokenizer["added_tokens"].append({"id": number, "content": token, **form})
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    config = folder / "tokenizer_config.json"
    names = {"additional_special_tokens": ["[THINK]", "[/THINK]"]}
    config.write_text(json.dumps(json.loads(config.read_text(encoding="utf-8")) | names), encoding="utf-8")
    renderer = renderer_of(folder)

    [text] = renderer.texts([[10, 2, 3, 11, 4, 1]])
    assert without_thought(text) is not None and text.startswith("[THINK]") and "</s>" not in text
    assert renderer.opening([2, 3, 10]) == "<think>\n"
    assert renderer.opening([2, 10, 11]) == renderer.opening([2, 3]) == ""
