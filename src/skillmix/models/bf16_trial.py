"""Find out whether this processor can multiply in bfloat16: some advertise instructions that they cannot run.

Such an instruction ends the whole process with a signal that cannot be caught, so a child process tries it once. The
result is cached for each machine.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import machine, processor
from typing import Final, Literal, get_args

from skillmix.errors import UserError
from skillmix.hashing import digest
from skillmix.models.bundled import cache_folder

Answer = Literal["works", "works with the setting", "dies"]
SETTING: Final = "ONEDNN_MAX_CPU_ISA"
WITHOUT_AMX: Final = "AVX512_CORE_BF16"
_PROGRAM: Final = """
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, OSError, ValueError):
    pass
import torch
for rows, width, out in ((1, 576, 576), (64, 576, 1536), (512, 1536, 576), (256, 576, 4096)):
    weight = torch.randn(out, width, dtype=torch.bfloat16, requires_grad=True)
    given = torch.randn(rows, width, dtype=torch.bfloat16, requires_grad=True)
    torch.nn.functional.linear(given, weight).float().sum().backward()
heads = [torch.randn(2, 9, 128, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).float().sum().backward()
"""
"""The child's program: shapes of a small model, large enough for the matrix instructions and still quick."""
_CHILD: Final = (sys.executable, "-c", _PROGRAM)
_TIMEOUT: Final = 180.0
"""Seconds."""
_FATAL: Final = frozenset(
    -getattr(signal, name) for name in ("SIGILL", "SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS") if hasattr(signal, name)
)
"""Exit statuses of a child that an instruction ended; other signals, such as SIGKILL, prove nothing."""
_ISA_VARIABLES: Final = (SETTING, "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
"""Environment variables that choose the instruction set."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that decide which instructions torch uses."""

    model: str
    flags: str
    torch: str

    def key(self) -> str:
        """The key of a cached result: processor, version of torch, chosen instruction set and program of the trial."""
        chosen = [os.environ.get(name, "") for name in _ISA_VARIABLES]
        return digest("bf16", self.model, self.flags, self.torch, chosen, _PROGRAM).hex()


def require_bf16(*, child: Sequence[str] = _CHILD, here: Machine | None = None) -> None:
    """Refuse bfloat16 on a processor on which it kills the process."""
    tested = here or this_machine()
    answer = _answer(tested, child)
    if answer in ("works", None):
        return
    hint = "Set precision: fp32."
    if answer == "works with the setting":
        hint = f"Set {SETTING}={WITHOUT_AMX} in the environment, with which it works, or set precision: fp32."
    raise UserError(
        f"bfloat16 cannot be used on this processor ({tested.model}): it advertises instructions that it cannot run, "
        "and a trial of them killed its process.",
        hint=hint,
    )


def this_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
    """The processor as the kernel describes it, and torch's version."""
    facts: dict[str, str] = {}
    with suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    model = facts.get("model name") or processor() or machine()
    return Machine(model, facts.get("flags") or facts.get("Features") or "", _torch_version())


@cache
def _torch_version() -> str:
    """The version of torch, or nothing without torch; to read a package's facts takes milliseconds."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


_known: dict[tuple[Path, str], Answer] = {}


def _answer(here: Machine, child: Sequence[str]) -> Answer | None:
    """The cached result, or else that of a trial; None if the trial failed for another reason."""
    file, key = cache_folder() / "bf16.json", here.key()
    if (file, key) not in _known:
        stored = _stored(file)
        answer = stored.get(key) or _tried(child)
        if answer is None:
            return None
        _known[file, key] = answer
        if key not in stored:
            _store(file, {**stored, key: answer})
    return _known[file, key]


def _tried(child: Sequence[str]) -> Answer | None:
    survives = _survives(child, {})
    if survives is None:
        return None
    if survives:
        return "works"
    is_set = os.environ.get(SETTING) == WITHOUT_AMX
    return "works with the setting" if not is_set and _survives(child, {SETTING: WITHOUT_AMX}) else "dies"


def _survives(child: Sequence[str], settings: Mapping[str, str]) -> bool | None:
    """Whether a child ran to its end; None if it failed for another reason, which training will show."""
    try:
        ended = subprocess.run(
            child, env={**os.environ, **settings}, capture_output=True, timeout=_TIMEOUT, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return None
    if ended in _FATAL:
        return False
    return True if ended == 0 else None


def _stored(file: Path) -> dict[str, Answer]:
    try:
        cached = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    known = get_args(Answer)
    return {key: answer for key, answer in cached.items() if answer in known} if isinstance(cached, dict) else {}


def _store(file: Path, answers: Mapping[str, Answer]) -> None:
    """Write the cache; if that fails, the next process repeats the trial."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{os.getpid()}")
        partial.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
        partial.replace(file)
