"""The processes that torch starts to compile kernels."""

import atexit
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

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
