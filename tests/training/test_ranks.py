"""Two processes under torchrun's launcher, with FSDP2 over gloo, do what one does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from skillmix.training.loop import train
from skillmix.training.ranks import Ranks
from tests.training.tiny import Steps, distance, tiny_model, weights_of
from tests.training.two_ranks import CLIP, GIVEN, RECIPES, RESUMED, STEPS, VALIDATION, real_micro_batches, trace

ROOT = Path(__file__).parents[2]
ADDRESS = (
    "--master-addr",
    "127.0.0.1",
    "--master-port",
    "0",
    "--rdzv-backend",
    "c10d",
    "--rdzv-endpoint",
    "127.0.0.1:0",
)
LONG = bool(os.environ.get("SKILLMIX_LONG"))
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", *ADDRESS) if LONG else ()
"""The command itself, which imports torch once more for each rank; without it, its launcher starts the ranks."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left behind."""
    folder = tmp_path_factory.mktemp("two")
    found = subprocess.run(
        [sys.executable, *TORCHRUN, str(ROOT / "tests" / "training" / "two_ranks.py"), str(folder)],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",  # a rank that aborts prints where each of its threads was
        },
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-30_000:]  # the launcher's own summary comes last, and is long
    return folder


@pytest.mark.parametrize("name", RECIPES)
def test_two_ranks_take_the_steps_of_one(two: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillmix.training.step.packed_model.LOGITS", 97 * 5)
    one = trace(name, Ranks())
    found: dict[str, Any] = torch.load(two / f"{name}.pt", weights_only=True)

    assert found["rows"].shape == (STEPS, 3)
    assert torch.allclose(found["rows"], one["rows"], rtol=1e-4, atol=0)
    assert name == "adapter" or (one["rows"][:, 2] > 1.01 * CLIP).all(), "clipping is not active"
    for number in range(STEPS):
        assert distance(found["updates"][number], one["updates"][number]) < 1e-4
    assert found["validation"] == pytest.approx(one["validation"], rel=1e-4)


def test_ranks_had_different_numbers_of_micro_batches() -> None:
    assert any(first != second for first, second in real_micro_batches())


def test_a_checkpoint_of_two_ranks_resumes_on_one(two: Path, tmp_path: Path) -> None:
    rows: list[Any] = []
    whole: list[Any] = []
    resumed = train(tiny_model(), Steps(GIVEN), RESUMED, two / "cut", validation=VALIDATION, on_progress=rows.append)
    straight = train(tiny_model(), Steps(GIVEN), RESUMED, tmp_path, validation=VALIDATION, on_progress=whole.append)

    assert [row["step"] for row in rows] == [3, 4, 5, 6, 7]
    for row, expected in zip(rows, whole[3:], strict=True):
        assert [row["answers"], row["norm"]] == pytest.approx([expected["answers"], expected["norm"]], rel=1e-4)
    assert distance(weights_of(resumed.model), weights_of(straight.model)) < 1e-4
    logged = [json.loads(line) for line in (two / "cut" / "training.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["step"] for row in logged] == list(range(8))


def test_the_first_rank_writes_the_whole_model_after_a_validation(two: Path, tmp_path: Path) -> None:
    straight = train(tiny_model(), Steps(GIVEN), RESUMED, tmp_path, validation=VALIDATION)

    written = AutoModelForCausalLM.from_pretrained(two / "model")

    assert type(written).__name__ == "LlamaForCausalLM"
    assert distance(weights_of(written), weights_of(straight.model)) < 1e-4
