"""One process writes with a local model, tunes it twice and evaluates what it tuned."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.models.tiny_checkpoint import write_checkpoint

ENDING = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}</s>{% endif %} {% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "base")
    (tmp_path / "base" / "chat_template.jinja").write_text(ENDING, encoding="utf-8")
    turns = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d e f"}]
    rows = [json.dumps({"messages": turns})] * 8
    (tmp_path / "data.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    train = {"stage": "train", "base": "base", "data": ["./data.jsonl"], "steps": 2, "batch": 2}
    cells = {"k": [1], "combinations": 2, "generations": 1}
    document = {
        "name": "lean",
        "seed": 0,
        "catalog": "verifiable",
        "students": {"base": {"model": "local:base", "max_tokens": 12}},
        "graders": {"rules": {"model": "rules:"}},
        "steps": [
            {"name": "written", "stage": "generate", "students": ["base"], **cells},
            {"name": "tuned", **train},
            {"name": "adapter", **train, "lora": {"rank": 2, "alpha": 4}},
            {"name": "eval", "stage": "evaluate", "students": ["step:tuned", "step:adapter"], "graders": ["rules"]}
            | cells,
        ],
    }
    (tmp_path / "lean.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return tmp_path


PROGRAM = """
from skillmix.commands import main
assert main(["generate", "lean.yaml"]) == 0
assert main(["run", "lean.yaml"]) == 0
"""


def test_a_process_that_wrote_with_a_model_tunes_it_and_evaluates_the_result(folder: Path) -> None:
    pytest.importorskip("peft", reason="the extra `train` is not installed")
    environment = {**os.environ, "SKILLMIX_DEVICE": "cpu"}
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "written: 4 calls made" in ended.stderr
    assert "eval: 24 calls made" in ended.stderr
