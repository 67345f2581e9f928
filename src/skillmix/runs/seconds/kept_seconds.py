"""The seconds of a run's steps, in `seconds.json` of the run.

Each time a step runs, it adds an entry, so that a step which was killed and resumed has two. The figures are notes:
they decide nothing, a missing or damaged file means that nothing is known, and a failed write is harmless. Only the
process that holds the run's lock writes the file.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skillmix.runs.folder_replacement import write_whole
from skillmix.runs.seconds.device_meter import DeviceSeconds
from skillmix.runs.seconds.step_clock import PARTS, Part, total

SECONDS_FILE: Final = "seconds.json"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """The wall seconds of a step by part, and how much of them its device worked."""

    parts: Mapping[Part, float]
    device: DeviceSeconds | None = None
    """None if the step's models are served elsewhere, or if the share was not measured."""

    @property
    def total(self) -> float:
        """The wall seconds of the step."""
        return total(self.parts)


class KeptSeconds:
    """The figures of one run."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / SECONDS_FILE

    def keep(self, step: str, entry: str, seconds: StepSeconds) -> None:
        """Store the figures of one run of a step under a key of its own; an entry with the same key is replaced."""
        with suppress(OSError):
            if self._file.parent.is_dir():  # the user may have deleted the run
                steps = self._entries()
                steps.setdefault(step, {})[entry] = _as_json(seconds)
                write_whole(self._file, json.dumps({"format": _FORMAT, "steps": steps}, indent=1) + "\n")

    def by_step(self) -> dict[str, StepSeconds]:
        """The figures of each step, added up over its entries; steps without figures are missing."""
        entries = {step: [_read(entry) for entry in found.values()] for step, found in self._entries().items()}
        known = {step: [one for one in found if one is not None and one.parts] for step, found in entries.items()}
        return {step: added(found) for step, found in known.items() if found}

    def _entries(self) -> dict[str, dict[str, Any]]:
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
            steps = document["steps"] if document["format"] == _FORMAT else {}
            return {step: dict(found) for step, found in steps.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}


def added(all_seconds: Sequence[StepSeconds]) -> StepSeconds:
    """The sum of figures; the device's only if all that have a device have the same one."""
    parts: dict[Part, float] = {}
    for seconds in all_seconds:
        for part, value in seconds.parts.items():
            parts[part] = parts.get(part, 0.0) + value
    measured = [seconds.device for seconds in all_seconds if seconds.device is not None]
    device = None
    if measured and len({one.device for one in measured}) == 1:
        worked, wall = sum(one.worked for one in measured), sum(one.measured for one in measured)
        device = DeviceSeconds(measured[0].device, worked, wall)
    return StepSeconds({part: parts[part] for part in PARTS if part in parts}, device)


def _as_json(seconds: StepSeconds) -> dict[str, Any]:
    parts = {part: round(value, 3) for part, value in seconds.parts.items() if round(value, 3)}
    device = seconds.device
    if device is None:
        return {"seconds": parts, "device": None}
    figures = {"name": device.device, "worked": round(device.worked, 3), "measured": round(device.measured, 3)}
    return {"seconds": parts, "device": figures}


def _read(entry: Any) -> StepSeconds | None:
    """An entry as it was stored; None if somebody damaged it."""
    try:
        parts = {part: _seconds(entry["seconds"][part]) for part in PARTS if part in entry["seconds"]}
        device = entry["device"]
        if device is None:
            return StepSeconds(parts)
        if device["name"] not in ("GPU", "CPU"):
            return None
        figures = DeviceSeconds(device["name"], _seconds(device["worked"]), _seconds(device["measured"]))
        return StepSeconds(parts, figures)
    except (LookupError, TypeError, ValueError):
        return None


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError(value)
    return seconds
