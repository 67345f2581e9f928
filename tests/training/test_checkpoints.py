"""A run that is killed goes on as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from skillmix.errors import UserError
from skillmix.experiment.train_step import PRECISIONS
from skillmix.steps.run import train_steps
from skillmix.training.loop import Checkpoints, Progress
from skillmix.training.ranks import Ranks
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe
from tests.training.tiny import random_step, tiny_model, weights_of

pytestmark = pytest.mark.machine

ROOT = Path(__file__).parents[2]
WORDS = ["bread", "rope", "tide", "lamp", "chess", "snow"]


def experiment(place: Path, name: str, small_model: Path) -> Path:
    """Six conversations in batches of two: three steps are an epoch."""
    (place / "data").mkdir(exist_ok=True)
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"About {word}?"},
                {"role": "assistant", "content": f"The {word} is."},
            ]
        }
        for word in WORDS
    ]
    (place / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (place / "one.txt").write_text("".join(f"Line {n} of the first file.\n" for n in range(300)), encoding="utf-8")
    (place / "two.jsonl").write_text(
        "\n".join(json.dumps({"text": f"Text {n} of the second."}) for n in range(90)), encoding="utf-8"
    )
    step = {
        "name": "m1", "stage": "train", "base": "base", "data": ["./data"], "steps": 12, "batch": 2,
        "learning_rate": 1e-2, "warmup_steps": 2, "checkpoint_every": 4,
        "lora": {"rank": 2, "dropout": 0.3},
        "replay": {"sources": ["one.txt", "two.jsonl"], "ratio": 1.5, "max_tokens": 24},
    }  # fmt: skip
    document = {
        "name": name,
        "catalog": "verifiable",
        "students": {"base": {"model": f"local:{small_model}"}},
        "steps": [step],
    }
    path = place / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def curve(place: Path, name: str) -> list[dict[str, Any]]:
    log = place / "runs" / name / "m1" / "training.jsonl"
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def test_killed_in_the_third_epoch_the_curve_is_the_same(in_folder: Path, small_model: Path) -> None:
    at = random.SystemRandom().randrange(6, 9)
    straight = experiment(in_folder, "straight", small_model)
    cut = experiment(in_folder, "cut", small_model)
    train_steps(straight)

    killed = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "training" / "killed_run.py"), str(cut), str(at)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(curve(in_folder, "cut")) == at
    train_steps(cut)

    found, expected = curve(in_folder, "cut"), curve(in_folder, "straight")
    assert [row["step"] for row in found] == list(range(12))
    for key in ("answers", "replay", "norm"):
        assert [row[key] for row in found] == pytest.approx([row[key] for row in expected], rel=1e-6), f"{key}, {at}"
    adapters = [load_file(in_folder / "runs" / n / "m1/model/adapter_model.safetensors") for n in ("cut", "straight")]
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[1])
    assert not (in_folder / "runs" / "cut" / "m1" / "checkpoints").exists()


@pytest.mark.usefixtures("no_amx")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_checkpoint_brings_back_every_number(precision: str, tmp_path: Path) -> None:
    recipe = TrainingRecipe(precision=precision, learning_rate=1e-2, warmup_steps=0, token_budget=60)
    engine, other = (Engine(tiny_model(seed=seed), recipe) for seed in (0, 1))
    for number in range(3):
        engine.step(number, random_step(number))
    Checkpoints(tmp_path, Ranks()).save(engine.optimizer, Progress(steps=3, seed=0, best=1.5, best_steps=3))

    checkpoints = Checkpoints(tmp_path, Ranks())
    assert checkpoints.last() == Progress(steps=3, seed=0, best=1.5, best_steps=3)
    checkpoints.load(other.optimizer, 3)
    steps = [one.step(3, random_step(3)) for one in (engine, other)]

    assert steps[0] == steps[1]
    assert torch.equal(weights_of(engine.packed.model), weights_of(other.packed.model))


def test_a_checkpoint_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    engine = Engine(tiny_model(), TrainingRecipe())
    checkpoints = Checkpoints(tmp_path, Ranks())
    checkpoints.save(engine.optimizer, Progress(steps=4, seed=0))
    (tmp_path / "step-00000008.partial").mkdir()
    (tmp_path / "step-00000008.partial" / "part-0.safetensors").write_bytes(b"cut")

    found = checkpoints.last()

    assert found is not None and found.steps == 4
    checkpoints.save(engine.optimizer, Progress(steps=8, seed=0))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000008"]


def test_a_checkpoint_of_another_model_or_precision_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Ranks())
    checkpoints.save(Engine(tiny_model(), TrainingRecipe()).optimizer, Progress(steps=1, seed=0))

    with pytest.raises(UserError, match="does not belong to this model"):
        checkpoints.load(Engine(tiny_model(size=64), TrainingRecipe()).optimizer, 1)
    with pytest.raises(UserError, match="written with precision fp32"):
        checkpoints.load(Engine(tiny_model(), TrainingRecipe(precision="bf16-master")).optimizer, 1)
