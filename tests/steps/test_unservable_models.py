"""A plan whose steps ask a local model that no step could ask is refused before the first step, also by `--dry-run`."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from tests.models.tiny_checkpoint import write_checkpoint

SETTINGS = {"k": [1], "combinations": 2, "generations": 1}


def plan(folder: Path, *, train: dict[str, Any] | None = None, student: str = "base") -> str:
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
        "students": {"base": {"model": f"local:{folder / 'checkpoint'}"}},
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


def with_window(folder: Path, *, kind: str) -> None:
    """A tokenizer and the config.json of an architecture with sliding windows; there are no such weights."""
    transformers = pytest.importorskip("transformers", reason="the extra `local` is not installed")
    write_checkpoint(folder / "checkpoint")
    small = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 64, "sliding_window": 16}
    getattr(transformers, kind)(**small).save_pretrained(folder / "checkpoint")


def without_template(folder: Path) -> None:
    write_checkpoint(folder / "checkpoint")
    (folder / "checkpoint" / "chat_template.jinja").unlink()


@pytest.mark.parametrize("kind", ["Gemma3TextConfig", "GptOssConfig"])
@pytest.mark.parametrize("student", ["base", "step:m"])
def test_a_model_with_sliding_windows_is_refused_before_it_is_trained(
    in_folder: Path, kind: str, student: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with_window(in_folder, kind=kind)
    file = plan(in_folder, train={}, student=student)

    planned, ran = refusal(file, capsys, "--dry-run"), refusal(file, capsys)

    assert "uses sliding-window attention" in planned and "openai:NAME@URL" in planned
    assert planned == ran
    assert not Path("runs/plan").exists()


def test_a_model_with_sliding_windows_may_be_trained_alone(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_window(in_folder, kind="Gemma3TextConfig")
    file = plan(in_folder, train={}, student="base")
    document = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    Path(file).write_text(yaml.safe_dump({**document, "steps": document["steps"][:1]}), encoding="utf-8")

    assert main(["run", file, "--dry-run"]) == 0
    assert "sliding-window" not in capsys.readouterr().err


def test_a_student_without_a_chat_template_is_refused(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_template(in_folder)
    file = plan(in_folder)

    planned, ran = refusal(file, capsys, "--dry-run"), refusal(file, capsys)

    assert "has no chat template" in planned and "instruction-tuned" in planned
    assert planned == ran


def test_a_base_without_a_chat_template_needs_a_format(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_template(in_folder)

    file = plan(in_folder, train={}, student="step:m")
    planned, ran = refusal(file, capsys, "--dry-run"), refusal(file, capsys)
    assert "has no chat template" in planned and "format:" in planned and "chatml" in planned
    assert planned == ran

    assert main(["run", plan(in_folder, train={"format": "chatml"}, student="step:m"), "--dry-run"]) == 0
