"""bfloat16 on a CPU is tried in a child process once, and refused where the child dies."""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from skillmix.errors import UserError
from skillmix.models import bf16_trial
from skillmix.models.bf16_trial import Machine, require_bf16, this_machine

HERE = Machine("Some Processor", "avx512f amx_bf16", "2.13.0")
_NOTE = "import os, signal; open('started', 'a').write(os.environ.get('ONEDNN_MAX_CPU_ISA', '-') + '\\n')"
_DIE = "os.kill(os.getpid(), signal.SIGILL)"
LIVES = (sys.executable, "-c", _NOTE)
DIES = (sys.executable, "-c", f"{_NOTE}; {_DIE}")
DIES_WITH_AMX = (sys.executable, "-c", f"{_NOTE}; 'ONEDNN_MAX_CPU_ISA' in os.environ or {_DIE}")


@pytest.fixture(autouse=True)
def cache(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKILLMIX_CACHE", str(in_folder / "cache"))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(bf16_trial, "_known", {})
    return in_folder / "cache" / "bf16.json"


def started() -> list[str]:
    """With which setting each child was started."""
    file = Path("started")
    return file.read_text(encoding="utf-8").split() if file.exists() else []


def test_a_child_that_dies_by_an_illegal_instruction_is_a_refusal_with_a_way_out() -> None:
    with pytest.raises(UserError, match="Some Processor") as caught:
        require_bf16(child=DIES, here=HERE)

    assert caught.value.hint == "Set precision: fp32."
    assert started() == ["-", "AVX512_CORE_BF16"]


def test_a_setting_that_helps_is_named() -> None:
    with pytest.raises(UserError) as caught:
        require_bf16(child=DIES_WITH_AMX, here=HERE)

    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in str(caught.value.hint)
    assert "precision: fp32" in str(caught.value.hint)


def test_with_that_setting_the_question_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError):
        require_bf16(child=DIES_WITH_AMX, here=HERE)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

    require_bf16(child=DIES_WITH_AMX, here=HERE)


@pytest.mark.parametrize("child", [LIVES, DIES])
def test_the_answer_is_remembered_in_memory_and_on_disk(
    child: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> str | None:
        try:
            require_bf16(child=child, here=HERE)
        except UserError as error:
            return error.hint
        return None

    first = ask()
    children = started()
    assert children

    assert ask() == first
    monkeypatch.setattr(bf16_trial, "_known", {})
    assert ask() == first
    assert started() == children


@pytest.mark.parametrize("changed", [{"model": "Another"}, {"flags": "avx512f"}, {"torch": "2.14.0"}])
def test_another_processor_or_torch_is_asked_anew(changed: dict[str, str]) -> None:
    require_bf16(child=LIVES, here=HERE)

    with pytest.raises(UserError):
        require_bf16(child=DIES, here=replace(HERE, **changed))

    require_bf16(child=DIES, here=HERE)


@pytest.mark.parametrize("ending", ["raise SystemExit(1)", f"os.kill(os.getpid(), {int(signal.SIGKILL)})"])
def test_a_child_that_fails_otherwise_decides_nothing(ending: str, cache: Path) -> None:
    child = (sys.executable, "-c", f"{_NOTE}; {ending}")

    require_bf16(child=child, here=HERE)
    require_bf16(child=child, here=HERE)

    assert started() == ["-", "-"]
    assert not cache.exists()


def test_a_damaged_or_unwritable_cache_only_means_another_trial(cache: Path) -> None:
    cache.parent.write_text("in the way", encoding="utf-8")
    require_bf16(child=LIVES, here=HERE)
    cache.parent.unlink()

    cache.parent.mkdir()
    cache.write_text('{"broken', encoding="utf-8")
    require_bf16(child=LIVES, here=replace(HERE, model="Another"))

    assert list(json.loads(cache.read_text(encoding="utf-8")).values()) == ["works"]


def test_the_processor_is_read_as_the_kernel_describes_it(in_folder: Path) -> None:
    info = in_folder / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Xeon\nflags\t: fpu amx_bf16\n\nflags\t: other\n", encoding="utf-8")

    assert (this_machine(info).model, this_machine(info).flags) == ("Xeon", "fpu amx_bf16")
    assert this_machine(in_folder / "missing").model


def test_the_real_trial_has_an_answer_here() -> None:
    """Whatever this processor can do, the process that asks survives."""
    try:
        require_bf16()
    except UserError as error:
        assert "precision: fp32" in str(error.hint)
    assert list(bf16_trial._known.values()) in (["works"], ["works with the setting"], ["dies"])
