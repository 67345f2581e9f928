"""Measure the share of time in which the device of a step worked.

For a GPU it is the mean of the driver's own figure, the share of its last sampling period in which at least one kernel
ran, read twice a second through NVML. The figure covers all programs on the GPU. Without NVML the share is unknown.
For a CPU it is the CPU time of this process and of its finished children, divided by wall time and by the number of
cores that the process may use.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

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
        self._started, self._cpu_started = now(), _cpu_seconds()
        self._samples: list[float | None] = []

    def sample(self) -> None:
        """Read what the GPU does now; before this process uses the GPU, it does nothing for this process."""
        self._samples.append(self._gpu() if _uses_gpu() else 0.0)

    def seconds(self) -> DeviceSeconds | None:
        """What was measured until now; None if it is unknown or if there were too few samples."""
        measured = self._now() - self._started
        if not _uses_gpu():
            return DeviceSeconds("CPU", (_cpu_seconds() - self._cpu_started) / _cores(), measured) if measured else None
        known = [sample for sample in list(self._samples) if sample is not None]
        if len(known) < max(_FEWEST_SAMPLES, len(self._samples)):
            return None
        return DeviceSeconds("GPU", measured * sum(known) / len(known), measured)


def gpu_reader() -> GpuReader:
    """A function that reads the utilisation of the GPU that torch uses."""
    handle: list[tuple[Any, Any] | None] = []

    def read() -> float | None:
        if not handle:
            handle.append(_nvml_handle())
        return None if handle[0] is None else _utilisation(*handle[0])

    return read


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def _nvml_handle() -> tuple[Any, Any] | None:
    """NVML and its handle of torch's GPU; None if there is no NVML."""
    uuid = str(_torch().cuda.get_device_properties(_torch().cuda.current_device()).uuid)
    device = ctypes.c_void_p()
    for library in _LIBRARIES:
        try:
            nvml = ctypes.CDLL(library)
        except OSError:
            continue
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(device)) == 0:
            return nvml, device
    return None


def _utilisation(nvml: Any, device: Any) -> float | None:
    rates = _Rates()
    status = nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates))
    return None if status else float(rates.gpu) / 100


def _uses_gpu() -> bool:
    torch = _torch()
    cuda = getattr(torch, "cuda", None)  # another thread may be importing torch
    is_initialized = getattr(cuda, "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def _torch() -> Any:
    return sys.modules.get("torch")


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
