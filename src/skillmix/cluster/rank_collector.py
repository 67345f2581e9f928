"""Bring the checkpoints and the model of a training from machines with their own disks to the driver's folder."""

import json
import os
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from skillmix.cluster.folder_files import folder_files
from skillmix.cluster.rank_folder import CHECKPOINTS, NOTE, GivenFolder
from skillmix.errors import UserError
from skillmix.runs.folder_replacement import MODEL, replacing
from skillmix.runs.leases.rank_work import RankWork

_PART: Final = 8 << 20
_AHEAD: Final = 4
"""Parts under way at once."""
_LOGS: Final = ("training.jsonl", "training.svg")


class MachineFolder(NamedTuple):
    """The folder of a training on one machine, and an actor there."""

    actor: Any
    folder: Path


def given_folders(work: RankWork) -> list[GivenFolder]:
    """What a training goes on from: the driver's checkpoints and its log."""
    given = []
    for note in sorted((work.folder / CHECKPOINTS).glob(f"step-*/{NOTE}")):
        if not note.parent.name.removeprefix("step-").isdecimal():
            continue
        names = sorted(file.name for file in note.parent.iterdir())
        files = folder_files(note.parent, names, is_seen=False)
        given.append(GivenFolder(f"{CHECKPOINTS}/{note.parent.name}", files))
    logs = [name for name in _LOGS if (work.folder / name).is_file()]
    if logs:
        given.append(GivenFolder(".", folder_files(work.folder, logs, is_seen=False)))
    return given


class Collector:
    """Brings files from the machines of a training; that of the first rank comes first."""

    def __init__(self, ray: Any, work: RankWork, machines: Sequence[MachineFolder]) -> None:
        self._ray, self._work, self._machines = ray, work, machines

    def collect(self) -> None:
        """Bring the last checkpoint if the driver lacks it, with the parts that each machine has."""
        first = self._machines[0]
        last = self._ray.get(first.actor.last_checkpoint.remote(first.folder))
        target = self._work.folder / CHECKPOINTS / str(last)
        if last is None or target.exists():
            return
        partial = target.with_name(f"{last}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for machine in self._machines:
            sizes = self._ray.get(machine.actor.hold.remote(machine.folder, last))
            self._fetch(machine, sizes, partial)
            self._ray.get(machine.actor.release.remote(machine.folder))
        note = _note(partial)
        if note is None or not all((partial / f"part-{n}.safetensors").is_file() for n in range(note["parts"])):
            return  # training has gone on meanwhile; the next checkpoint is brought
        self._fetch_logs()
        partial.rename(target)
        _sync(target.parent)
        _prune(target.parent, {last, f"step-{note.get('best_steps') or 0:08d}"})

    def finish(self) -> None:
        """Bring the model and the log, and remove what the machines have."""
        first = self._machines[0]
        sizes = self._ray.get(first.actor.sizes_in.remote(first.folder, "model"))
        if "model/skillmix.json" not in sizes:
            raise UserError(
                f"{self._work.step}: the trained model is not in {first.folder} any more.",
                hint="Run the same command again; training goes on from its last checkpoint.",
            )
        with replacing(self._work.model, MODEL) as new:
            new.mkdir(parents=True, exist_ok=True)
            self._fetch(first, sizes, new)
            self._fetch_logs()
        shutil.rmtree(self._work.folder / CHECKPOINTS, ignore_errors=True)
        self._ray.get([machine.actor.remove.remote(machine.folder) for machine in self._machines])

    def _fetch_logs(self) -> None:
        first = self._machines[0]
        sizes = self._ray.get(first.actor.sizes_in.remote(first.folder, "."))
        self._fetch(first, {name: size for name, size in sizes.items() if name in _LOGS}, self._work.folder)

    def _fetch(self, machine: MachineFolder, sizes: Mapping[str, int], target: Path) -> None:
        for name, size in sizes.items():
            new = target / f".{Path(name).name}.new"
            offsets = deque(range(0, size, _PART))
            parts: deque[Any] = deque()
            try:
                with new.open("wb") as file:
                    while offsets or parts:
                        while offsets and len(parts) < _AHEAD:
                            parts.append(machine.actor.read_part.remote(machine.folder, name, offsets.popleft(), _PART))
                        file.write(self._ray.get(parts.popleft()))
                    file.flush()
                    os.fsync(file.fileno())
                new.replace(target / Path(name).name)
            except OSError as error:
                new.unlink(missing_ok=True)
                raise UserError(
                    f"{target} cannot be written: {error.strerror or error}.",
                    hint="Make room on this disk, and run the same command again.",
                ) from None


def _note(checkpoint: Path) -> dict[str, Any] | None:
    try:
        note = json.loads((checkpoint / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) and isinstance(note.get("parts"), int) else None


def _prune(checkpoints: Path, kept: set[str]) -> None:
    for folder in checkpoints.glob("step-*"):
        if folder.name not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
