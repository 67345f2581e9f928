"""The loop of dataset, train, dataset, train, evaluate: killed at random moments, and with another evaluation."""

import json
import os
import random
import time
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from skillmix.models.lineage_files import read_model_file
from skillmix.runs.run import open_run
from skillmix.scores.scoring import run_scores
from tests.steps.loop import in_child, loop, run_loop

pytest.importorskip("torch", reason="the extra `train` is not installed")
KILLS = 20 if os.environ.get("SKILLMIX_LONG") else 4
DATASETS, MODELS = ("d1", "d2"), ("m1", "m2")


def data_sets(folder: Path) -> dict[str, bytes]:
    files = [file for name in DATASETS for file in sorted((folder / "runs/loop" / name / "dataset").iterdir())]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def losses(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for name in MODELS:
        lines = (folder / "runs/loop" / name / "training.jsonl").read_text(encoding="utf-8").splitlines()
        rows += [{key: json.loads(line).get(key) for key in ("step", "answers", "validation")} for line in lines]
    return rows


def weights(folder: Path) -> list[bytes]:
    return [(folder / "runs/loop" / name / "model/model.safetensors").read_bytes() for name in MODELS]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> tuple[Path, float]:
    """The folder of a loop that ran without a break, and how many seconds it took."""
    import skillmix.training.job_run  # noqa: F401 - before the children fork, so that they need not

    folder = tmp_path_factory.mktemp("loops") / "alone"
    folder.mkdir()
    path = loop(folder, small_model)
    started = time.monotonic()
    assert not in_child(path)
    return folder, time.monotonic() - started


def test_killed_at_random_moments_it_makes_the_same_data_sets_losses_and_scores(
    done: tuple[Path, float], small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, seconds = done
    folder = alone.parent / "killed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    path = loop(folder, small_model)
    chance = random.Random(18)
    kills = tries = 0
    while kills < KILLS and tries < 5 * KILLS:
        tries += 1
        if in_child(path, killed_after=chance.uniform(0.02, 1.6 / KILLS + 0.1) * seconds):
            kills += 1
        else:
            (folder / "runs/loop").rename(folder / f"old-{tries}")  # it was done too soon: begin anew
    in_child(path)

    assert kills == KILLS
    assert data_sets(folder) == data_sets(alone)
    assert losses(folder) == losses(alone)
    assert weights(folder) == weights(alone)
    assert json.dumps([s.json_row() for s in run_scores("loop")]) == json.dumps(
        [s.json_row() for s in run_scores(str(alone / "runs/loop"))]
    )


def test_another_evaluation_touches_no_earlier_step(
    done: tuple[Path, float],
    small_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = done[0].parent / "extended"
    copytree(done[0], folder)
    monkeypatch.chdir(folder)
    before = data_sets(folder), losses(folder), weights(folder)
    times = {file: file.stat().st_mtime_ns for file in (folder / "runs/loop").glob("*/*/*")}
    first = {(c.student, c.setting, c.k): c.combinations for c in open_run("loop").cells}
    with open_run("loop").read() as journal:
        calls = {str(call.key) for stage in ("generate", "grade") for call in journal.calls(stage)}

    # More than the fifth of the 25 combinations of k = 1 that belongs to evaluations: the draws meet training data.
    larger = run_loop(loop(folder, small_model, combinations=8))

    assert larger.is_complete
    assert larger.taken == {"d1", "m1", "d2", "m2"}
    assert "eval runs again: its combinations changed" in capsys.readouterr().err
    assert (data_sets(folder), losses(folder), weights(folder)) == before
    assert {file: file.stat().st_mtime_ns for file in times} == times
    second = {(c.student, c.setting, c.k): c.combinations for c in open_run("loop").cells}
    assert all(second[cell][:5] == combinations for cell, combinations in first.items())
    with open_run("loop").read() as journal:
        new = {str(call.key) for stage in ("generate", "grade") for call in journal.calls(stage)} - calls
    added = {c.id for cell, combinations in second.items() for c in combinations[5:]}
    assert {key.split("/")[2] for key in new} == added
    assert larger.called == len(new)

    trained = [read_model_file(folder / "runs/loop" / name / "model") for name in MODELS]
    seen = {c for file in trained if file for c in file.combinations}
    assert open_run("loop").excluded["eval"], "the draws did not meet training data"
    assert not seen & {c.id for combinations in second.values() for c in combinations}
    assert len({second[student, "train", 1] for student in ("base", "m1", "m2")}) == 1

    smaller = run_loop(loop(folder, small_model, combinations=3))
    assert (smaller.called, smaller.is_complete) == (0, True)
    assert (data_sets(folder), losses(folder), weights(folder)) == before
