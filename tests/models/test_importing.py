"""Torch and transformers are imported by one thread at a time, and only when a model needs them."""

import os
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest

from skillmix.models.local import importing
from tests.conftest import IMPORT_LEAN


@pytest.fixture
def fresh_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_importer", None)
    monkeypatch.setattr(importing, "_is_over", threading.Event())


def test_a_second_thread_waits_until_the_first_has_imported(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def slow(name: str) -> None:
        order.append("begins")
        time.sleep(0.2)
        order.append("ends")

    monkeypatch.setattr(importing, "_MODULES", ("a module",))
    monkeypatch.setattr(importing, "import_module", slow)
    thread = threading.Thread(target=importing.import_here)
    thread.start()
    while not order:
        time.sleep(0.01)
    importing.before_torch()
    importing.import_here()
    assert order == ["begins", "ends"]
    thread.join()


def test_parts_of_torch_are_imported_last(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are parts of the compiler, for which something else stands while the other modules are imported."""
    names: list[str] = []
    monkeypatch.setattr(importing, "_MODULES", ("first",))
    monkeypatch.setattr(importing, "import_module", names.append)

    importing.import_here(("torch._inductor.compile_fx", "skillmix.training.job_run"))

    assert names == ["first", "skillmix.training.job_run", "torch._inductor.compile_fx"]


@pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", "2"), ("SKILLMIX_IMPORTS", "all")])
def test_processes_of_torchrun_and_the_user_can_have_everything_imported(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setattr(importing, "_is_lean", False)
    for variable in ("WORLD_SIZE", "SKILLMIX_IMPORTS"):
        monkeypatch.delenv(variable, raising=False)
    IMPORT_LEAN()
    assert importing._is_lean
    monkeypatch.setenv(name, value)
    IMPORT_LEAN()
    assert not importing._is_lean


def test_a_failed_import_keeps_no_one_waiting(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_MODULES", ("json", "skillmix.there_is_no_such_module", "json"))
    thread = threading.Thread(target=importing.import_here)
    thread.start()
    thread.join()
    importing.before_torch()


def test_the_modules_of_a_run_import_neither_torch_nor_plots_nor_tables() -> None:
    heavy = ["torch", "transformers", "scipy", "pyarrow", "matplotlib", "aiohttp"]
    program = f"import sys, skillmix.steps.run; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_every_module_that_is_imported_ahead_exists() -> None:
    pytest.importorskip("transformers", reason="the extra `local` is not installed")
    for name in importing._MODULES:
        import_module(name)


def test_packages_that_use_the_compiler_do_not_make_a_lean_import_fail(tmp_path: Path) -> None:
    """Torchvision imports a part of the compiler; transformers imports torchvision if it is installed."""
    pytest.importorskip("transformers", reason="the extra `local` is not installed")
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from torch._dynamo.utils import is_compile_supported\n", encoding="utf-8")
    facts = tmp_path / "torchvision-9.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 9.0\n", encoding="utf-8")
    program = """
import sys
from skillmix.models.local import importing
importing.import_lean()
importing.import_here()
print(all(name in sys.modules for name in importing._MODULES), "torchvision" in sys.modules)
with importing.without_compiler():
    from torchvision import is_compile_supported
print(is_compile_supported.args, [name for name in sys.modules if name.startswith("torch._dynamo")])
"""
    plain = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "SKILLMIX_IMPORTS")}
    paths = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))

    lines = subprocess.check_output([sys.executable, "-c", program], env=plain | {"PYTHONPATH": paths}, text=True)

    assert lines.splitlines() == ["True False", "('torch._dynamo.utils', 'is_compile_supported') []"]
