"""Figures of a step: how they are kept, added up and said, and how a device is measured."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skillmix.runs.seconds import device_meter
from skillmix.runs.seconds.device_meter import DeviceMeter, DeviceSeconds
from skillmix.runs.seconds.kept_seconds import KeptSeconds, StepSeconds, added
from skillmix.runs.seconds.step_meter import rounded, seconds_line


def test_entries_of_a_step_add_up_and_an_entry_replaces_itself(tmp_path: Path) -> None:
    kept = KeptSeconds(tmp_path)
    kept.keep("d1", "first", StepSeconds({"writing": 1.0}))
    kept.keep("d1", "first", StepSeconds({"writing": 40.0, "reading": 2.0}, DeviceSeconds("GPU", 21.0, 42.0)))
    kept.keep("d1", "second", StepSeconds({"writing": 10.0, "grading": 4.0}, DeviceSeconds("GPU", 14.0, 14.0)))
    kept.keep("m1", "first", StepSeconds({"training": 3.0}))

    by_step = KeptSeconds(tmp_path).by_step()

    assert by_step["d1"].parts == {"writing": 50.0, "grading": 4.0, "reading": 2.0}
    assert by_step["d1"].total == 56.0
    assert by_step["d1"].device == DeviceSeconds("GPU", 35.0, 56.0)
    assert by_step["m1"] == StepSeconds({"training": 3.0})


def test_the_share_of_different_devices_is_unknown() -> None:
    on_gpu = StepSeconds({"writing": 1.0}, DeviceSeconds("GPU", 1.0, 1.0))
    on_cpu = StepSeconds({"writing": 1.0}, DeviceSeconds("CPU", 1.0, 1.0))

    assert added([on_gpu, on_cpu]).device is None
    assert added([on_gpu, StepSeconds({"writing": 9.0})]).device == DeviceSeconds("GPU", 1.0, 1.0)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"format": 2, "steps": {"d1": {"a": {"seconds": {"writing": 1}, "device": null}}}}',
        '{"format": 1, "steps": ["d1"]}',
        '{"format": 1, "steps": {"d1": {"a": {"seconds": {"writing": "long"}, "device": null}}}}',
        '{"format": 1, "steps": {"d1": {"a": {"seconds": {"writing": -1}, "device": null}}}}',
        '{"format": 1, "steps": {"d1": {"a": {"seconds": {"writing": NaN}, "device": null}}}}',
        '{"format": 1, "steps": {"d1": {"a": {"seconds": {}, "device": null}}}}',
        '{"format": 1, "steps": {"d1": {"a": {"seconds": {"writing": 1}, "device": {"name": "abacus"}}}}}',
        '{"format": 1, "steps": {"d1": {"a": null}}}',
    ],
)
def test_a_damaged_file_means_that_nothing_is_known(tmp_path: Path, content: str) -> None:
    (tmp_path / "seconds.json").write_text(content, encoding="utf-8")

    assert KeptSeconds(tmp_path).by_step() == {}
    KeptSeconds(tmp_path).keep("m1", "a", StepSeconds({"training": 3.0}))
    assert KeptSeconds(tmp_path).by_step()["m1"].total == 3.0


def test_a_deleted_run_stays_deleted(tmp_path: Path) -> None:
    KeptSeconds(tmp_path / "gone").keep("m1", "a", StepSeconds({"training": 3.0}))

    assert not (tmp_path / "gone").exists()


def test_the_line_has_only_parts_that_show_and_they_add_up() -> None:
    parts = {"writing": 47.9, "grading": 6.7, "loading": 3.8, "waiting": 2.1, "reading": 0.1}
    line = seconds_line("d1", StepSeconds(parts, DeviceSeconds("GPU", 47.9, 60.6)))  # type: ignore[arg-type]

    assert line == ("d1: 61 s: 48 s writing, 7 s grading, 4 s loading, 2 s waiting; the GPU worked in 79 % of the time")
    assert seconds_line("eval", StepSeconds({"writing": 1.28, "reading": 0.04})) == "eval: 1.3 s: 1.3 s writing"
    assert seconds_line("eval", StepSeconds({"reading": 0.04})) == "eval: less than 0.1 s"


def test_rounded_parts_add_up_to_the_rounded_sum() -> None:
    parts = {"writing": 1.46, "grading": 1.47, "waiting": 1.48}

    assert list(rounded(parts, 1).values()) == pytest.approx([1.4, 1.5, 1.5])  # type: ignore[arg-type]
    assert list(rounded(parts, 0).values()) == [1, 1, 2]  # type: ignore[arg-type]


def used_gpu(monkeypatch: pytest.MonkeyPatch, *, is_used: bool = True) -> None:
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: is_used))
    monkeypatch.setattr(device_meter, "_torch", lambda: torch)


def test_the_share_of_a_gpu_is_the_mean_of_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    used_gpu(monkeypatch, is_used=False)
    readings, times = iter([0.5, 1.0]), iter([0.0, 8.0])
    meter = DeviceMeter(lambda: next(readings), now=lambda: next(times))
    meter.sample()  # before this process uses the GPU
    used_gpu(monkeypatch)
    meter.sample()
    meter.sample()

    assert meter.seconds() == DeviceSeconds("GPU", 4.0, 8.0)


def test_an_unknown_share_of_a_gpu_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    used_gpu(monkeypatch)
    unknown = DeviceMeter(lambda: None)
    few = DeviceMeter(lambda: 0.5)
    for meter in (unknown, few):
        meter.sample()
    unknown.sample()

    assert unknown.seconds() is None
    assert few.seconds() is None


def test_without_nvml_the_share_of_a_gpu_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_meter, "_LIBRARIES", ("libno-such-library.so",))
    properties = SimpleNamespace(uuid="1234")
    cuda = SimpleNamespace(current_device=lambda: 0, get_device_properties=lambda _: properties)
    monkeypatch.setattr(device_meter, "_torch", lambda: SimpleNamespace(cuda=cuda))

    assert device_meter.gpu_reader()() is None


class FakeNvml:
    """A library that knows one GPU, by its UUID or only by its number."""

    def __init__(self, *, knows_uuid: bool, devices: int = 1) -> None:
        self._knows_uuid, self._devices = knows_uuid, devices

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        handle._obj.value = 7
        return 0 if self._knows_uuid and uuid == b"GPU-12-34" else 6

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self._devices
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = 7
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        rates._obj.gpu = 64
        return 0 if handle.value == 7 else 2


@pytest.mark.parametrize(
    ("nvml", "share"),
    [
        (FakeNvml(knows_uuid=True, devices=8), 0.64),
        (FakeNvml(knows_uuid=False), 0.64),
        (FakeNvml(knows_uuid=False, devices=8), None),
        (SimpleNamespace(nvmlInit_v2=lambda: 0), None),
    ],
    ids=["by UUID", "the only one", "which of eight", "another library"],
)
def test_the_driver_says_how_busy_a_gpu_is(nvml: object, share: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: nvml)
    properties = SimpleNamespace(uuid="12-34")
    cuda = SimpleNamespace(
        current_device=lambda: 0, get_device_properties=lambda _: properties, is_initialized=lambda: True
    )
    monkeypatch.setattr(device_meter, "_torch", lambda: SimpleNamespace(cuda=cuda))

    assert device_meter.gpu_reader()() == share


def test_the_gpu_of_models_in_another_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    used_gpu(monkeypatch, is_used=False)
    monkeypatch.setattr("ctypes.CDLL", lambda name: FakeNvml(knows_uuid=True, devices=8))
    samples = []
    for gpu in (None, "12-34"):
        monkeypatch.setattr(device_meter, "MODELS", SimpleNamespace(gpu=gpu))
        meter = DeviceMeter()
        for _ in range(3):
            meter.sample()
        samples.append(meter.seconds())
    assert [seconds and seconds.device for seconds in samples] == ["CPU", "GPU"]
    assert samples[1] is not None
    assert samples[1].share == pytest.approx(0.64)


def test_the_share_of_a_cpu_is_cpu_time_by_wall_time_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    used_gpu(monkeypatch, is_used=False)
    cpu, times = iter([1.0, 7.0]), iter([0.0, 4.0])
    monkeypatch.setattr(device_meter, "cpu_seconds", lambda: next(cpu))
    monkeypatch.setattr(device_meter, "cores", lambda: 2)

    seconds = DeviceMeter(now=lambda: next(times)).seconds()

    assert seconds == DeviceSeconds("CPU", 3.0, 4.0)
    assert seconds is not None and seconds.share == 0.75


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    KeptSeconds(tmp_path).keep("d1", "a", StepSeconds({"writing": 1.23456}, DeviceSeconds("CPU", 0.5, 1.23456)))

    assert json.loads((tmp_path / "seconds.json").read_text(encoding="utf-8")) == {
        "format": 1,
        "steps": {
            "d1": {
                "a": {"seconds": {"writing": 1.235}, "device": {"name": "CPU", "worked": 0.5, "measured": 1.235}},
            }
        },
    }


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux shows the time of processes that work")
def test_the_time_of_a_child_that_still_works_counts() -> None:
    before = device_meter.cpu_seconds()
    loop = "import time; e = time.process_time() + 0.3\nwhile time.process_time() < e: pass\nprint(); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()

        assert device_meter.cpu_seconds() - before > 0.25
    finally:
        child.kill()
        child.wait()
        child.stdout.close()  # type: ignore[union-attr]
