"""When layers are compiled, and the worker processes that compile them."""

import atexit
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from skillmix.hashing import digest

_COLD: Final = 8.0
"""Seconds of a compilation, forward and backward; 6 s were measured on an H200 machine with 16 cores."""
_WARM: Final = 3.0
"""The same if the kernels are on disk already."""
_SAVED_BYTES: Final = (60, 30)
"""Bytes that a compiled layer moves less per token: for each number of the hidden state, and of the inner layer."""
_BANDWIDTH: Final = 0.93e12
"""Bytes per second; with it, the bytes above are the 30 ms that 11,600 tokens of a 135M model save on an H200."""
_ADAPTED: Final = 1.3
"""How much more compiled layers save with an adapter, which adds small operations to each matrix product."""
_SAVED_LAUNCHES: Final = 1e-3
"""Seconds of launches that a compiled layer saves in a step that is not recorded."""

_compiled: set[str] = set()
"""Architectures that this process has compiled."""


class CompileEstimate(NamedTuple):
    """The seconds that compiling saves and takes."""

    steps: int
    saved: float
    cost: float

    @property
    def pays(self) -> bool:
        """Whether a training is shorter with compiled layers."""
        return self.saved > self.cost

    def sentence(self) -> str:
        """The decision in words."""
        verb = "compiles" if self.pays else "does not compile"
        return (
            f"compile: auto {verb} the layers: compiling takes about {self.cost:.0f} s, and saves about "
            f"{self.saved:.0f} s in {self.steps} steps"
        )


def compile_estimate(model: Any, *, steps: int, tokens: int, is_recorded: bool, ranks: int) -> CompileEstimate:
    """Estimate a training of some steps, each of some tokens; all ranks come to the same estimate."""
    config = model.config.get_text_config()
    layers, hidden, inner = (
        int(getattr(config, name, None) or 0) for name in ("num_hidden_layers", "hidden_size", "intermediate_size")
    )
    moved = layers * (_SAVED_BYTES[0] * hidden + _SAVED_BYTES[1] * inner)
    moved_time = tokens / ranks * moved / _BANDWIDTH * (_ADAPTED if hasattr(model, "get_base_model") else 1)
    saved = steps * (moved_time + (0.0 if is_recorded else _SAVED_LAUNCHES * layers))
    return CompileEstimate(steps, saved, _cost(architecture(model)) if ranks == 1 else _COLD)


def architecture(model: Any) -> str:
    """A name for all models that share their compiled layers."""
    layers = [[name, type(module).__name__] for name, module in model.named_modules() if ".0." in name]
    shapes = [list(parameter.shape) for name, parameter in model.named_parameters() if ".0." in name]
    trained = [parameter.requires_grad for name, parameter in model.named_parameters() if ".0." in name]
    return digest("compiled layers", torch.__version__, layers, shapes, trained).hex()[:16]


def note_compiled(model: Any) -> None:
    """Remember that the layers of a model were compiled, for this process and for later ones."""
    name = architecture(model)
    _compiled.add(name)
    note = _note(name)
    if note is not None:
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
        except OSError:  # the next process estimates a cold compilation
            pass


def _cost(name: str) -> float:
    if name in _compiled:
        return 0.0
    note = _note(name)
    return _WARM if note is not None and note.is_file() else _COLD


def _note(name: str) -> Path | None:
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(folder) / f"skillmix-training-{name}" if folder else None


_PATIENCE_S: Final = 0.1


@cache
def leave_workers_at_exit() -> None:
    """Let this process not wait for them when it ends: torch waits up to ten seconds for workers that still start.

    They hold nothing that anyone needs, and end by themselves when the process that started them is gone. Call this
    after torch has been asked to compile: functions for the exit run in the reverse order.
    """
    atexit.register(_make_impatient)


def _make_impatient() -> None:
    """Bound the waiting of torch, which has no setting for it; a torch with other names waits as it did."""
    compiling: Any = sys.modules.get("torch._inductor.async_compile")
    for pool in getattr(compiling, "_pool_set", ()):
        process = getattr(pool, "process", None)
        if process is not None:
            process.wait = partial(_wait_briefly, process, process.wait)


def _wait_briefly(process: Any, wait: Callable[..., int], timeout: float | None = None) -> int:
    try:
        return wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return wait(timeout)
