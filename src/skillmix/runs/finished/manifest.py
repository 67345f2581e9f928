"""What a run records about the invocations that made it: versions, machine and prompts, in `manifest.json`.

Every invocation adds an entry. Runs from before a fact was recorded do not have it, and readers say "unknown".
"""

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from skillmix import __version__
from skillmix.experiment.experiment import Experiment
from skillmix.prompts.prompt_set import load_prompts
from skillmix.runs.folder_replacement import write_whole

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Invocations:
    """The facts of all invocations of a run; each list holds every different value once, the oldest first."""

    began: str | None = None
    """When the first invocation was noted, in UTC."""
    versions: tuple[str, ...] = ()
    """Versions of skillmix and of Python."""
    machines: tuple[str, ...] = ()
    prompts: Mapping[str, str] | None = None
    """The content hash of each prompt set; None if it was not recorded."""


def add_entry(file: Path, facts: Mapping[str, object]) -> None:
    """Add an entry to a manifest; a damaged manifest is kept under another name."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    except ValueError:
        entries = None
    if not isinstance(entries, list):
        file.rename(file.with_name(f"{file.name}.damaged"))
        entries = []
    at = datetime.now(UTC).isoformat(timespec="seconds")
    entries.append({"at": at, "skillmix": __version__, "python": platform.python_version(), **facts})
    write_whole(file, json.dumps(entries, ensure_ascii=False, indent=1) + "\n")


def invocation_facts(experiment: Experiment) -> dict[str, object]:
    """The facts that an invocation adds to the manifest: the machine, and the hashes of the prompt sets."""
    used = dict.fromkeys([experiment.prompts, *(s.prompts for s in experiment.students.values() if s.prompts)])
    return {"machine": machine_in_words(), "prompts": {name: load_prompts(name).content_hash() for name in used}}


def machine_in_words() -> str:
    """The processor, its cores and the GPUs that this process uses; no name that tells whose machine it is."""
    parts = [
        processor_name(),
        f"{os.cpu_count() or 1} cores",
        *_gpus(),
        f"{platform.system()} {platform.machine()}",
    ]
    return ", ".join(parts)


def processor_name(facts: Path = Path("/proc/cpuinfo")) -> str:
    """The name of the processor."""
    with suppress(OSError):
        for line in facts.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """The GPUs, if this process has loaded torch and uses them; loading torch for this note would take seconds."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    names = [str(cuda.get_device_name(number)) for number in range(cuda.device_count())]
    return [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]


def read_invocations(run: Path) -> Invocations:
    """The facts in a run's manifest; nothing is known if it is missing or damaged."""
    try:
        entries = json.loads((run / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Invocations()
    listed = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    # An invocation that found everything finished says nothing about how the run was made.
    made = [entry for number, entry in enumerate(listed) if number == 0 or entry.get("called") != 0]
    prompts: dict[str, str] = {}
    for entry in made:
        stored = entry.get("prompts")
        prompts |= {str(name): str(address) for name, address in stored.items()} if isinstance(stored, dict) else {}
    return Invocations(
        began=next((str(entry["at"]) for entry in made if "at" in entry), None),
        versions=_different(
            f"skillmix {e['skillmix']}, Python {e['python']}" for e in made if {"skillmix", "python"} <= e.keys()
        ),
        machines=_different(str(entry["machine"]) for entry in made if "machine" in entry),
        prompts=prompts or None,
    )


def _different(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
