"""A run that is killed at any moment of a batch goes on, and nothing is paid twice."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from skillmix.commands import main as command
from tests.runs.batches.experiments import written
from tests.runs.batches.killed_runs import places
from tests.runs.batches.stub_provider import StubProvider, serving
from tests.runs.batches.test_faults import SHAPES, DirectRun, check, direct, fast, provider

__all__ = ["direct", "fast"]
ROOT = Path(__file__).parents[3]
BATCHES = (1, 2, 3, 4) if os.environ.get("SKILLMIX_LONG") else (1,)
"""The batch, in their order, at whose moments the process dies."""


def killed(folder: Path, shape: str, number: int, stubs: dict[str, StubProvider]) -> dict[str, str]:
    """Run and kill one process for each moment; how each of them ended."""
    runs = []
    for moment, stub in stubs.items():
        (folder / moment).mkdir()
        runs.append(f"{moment}={written(folder / moment, stub.address, shape=shape)}")
    words = [sys.executable, "-m", "tests.runs.batches.killed_runs", shape, str(number), *runs]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return dict(line.split("=") for line in ended.stdout.splitlines())


@pytest.mark.parametrize("number", BATCHES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_killed_at_any_moment_of_a_batch_goes_on_and_pays_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: dict[str, DirectRun], shape: str, number: int
) -> None:
    with ExitStack() as serves:
        stubs = {moment: serves.enter_context(serving(provider(shape))) for moment in places(shape)}
        for stub in stubs.values():
            stub.add_foreign(3, size=8)

        ends = killed(tmp_path, shape, number, stubs)

        assert ends == dict.fromkeys(stubs, str(int(signal.SIGKILL)))
        for moment, stub in stubs.items():
            monkeypatch.chdir(tmp_path / moment)
            made = stub.creations
            assert made == number - (moment in ("rows written", "uploaded")), moment
            assert command(["run", "run.yaml", "--json"]) == 1
            check(direct[shape], stub)
            assert stub.creations == 4, f"{moment}: a batch was created twice"
        if shape == "openai":
            assert len(stubs["uploaded"].deleted) == 1  # found by its name


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_killed_again_and_again_comes_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: dict[str, DirectRun], shape: str
) -> None:
    if not os.environ.get("SKILLMIX_LONG"):
        pytest.skip("SKILLMIX_LONG=1 runs it")
    with serving(provider(shape)) as stub:
        path = written(tmp_path, stub.address, shape=shape)
        words = [sys.executable, "-m", "tests.runs.batches.killed_runs", shape, "1"]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
        runs = [f"{moment}={path}" for _ in range(4) for moment in places(shape)]
        subprocess.run([*words, *runs], cwd=tmp_path, env=environment, capture_output=True, check=True)

        monkeypatch.chdir(tmp_path)
        assert command(["run", "run.yaml", "--json"]) == 1
        check(direct[shape], stub)
