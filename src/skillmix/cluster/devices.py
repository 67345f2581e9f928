"""The part of a machine's devices that one worker may use; this module does not import Ray."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from skillmix.models.local.gpu_share import GPU_SHARE
from skillmix.models.local.importing import import_lean
from skillmix.models.local.resident import MODELS

_THREADS: Final = "OMP_NUM_THREADS"
_UNTIL_THE_END: Final = ExitStack()
"""What a worker keeps as long as its process lives."""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What a worker with local models may use."""

    gpu: float = 0.0
    """Share of one GPU; 0 for a worker that writes on CPUs."""
    threads: int | None = None
    """Threads of a worker that writes on CPUs; None for as many as torch takes on that machine."""

    def claim(self) -> None:
        """Let this process, which has not imported torch yet, keep to its share; its last model stays in memory."""
        os.environ["SKILLMIX_DEVICE"] = "cuda" if self.gpu else "cpu"
        if self.gpu:
            os.environ[GPU_SHARE] = str(self.gpu)
        # Ray sets the number of threads to the number of CPUs that an actor reserves, which is none.
        os.environ.pop(_THREADS, None)
        if self.threads is not None:
            os.environ[_THREADS] = str(self.threads)
        import_lean()
        _UNTIL_THE_END.enter_context(MODELS.keeping())


def wanted_threads() -> int | None:
    """The number of threads that the environment of the driver asks for."""
    text = os.environ.get(_THREADS, "")
    return int(text) if text.isdecimal() and int(text) else None
