"""The memory of the GPU that this process may use: all of it, or a share if several processes use one GPU."""

import os
from typing import Final

from skillmix.models.local.importing import before_torch

GPU_SHARE: Final = "SKILLMIX_GPU_SHARE"
"""Environment variable with the share of the GPU's memory that a process may use, such as 0.5."""
_OUTSIDE: Final = 1 << 30
"""Bytes of a process that torch does not count: the context of the GPU, libraries and captured graphs."""


def gpu_memory() -> tuple[int, int]:
    """The bytes that are free for this process, and the bytes that it may use in all."""
    before_torch()
    import torch

    free, whole = torch.cuda.mem_get_info()
    share = _share()
    if share is None:
        return free, whole
    own = max(_OUTSIDE, int(share * whole) - _OUTSIDE)
    return max(0, min(free, own - torch.cuda.memory_reserved())), own


def claim_share() -> None:
    """Let torch refuse memory beyond the share of this process."""
    share = _share()
    if share is not None:
        import torch

        whole = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, gpu_memory()[1] / whole))


def _share() -> float | None:
    """The share from the environment; None for the whole GPU."""
    try:
        share = float(os.environ.get(GPU_SHARE, "1"))
    except ValueError:
        return None
    return share if 0 < share < 1 else None
