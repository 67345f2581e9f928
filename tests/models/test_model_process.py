"""Local models in a second process: the same texts, and nothing hangs when a process dies."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from skillmix.calls import Decoding, GenerateKey, Message, Reply, Request
from skillmix.errors import UserError
from skillmix.models.local import model as local_model
from skillmix.models.local.model import LocalModel, ModelKeeper, ModelProcess
from skillmix.models.specs import ModelOptions, parse_spec
from tests.models.tiny_checkpoint import write_checkpoint

pytest.importorskip("torch", reason="the extra `local` is not installed")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "a")


class Keeper(ModelKeeper):
    """A keeper whose models work in a second process on any machine."""

    def process(self) -> ModelProcess | None:
        if self._blocks and (self._process is None or self._process.is_lost):
            self._process = ModelProcess()
        return self._process


@pytest.fixture(scope="module")
def keeper() -> Iterator[Keeper]:
    """A keeper of these tests alone whose models work in another process, on the CPU."""
    keeper = Keeper()
    with pytest.MonkeyPatch.context() as patch, keeper.keeping():
        patch.setattr(local_model, "MODELS", keeper)
        patch.setenv("SKILLMIX_DEVICE", "cpu")
        yield keeper


def requests(count: int = 8, tokens: int = 24) -> list[Request]:
    return [
        Request(GenerateKey("s", str(n), 0, 1), "m", (Message("user", f"{n} a b c"),), Decoding(0.9, tokens), n)
        for n in range(count)
    ]


async def answers(spec: str, asked: Sequence[Request], *, then: Any = lambda: None) -> list[tuple[Request, Any]]:
    async def source() -> AsyncIterator[Request]:
        for request in asked:
            yield request

    opened = LocalModel(parse_spec(spec), ModelOptions())
    found = []
    try:
        async for item in opened.serve(source()):
            found.append(item)
            then()
    finally:
        await opened.close()
    assert opened.limits.in_flight
    return found


def texts(found: Sequence[tuple[Request, Any]]) -> dict[str, str]:
    return {str(request.key): reply.text for request, reply in found if isinstance(reply, Reply)}


def process_of(keeper: Keeper) -> ModelProcess:
    process = keeper.process()
    assert process is not None
    return process


def test_texts_are_those_of_a_model_in_this_process(
    keeper: Keeper, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, asked = f"local:{checkpoint}", requests()
    first = process_of(keeper)
    found = asyncio.run(answers(spec, asked))
    again = asyncio.run(answers(spec, asked))
    assert {id(request) for request, _ in found} == {id(request) for request in asked}
    assert process_of(keeper) is first
    keeper.drop()

    monkeypatch.setattr(local_model, "MODELS", ModelKeeper())
    assert texts(found) == texts(again) == texts(asyncio.run(answers(spec, asked)))
    assert len(texts(found)) == len(asked)


def test_an_error_of_the_model_is_raised_with_its_hint(
    keeper: Keeper, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = write_checkpoint(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    errors = []
    for used in (keeper, ModelKeeper()):
        monkeypatch.setattr(local_model, "MODELS", used)
        with pytest.raises(UserError) as caught:
            asyncio.run(answers(f"local:{broken}", requests(1)))
        errors.append((str(caught.value), caught.value.hint))
    assert errors[0] == errors[1]


def test_a_process_that_is_killed_ends_the_run_with_an_error_and_the_next_one_works(
    keeper: Keeper, checkpoint: Path
) -> None:
    first = process_of(keeper)

    def kill() -> None:
        first._process.kill()

    with pytest.raises(UserError, match="ended with signal 9"):
        asyncio.run(answers(f"local:{checkpoint}", requests(64, 96), then=kill))
    assert first.is_lost
    assert len(asyncio.run(answers(f"local:{checkpoint}", requests()))) == 8
    assert process_of(keeper) is not first


def test_the_process_ends_with_the_block(checkpoint: Path) -> None:
    keeper = Keeper()
    assert keeper.process() is None, "outside of a block nothing may be left behind"
    with keeper.keeping():
        process = process_of(keeper)
        assert process._process.poll() is None
    assert process._process.poll() is not None
    assert keeper.process() is None


def test_ctrl_c_is_left_to_the_command(keeper: Keeper) -> None:
    assert os.getsid(process_of(keeper)._process.pid) != os.getsid(0), "a terminal sends signals to its own session"


_COMMAND = """
import sys
from skillmix.models.local.model import ModelProcess
print(ModelProcess()._process.pid, flush=True)
sys.stdin.read()
"""


def test_the_process_ends_when_the_command_is_killed() -> None:
    command = subprocess.Popen([sys.executable, "-c", _COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert command.stdin is not None
    assert command.stdout is not None
    with command.stdin, command.stdout:
        pid = int(command.stdout.readline())
        command.kill()
        command.wait()
    until = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < until
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("device", "has_gpu", "is_found"),
    [(None, True, True), (None, False, False), ("cuda", True, True), ("cpu", True, False), ("mps", True, False)],
)
def test_models_work_apart_where_there_is_a_gpu(
    device: str | None, has_gpu: bool, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKILLMIX_DEVICE", raising=False)
    if device is not None:
        monkeypatch.setenv("SKILLMIX_DEVICE", device)
    monkeypatch.setattr(local_model, "_GPU_FILES", ("/dev/null",) if has_gpu else ("/no/such/file",))
    assert local_model.has_gpu() == is_found


@pytest.mark.parametrize(("billions", "has_gpu"), [(1, True), (1, False), (0.9, True)])
def test_vllm_is_recommended_for_a_large_model_on_a_gpu(
    billions: float, has_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKILLMIX_DEVICE", raising=False)
    monkeypatch.setattr(local_model, "_GPU_FILES", ("/dev/null",) if has_gpu else ())
    size = int(billions * 1e9)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 4 * size)  # a file of holes takes no room
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    lines: list[str] = []

    asyncio.run(LocalModel(parse_spec(f"local:{tmp_path}"), ModelOptions(say=lines.append)).probe())

    line = f"local:{tmp_path} has 1.0 billion weights: vllm:{tmp_path} is faster for so large a model"
    assert lines == ([line] if billions >= 1 and has_gpu else [])
