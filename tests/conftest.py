"""A tiny catalog, a small model, a folder to run in, the reference material where it is, and no network."""

import gc
import importlib
import json
import os
import socket
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from skillmix.catalog.catalog import Catalog, Partition, Side, Skill
from skillmix.models.bundled import bundled_models
from skillmix.runs.run import processor_name

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # without a GPU; Triton reads it when it is imported

SHARED = Path(__file__).parents[2] / "shared"
_TOKENS: Final = 8192
_IN_MEMORY: Final = Path("/dev/shm")
_ROOM: Final = 4 * 2**30
"""Bytes; all tests together write less than one GiB, and two suites may run at the same time."""


def pytest_configure(config: pytest.Config) -> None:
    """Put the folders of tests into memory, if it has room: journals wait for a disk at every transaction."""
    if config.getoption("basetemp") is None and _has_room(_IN_MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))


def _has_room(folder: Path) -> bool:
    """Whether a folder in memory can hold what all tests write, and programs among it."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    facts = os.statvfs(folder)
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        return min(facts.f_bavail * facts.f_frsize, available) > _ROOM and not facts.f_flag & os.ST_NOEXEC
    return False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported, and never look at what they left: a look takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        importlib.import_module("hypothesis")  # it asks the collector who owns generators of random numbers
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which processor the tests ran on: some outcomes could depend on it."""
    torch = version("torch") if find_spec("torch") else "not installed"
    terminalreporter.write_line(f"processor: {processor_name()}, {os.cpu_count()} cores, torch {torch}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let workers take long files first; files that share costly fixtures go to one worker."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.schedule import LongestFirst

    config.option.loadscopereorder = False  # else files with many tests come first, however short
    return LongestFirst(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long files first, where workers share the suite."""
    if hasattr(config, "workerinput"):
        from tests.schedule import turn_of

        items.sort(key=lambda item: turn_of(item.nodeid))


@pytest.fixture
def tiny_catalog() -> Catalog:
    """Six skills in three categories, four topics."""
    skills = tuple(
        Skill(f"skill {letter}", f"category {number // 2}", f"Definition of {letter}.", f"Example of {letter}.")
        for number, letter in enumerate("abcdef")
    )
    topics = ("Sewing", "Knots", "Golf", "Regatta, sailing")
    names = tuple(skill.name for skill in skills)
    return Catalog(
        name="tiny",
        skills=skills,
        topics=topics,
        partitions=(Partition("half", Side(names[:3], topics[:2]), Side(names[3:], topics[2:])),),
        default_partition="half",
        exclude={"common": (names[0],)},
    )


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two layers with random weights and most of the bundled tokenizer; no test may change it."""
    torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
    folder = bundled_models()[0].folder
    if folder is None:
        pytest.skip("the bundled model is not in the cache: `skillmix models --fetch` brings it")
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = LlamaConfig(
        vocab_size=_TOKENS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    path = tmp_path_factory.mktemp("models") / "small"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    _keep_first_tokens(path / "tokenizer.json")
    return path


def _keep_first_tokens(file: Path) -> None:
    """Leave out the rare words of a tokenizer: without them a step of a tiny model takes a fraction of the time."""
    document = json.loads(file.read_text(encoding="utf-8"))
    words = document["model"]
    known = words["vocab"] = {token: number for token, number in words["vocab"].items() if number < _TOKENS}
    words["merges"] = [pair for pair in words["merges"] if "".join(pair) in known]
    file.write_text(json.dumps(document), encoding="utf-8")


@pytest.fixture
def shared() -> Path:
    """The reference material that lies beside a checkout, if it does."""
    if not SHARED.is_dir():
        pytest.skip("the reference material (../shared) is not here")
    return SHARED


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test reaches beyond this machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to reach {address[0]}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    yield
