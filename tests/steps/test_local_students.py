"""An evaluation of several local students: the kept model changes no row of the journal."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.models.local.model import MODELS
from skillmix.steps.run import run_experiment
from tests.models.tiny_checkpoint import change_weights, write_checkpoint

FACTORS = {"one": 1.0, "two": -2.0, "three": 3.0}


def experiment(folder: Path) -> Path:
    for name, factor in FACTORS.items():
        write_checkpoint(folder / name)

        def scaled(tensors: dict[str, Any], factor: float = factor) -> dict[str, Any]:
            return {name: factor * tensor for name, tensor in tensors.items()}

        change_weights(folder / name / "model.safetensors", scaled)
    document = {
        "name": "students",
        "seed": 0,
        "catalog": "verifiable",
        "students": {name: {"model": f"local:{folder / name}", "max_tokens": 12} for name in FACTORS},
        "graders": {"rules": {"model": "rules:"}},
        "steps": [
            {"name": "before", "stage": "generate", "students": ["two"], "k": [1], "combinations": 2, "generations": 1},
            {
                "name": "eval",
                "stage": "evaluate",
                "students": list(FACTORS),
                "graders": ["rules"],
                "k": [1, 2],
                "combinations": 2,
                "generations": 1,
            },
        ],
    }
    path = folder / "students.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def rows() -> list[Any]:
    """The rows of the journal without their numbers and times, in one order."""
    connection = sqlite3.connect("runs/students/run.sqlite")
    columns = [row[1] for row in connection.execute("PRAGMA table_info(call)") if row[1] not in ("id", "at")]
    found = sorted(connection.execute(f"SELECT {', '.join(columns)} FROM call"), key=str)
    texts = sorted(connection.execute("SELECT hash, role, content FROM message"))
    connection.close()
    return [found, texts]


def test_an_evaluation_of_three_students_has_the_same_journal_as_with_fresh_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = experiment(tmp_path)
    monkeypatch.setenv("SKILLMIX_DEVICE", "cpu")
    (tmp_path / "kept").mkdir()
    monkeypatch.chdir(tmp_path / "kept")
    assert run_experiment(path).is_complete
    with_kept = rows()
    assert MODELS._kept is None

    (tmp_path / "fresh").mkdir()
    monkeypatch.chdir(tmp_path / "fresh")
    monkeypatch.setattr(MODELS, "keep", lambda model: None)
    assert run_experiment(path).is_complete
    assert with_kept == rows()
    assert len(with_kept[0]) == 72
