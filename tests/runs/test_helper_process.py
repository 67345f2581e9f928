"""A generator in another process: its items in order, its errors, its sudden end."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillmix.errors import UserError
from skillmix.runs import helper_process
from skillmix.runs.helper_process import LostHelper, cores, in_helper


def squares(count: int) -> Iterator[tuple[int, int]]:
    for number in range(count):
        yield number**2, os.getpid()


def two_and_an_error() -> Iterator[int]:
    yield 1
    yield 2
    raise UserError("The journal is damaged.", hint="Restore it.")


def one_and_gone() -> Iterator[int]:
    yield 1
    os._exit(3)


def endless() -> Iterator[tuple[int, bytes]]:
    while True:
        yield os.getpid(), bytes(1_000_000)


def test_items_come_in_order_from_another_process() -> None:
    with in_helper(squares, 100) as items:
        found = list(items)

    assert [square for square, _ in found] == [number**2 for number in range(100)]
    assert os.getpid() not in {process for _, process in found}


def test_an_error_comes_as_if_it_were_ours() -> None:
    with pytest.raises(UserError, match="damaged") as caught, in_helper(two_and_an_error) as items:
        assert [next(items), next(items)] == [1, 2]
        next(items)

    assert caught.value.hint == "Restore it."


def test_a_process_that_ends_too_early_is_told_from_one_that_is_done() -> None:
    with pytest.raises(LostHelper), in_helper(one_and_gone) as items:
        list(items)


def test_who_wants_no_more_ends_the_other_process() -> None:
    with in_helper(endless) as items:
        process, _ = next(items)

    for _ in range(50):
        if not os.path.exists(f"/proc/{process}"):  # noqa: PTH110
            break
        time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu.max": "?\n"}, 8),
    ],
)
def test_a_container_has_as_many_cores_as_its_limit_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], wanted: int
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(helper_process, "_CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)

    assert cores() == wanted
