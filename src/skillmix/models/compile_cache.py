"""Keep compiled kernels on disk, so that the next process does not compile them again."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from skillmix.hashing import digest
from skillmix.models.bundled import cache_folder

_FOLDERS: Final = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Environment variables of torch and triton, with the name of the folder that each of them gets."""
_GPU_FACTS: Final = "driver/nvidia/gpus/*/information"


def keep_compiled_kernels(*, proc: Path = Path("/proc")) -> None:
    """Let torch and triton store compiled kernels in the cache folder; this must be called before torch is imported.

    Variables that the user has set stay as they are. The folder belongs to one version of torch and one kind of device.
    """
    folder = cache_folder() / "compiled" / digest("compiled", _torch_version(), _device_names(proc)).hex()[:16]
    for variable, name in _FOLDERS.items():
        os.environ.setdefault(variable, str(folder / name))
    os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _device_names(proc: Path) -> list[str]:
    """The models of the GPUs as the driver names them; empty without an NVIDIA driver."""
    names: set[str] = set()
    for file in proc.glob(_GPU_FACTS):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        names |= {line.partition(":")[2].strip() for line in lines if line.startswith("Model:")}
    return sorted(names)
