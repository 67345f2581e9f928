"""Measure the share of time in which the device of a step worked.

For a GPU it is the mean of the driver's own figure, the share of its last sampling period in which at least one kernel
ran, read twice a second through NVML. The figure covers all programs on the GPU. Without NVML the share is unknown.
For a CPU it is the CPU time of this process and of its child processes, divided by wall time and by the number of
cores that the process may use.
"""

import ctypes
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from skillmix.models.local.gpu_share import gpu_of, uses_gpu
from skillmix.models.local.resident import MODELS

Device = Literal["GPU", "CPU"]
GpuReader = Callable[[], float | None]
"""The share of time in which the GPU works at present; None if nobody knows."""
_FEWEST_SAMPLES: Final = 2
_LIBRARIES: Final = ("libnvidia-ml.so.1", "nvml.dll")


@dataclass(frozen=True, slots=True)
class DeviceSeconds:
    """Wall seconds in which a device was measured, and those in which it worked."""

    device: Device
    worked: float
    measured: float

    @property
    def share(self) -> float:
        """The share of time in which the device worked."""
        return min(1.0, self.worked / self.measured) if self.measured else 0.0


class DeviceMeter:
    """Measures the device of one step."""

    def __init__(self, gpu: GpuReader | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._gpu = gpu or gpu_reader()
        self._now = now
        self._started, self._cpu_started = now(), cpu_seconds()
        self._samples: list[float | None] = []

    def sample(self) -> None:
        """Read what the GPU does now; before the run uses the GPU, it does nothing for the run."""
        self._samples.append(self._gpu() if _uses_gpu() else 0.0)

    def seconds(self) -> DeviceSeconds | None:
        """What was measured until now; None if it is unknown or if there were too few samples."""
        measured = self._now() - self._started
        if not _uses_gpu():
            return DeviceSeconds("CPU", (cpu_seconds() - self._cpu_started) / cores(), measured) if measured else None
        known = [sample for sample in list(self._samples) if sample is not None]
        if len(known) < max(_FEWEST_SAMPLES, len(self._samples)):
            return None
        return DeviceSeconds("GPU", measured * sum(known) / len(known), measured)


def gpu_reader() -> GpuReader:
    """A function that reads the utilisation of the GPU that torch uses."""
    device: list[_NvmlDevice | None] = []

    def read() -> float | None:
        if not device:
            device.append(_nvml_device())
        return None if device[0] is None else device[0].utilisation()

    return read


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _NvmlDevice:
    """A GPU as NVML knows it; functions of NVML return 0 if all is well."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        self._handle = ctypes.c_void_p()
        handle = ctypes.byref(self._handle)
        is_there = nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), handle) == 0
        if not is_there and not (self._is_only_one() and nvml.nvmlDeviceGetHandleByIndex_v2(0, handle) == 0):
            raise LookupError(uuid)

    def _is_only_one(self) -> bool:
        count = ctypes.c_uint()
        return self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value == 1

    def utilisation(self) -> float | None:
        """The share of the last sampling period in which a kernel ran; None if NVML does not say."""
        rates = _Rates()
        status = self._nvml.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates))
        return None if status else float(rates.gpu) / 100


def _nvml_device() -> _NvmlDevice | None:
    """The GPU that torch uses; None without NVML, or if NVML does not know this GPU."""
    uuid = gpu_of(_torch()) or MODELS.gpu or ""
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    for library in _LIBRARIES:
        with suppress(OSError, AttributeError, LookupError):  # an old library may lack a function
            return _NvmlDevice(ctypes.CDLL(library), name)
    return None


def _uses_gpu() -> bool:
    return uses_gpu(_torch()) or MODELS.gpu is not None


def _torch() -> Any:
    return sys.modules.get("torch")


def cpu_seconds() -> float:
    """CPU time of this process and of its child processes, those that still work included where /proc shows them."""
    children: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # it may end meanwhile
            fields = file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            children[int(fields[1])].append((int(file.parent.name), sum(map(int, fields[11:15]))))
    seconds, waiting = sum(os.times()[:4]), [os.getpid()]
    while waiting:
        for child, ticks in children[waiting.pop()]:
            seconds += ticks / os.sysconf("SC_CLK_TCK")
            waiting.append(child)
    return seconds


_CONTROL_GROUP: Final = Path("/sys/fs/cgroup")


def cores() -> int:
    """The number of cores that this process may use: those it may run on, or the share of them that a container has."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    allowed = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _container_cores())))


def _container_cores() -> float:
    """Cores' worth of time that a container on Linux gives its processes; infinite without a limit."""
    with suppress(OSError, ValueError):  # ValueError: the quota is "max"
        quota, period = (_CONTROL_GROUP / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = (
            (_CONTROL_GROUP / "cpu" / name).read_text(encoding="ascii")
            for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        )
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf
