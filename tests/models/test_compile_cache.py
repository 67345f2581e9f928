"""Compiled kernels stay in the user's cache."""

import os
from pathlib import Path

import pytest

from skillmix.models.compile_cache import keep_compiled_kernels

VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_FX_GRAPH_CACHE")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")  # so that it is restored
        monkeypatch.delenv(variable)
    monkeypatch.setenv("SKILLMIX_CACHE", str(tmp_path / "cache"))


def with_gpu(proc: Path, name: str) -> Path:
    folder = proc / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 1\n", encoding="utf-8")
    return proc


def folders(proc: Path) -> list[str]:
    for variable in VARIABLES:
        os.environ.pop(variable, None)
    keep_compiled_kernels(proc=proc)
    return [os.environ[variable] for variable in VARIABLES[:2]]


def test_kernels_are_stored_in_the_cache_by_kind_of_device(tmp_path: Path) -> None:
    none = folders(tmp_path / "none")
    first = folders(with_gpu(tmp_path / "first", "NVIDIA H200"))
    same = folders(with_gpu(tmp_path / "same", "NVIDIA H200"))
    other = folders(with_gpu(tmp_path / "other", "NVIDIA L4"))
    assert first == same
    assert len({*none, *first, *other}) == 6
    assert all(path.startswith(str(tmp_path / "cache" / "compiled")) for path in (*none, *first))
    assert os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] == "1"
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, f"mine-{variable}")
    keep_compiled_kernels(proc=tmp_path)
    assert [os.environ[variable] for variable in VARIABLES] == [f"mine-{variable}" for variable in VARIABLES]
