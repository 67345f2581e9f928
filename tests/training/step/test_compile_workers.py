"""The processes that torch starts to compile kernels."""

import subprocess
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from skillmix.training.step import compiling as compile_workers


def test_an_exit_does_not_wait_for_workers_that_still_start(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    done = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    done.wait()
    compiling = ModuleType("torch._inductor.async_compile")
    pools = [SimpleNamespace(process=busy), SimpleNamespace(process=done), SimpleNamespace()]
    monkeypatch.setattr(compiling, "_pool_set", pools, raising=False)
    monkeypatch.setitem(sys.modules, compiling.__name__, compiling)
    started = time.monotonic()

    compile_workers._make_impatient()
    ends = [process.wait(300) for process in (busy, done)]

    assert ends == [-9, 3]
    assert time.monotonic() - started < 30, "it would have waited for a minute"


def test_a_torch_without_such_workers_ends_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor.async_compile", ModuleType("torch._inductor.async_compile"))
    compile_workers._make_impatient()
    monkeypatch.delitem(sys.modules, "torch._inductor.async_compile")
    compile_workers._make_impatient()
