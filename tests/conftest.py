"""A tiny catalogue, a folder to run in, the reference material where it is, and no network."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillmix.catalog.catalog import Catalog, Partition, Side, Skill
from skillmix.models.bf16_trial import this_machine

SHARED = Path(__file__).parents[2] / "shared"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which processor the tests ran on: some outcomes could depend on it."""
    here = this_machine()
    terminalreporter.write_line(
        f"processor: {here.model}, {os.cpu_count()} cores, torch {here.torch or 'not installed'}"
    )


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
