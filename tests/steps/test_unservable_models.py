"""A plan whose steps ask a local model that no step could ask is refused before the first step, also by `--dry-run`."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from tests.models.tiny_checkpoint import write_checkpoint

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
SETTINGS = {"k": [1], "combinations": 2, "generations": 1}


def plan(folder: Path, *, train: dict[str, Any] | None = None, student: str = "base", **base: Any) -> str:
    steps: list[dict[str, Any]] = [
        {"name": "e", "stage": "evaluate", "students": [student], "graders": ["rules"], **SETTINGS}
    ]
    if train is not None:
        data = folder / "data.jsonl"
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
        data.write_text(yaml.safe_dump({"messages": turns}, default_flow_style=True), encoding="utf-8")
        steps.insert(0, {"name": "m", "stage": "train", "base": "base", "data": [str(data)], "steps": 1, **train})
    document = {
        "name": "plan",
        "catalog": "verifiable",
        "students": {"base": {"model": f"local:{folder / 'checkpoint'}", **base}},
        "graders": {"rules": {"model": "rules:"}},
        "steps": steps,
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


def refusal(file: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert main(["run", file, *options]) == 2
    return capsys.readouterr().err


def without_template(folder: Path) -> None:
    write_checkpoint(folder / "checkpoint")
    (folder / "checkpoint" / "chat_template.jinja").unlink()
    file = folder / "checkpoint" / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "bos_token": "</s>"}), encoding="utf-8")


@pytest.mark.parametrize("student", ["base", "step:m"])
def test_a_model_without_room_for_a_prompt_is_refused_before_it_is_trained(
    in_folder: Path, student: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(in_folder / "checkpoint", has_ends=True)
    config = in_folder / "checkpoint" / "config.json"
    settings = {**json.loads(config.read_text(encoding="utf-8")), "max_position_embeddings": 512}
    config.write_text(json.dumps(settings), encoding="utf-8")
    file = plan(in_folder, train={}, student=student)

    planned, ran = refusal(file, capsys, "--dry-run"), refusal(file, capsys)

    assert "max_tokens is 512" in planned and "has only 512 positions for prompt and reply" in planned
    assert planned == ran
    assert not Path("runs/plan").exists()


@pytest.mark.parametrize(("model", "positions"), [("new:tiny", 2048), ("new:local:checkpoint", 512)])
def test_a_new_model_without_room_for_a_prompt_is_refused_before_it_is_trained(
    in_folder: Path, model: str, positions: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(in_folder / "checkpoint", has_ends=True)
    config = in_folder / "checkpoint" / "config.json"
    settings = {**json.loads(config.read_text(encoding="utf-8")), "max_position_embeddings": 512}
    config.write_text(json.dumps(settings), encoding="utf-8")
    file = plan(in_folder, train={}, student="step:m", model=model, max_tokens=positions)

    planned, ran = refusal(file, capsys, "--dry-run"), refusal(file, capsys)

    assert f"max_tokens is {positions}, but {model} has only {positions} positions for prompt and reply" in planned
    assert planned == ran
    assert main(["run", plan(in_folder, train={}, student="step:m", model=model, max_tokens=64), "--dry-run"]) == 0


def test_the_shape_of_a_model_that_cannot_be_trained_is_refused(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `local` is not installed")
    write_checkpoint(in_folder / "checkpoint", has_ends=True)
    transformers.GptOssConfig(**SMALL).save_pretrained(in_folder / "checkpoint")

    planned = refusal(plan(in_folder, train={}, model="new:local:checkpoint", student="step:m"), capsys, "--dry-run")

    assert "Step 'm': GptOssForCausalLM cannot be trained" in planned


def test_a_student_without_a_chat_template_is_refused(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_template(in_folder)
    file = plan(in_folder)

    planned, ran = refusal(file, capsys, "--dry-run"), refusal(file, capsys)

    assert "has no chat template" in planned and "instruction-tuned" in planned
    assert planned == ran


def test_a_system_text_that_the_chat_template_refuses_is_refused(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(in_folder / "checkpoint", has_ends=True)
    template = in_folder / "checkpoint" / "chat_template.jinja"
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system texts here') }}{% endif %}"
    template.write_text(refuses + template.read_text(encoding="utf-8"), encoding="utf-8")
    file = plan(in_folder, max_tokens=8, system="Be brief.")

    planned, ran = refusal(file, capsys, "--dry-run"), refusal(file, capsys)

    assert "no system texts here" in planned
    assert planned == ran
    assert main(["run", plan(in_folder, max_tokens=8), "--dry-run"]) == 0


def test_a_base_without_a_chat_template_needs_a_format(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_template(in_folder)

    file = plan(in_folder, train={}, student="step:m")
    planned, ran = refusal(file, capsys, "--dry-run"), refusal(file, capsys)
    assert "has no chat template" in planned and "format:" in planned and "chatml" in planned
    assert planned == ran

    assert main(["run", plan(in_folder, train={"format": "llama-2"}, student="step:m"), "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("kind", "more", "fault"),
    [
        ("GptOssConfig", {}, "GptOssForCausalLM cannot be trained: its attention has sinks."),
        ("Gemma2Config", {}, "it changes its logits by final_logit_softcapping, attn_logit_softcapping."),
        ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}, "it has layers of the kind conv, which mix"),
        ("Qwen3NextConfig", {"layer_types": ["linear_attention", "full_attention"]}, "Qwen3NextForCausalLM cannot be"),
        ("PhiConfig", {}, "its output layer is not a plain matrix."),
    ],
)
def test_a_base_whose_layers_cannot_be_trained_is_refused(
    in_folder: Path, kind: str, more: dict[str, Any], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `local` is not installed")
    write_checkpoint(in_folder / "checkpoint", has_ends=True)
    getattr(transformers, kind)(**SMALL, **more).save_pretrained(in_folder / "checkpoint")

    planned = refusal(plan(in_folder, train={}), capsys, "--dry-run")

    assert "Step 'm': " in planned and fault in planned


def test_a_base_whose_answers_cannot_be_masked_is_refused(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(in_folder / "checkpoint")
    template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    (in_folder / "checkpoint" / "chat_template.jinja").write_text(template, encoding="utf-8")

    planned = refusal(plan(in_folder, train={}), capsys, "--dry-run")

    assert "Step 'm': The chat template ends an answer with '', where generation would not stop" in planned
