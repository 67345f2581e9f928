"""Measure one run of a step: keep its figures from time to time and at its end, and say them in a line."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final

from skillmix.errors import UserError
from skillmix.render import percent
from skillmix.runs.progress.terminal import say
from skillmix.runs.run import Run
from skillmix.runs.seconds.device_meter import DeviceMeter
from skillmix.runs.seconds.kept_seconds import KeptSeconds, StepSeconds
from skillmix.runs.seconds.step_clock import Part, StepClock

_SAMPLE_EVERY_S: Final = 0.5
_KEEP_EVERY_S: Final = 30.0
"""Seconds between two stored states of a step that goes on; a killed step loses at most these."""


class StepMeter:
    """Measures one run of a step; `device` is None for a step whose models are served elsewhere."""

    def __init__(self, run: Run, step: str, clock: StepClock, device: DeviceMeter | None) -> None:
        self._kept = KeptSeconds(run.path)
        self._step, self._clock, self._device = step, clock, device
        self._key = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to sample the device and to store the figures from time to time, in a thread."""
        self._thread = threading.Thread(target=self._watch, name="skillmix-seconds", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def seconds(self) -> StepSeconds:
        """The figures until now."""
        return StepSeconds(self._clock.seconds(), None if self._device is None else self._device.seconds())

    def keep(self) -> None:
        """Store the figures until now."""
        self._kept.keep(self._step, self._key, self.seconds())

    def _watch(self) -> None:
        kept = time.monotonic()
        while not self._is_over.wait(_KEEP_EVERY_S if self._device is None else _SAMPLE_EVERY_S):
            if self._device is not None:
                self._device.sample()
            if time.monotonic() - kept >= _KEEP_EVERY_S:
                kept = time.monotonic()
                self.keep()


@contextmanager
def metered_step(run: Run, step: str, *, is_here: bool) -> Iterator[StepClock]:
    """Measure a step, keep its figures even if it raises an error, and say them when it has ended.

    `is_here` tells whether a model of the step works in this process. The caller holds the run's lock.
    """
    clock = StepClock()
    meter = StepMeter(run, step, clock, DeviceMeter() if is_here else None)
    meter.start()
    try:
        yield clock
    finally:
        meter.stop()
        meter.keep()
    say(seconds_line(step, meter.seconds()))


@contextmanager
def metered_last_step(run: Run, step: str) -> Iterator[StepClock]:
    """Measure a step that runs without the run's lock and without models; its figures are kept if the lock is free."""
    clock = StepClock()
    meter = StepMeter(run, step, clock, None)
    yield clock
    with suppress(UserError), run.locked():
        meter.keep()
    say(seconds_line(step, meter.seconds()))


def shown_seconds(run: Run) -> dict[str, StepSeconds]:
    """The figures of the run's steps in the order of the experiment.

    Steps that read the whole run are left out: a report cannot show its own time, and must not change when it is
    written again.
    """
    known = KeptSeconds(run.path).by_step()
    names = [step.name for step in run.experiment.steps if not step.reads_whole_run]
    return {name: known[name] for name in names if name in known}


def seconds_line(step: str, seconds: StepSeconds) -> str:
    """The line that ends a step.

    >>> seconds_line("d1", StepSeconds({"writing": 48.4, "grading": 6.3, "waiting": 3.2, "loading": 3.1}))
    'd1: 61 s: 49 s writing, 6 s grading, 3 s waiting, 3 s loading'
    """
    digits = 0 if seconds.total >= _LONG else 1
    parts = ", ".join(f"{value:.{digits}f} s {part}" for part, value in rounded(seconds.parts, digits).items() if value)
    line = f"{step}: {seconds.total:.{digits}f} s: {parts}" if parts else f"{step}: less than 0.1 s"
    if seconds.device is None:
        return line
    return f"{line}; the {seconds.device.device} worked in {percent(seconds.device.share)} of the time"


_LONG: Final = 20.0
"""Seconds from which on a line shows whole seconds."""


def rounded(parts: Mapping[Part, float], digits: int) -> dict[Part, float]:
    """The parts, rounded so that they still add up to the rounded sum: those that lose most are rounded up."""
    unit = 10.0**-digits
    floors = {part: int(value / unit) for part, value in parts.items()}
    missing = round(sum(parts.values()) / unit) - sum(floors.values())
    by_loss = sorted(parts, key=lambda part: floors[part] - parts[part] / unit)
    for part in by_loss[: max(0, missing)]:
        floors[part] += 1
    return {part: count * unit for part, count in floors.items()}
