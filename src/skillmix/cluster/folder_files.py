"""Folders that every machine of a cluster needs, with the hashes of their files; this module does not import Ray.

A node uses a folder at the path that it has on the driver's machine, if the node sees the same files there. Else the
driver sends the files, and the node keeps them in its cache under the hash of the folder.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from filelock import FileLock, Timeout

from skillmix.errors import UserError
from skillmix.experiment.plan import Settings
from skillmix.hashing import digest
from skillmix.models.bundled import cache_folder
from skillmix.models.checkpoints import Checkpoint, checkpoint_of, content_hash_of
from skillmix.models.specs import parse_spec, provider_of, uses_code

_PARTS_OF_MODELS: Final = (".json", ".safetensors", ".jinja", ".txt", ".model")
"""Endings of the files that a checkpoint is loaded from; code and weights in other formats are never loaded."""


class FileFacts(NamedTuple):
    """One file of a folder."""

    name: str
    size: int
    hash: str


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """A folder on the driver's machine, with the files that a node needs of it."""

    path: str
    files: tuple[FileFacts, ...]
    is_seen: bool = True
    """Whether a node may use the files at the same path, if it sees them there."""

    @property
    def id(self) -> str:
        """A hash of the names and contents."""
        return digest("folder", [list(file) for file in self.files]).hex()

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The folders of a model: its base, then its adapters."""

    folders: tuple[FolderFiles, ...]

    def here(self) -> Checkpoint:
        """The model on this machine; an error if the driver has not sent a folder."""
        base, *adapters = (found_folder(folder) for folder in self.folders)
        return Checkpoint(base, tuple(adapters))


def files_of(checkpoint: Checkpoint) -> CheckpointFiles:
    """The files of a model on this machine."""
    return CheckpointFiles(
        tuple(folder_files(folder, _parts_of_model(folder)) for folder in (checkpoint.base, *checkpoint.adapters))
    )


def _parts_of_model(folder: Path) -> list[str]:
    return [file.name for file in sorted(folder.iterdir()) if file.suffix in _PARTS_OF_MODELS and file.is_file()]


def folder_files(folder: Path, names: Iterable[str], *, is_seen: bool = True) -> FolderFiles:
    """Some files of a folder with their hashes."""
    files = [folder / name for name in names]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        hashes = list(pool.map(content_hash_of, files))
    facts = (FileFacts(file.name, file.stat().st_size, hash_) for file, hash_ in zip(files, hashes, strict=True))
    return FolderFiles(str(folder.absolute()), tuple(facts), is_seen)


def model_files(models: Mapping[str, Settings]) -> dict[str, CheckpointFiles]:
    """The files of those models that load weights, by the names that tasks use; equal models are looked up once."""
    by_spec: dict[str, CheckpointFiles] = {}
    found = {}
    for name, settings in models.items():
        asked = str(settings.asked)
        if provider_of(asked).has_checkpoint:
            if asked not in by_spec:
                by_spec[asked] = files_of(checkpoint_of(parse_spec(asked)))
            found[name] = by_spec[asked]
    return found


def loads_weights(models: Mapping[str, Settings]) -> bool:
    """Whether one of these models loads weights into the process that asks it."""
    return any(provider_of(str(settings.asked)).is_in_process for settings in models.values())


def settings_here(models: Mapping[str, Settings], files: Mapping[str, CheckpointFiles]) -> dict[str, Settings]:
    """The settings of models with the paths that their files have on this machine."""
    return {
        name: settings.model_copy(update={"model": _spec_here(settings.model, files[name])})
        if name in files
        else settings
        for name, settings in models.items()
    }


def _spec_here(model: str, files: CheckpointFiles) -> str:
    code = "rules:" if uses_code(model) else ""
    return f"{code}local:{spec_name(files.here())}"


def spec_name(checkpoint: Checkpoint) -> str:
    """What follows `local:` in the spec of a checkpoint."""
    return "+".join(str(folder) for folder in (checkpoint.base, *checkpoint.adapters))


def found_folder(folder: FolderFiles) -> Path:
    """Where a folder is on this machine; an error if the driver has not sent it."""
    place = place_of(folder)
    if place is None:
        raise UserError(f"{folder.path} is not on this machine.", hint="Run the same command again to send it.")
    return place


def place_of(folder: FolderFiles) -> Path | None:
    """Where a folder is on this machine: at its own path or in the cache; None if it must be sent.

    A folder at its own path with other contents is an error, because a user who put it there expects it to be used.
    """
    path = Path(folder.path)
    other = [file.name for file in folder.files if folder.is_seen and _state(path, file) == "other"]
    if other:
        raise UserError(
            f"{folder.path} on this machine differs from the driver's: {', '.join(other[:3])}.",
            hint="Copy the driver's folder to this machine, or remove the folder here; the driver then sends its own.",
        )
    for place in (*([path] if folder.is_seen else []), kept_folder(folder)):
        if folder.files and all(_state(place, file) == "same" for file in folder.files):
            return place
    return None


def _state(folder: Path, file: FileFacts) -> str:
    """Whether a folder has the same file, another one, or none that can be read."""
    path = folder / file.name
    try:
        if path.stat().st_size != file.size:
            return "other"
        return "same" if content_hash_of(path) == file.hash else "other"
    except OSError:
        return "none"


def kept_folder(folder: FolderFiles) -> Path:
    """Where this machine keeps a folder that was sent."""
    return cache_folder() / "sent" / folder.id


class NodeStore:
    """Takes the folders that the driver sends, on one machine. Another process on it may be taking the same folder."""

    def __init__(self) -> None:
        self._locks: dict[str, FileLock] = {}

    def wanted(self, folder: FolderFiles) -> tuple[FileFacts, ...] | None:
        """The files that the driver must send; none if the folder is here, None if another process is taking it."""
        if place_of(folder) is not None:
            return ()
        try:
            if not self._is_locked(folder):
                return None
            if place_of(folder) is not None:  # the other process has kept it meanwhile
                self._unlock(folder)
                return ()
            _make_room(folder)
        except OSError as error:
            self._unlock(folder)
            raise _cannot_keep(folder, error) from None
        except UserError:
            self._unlock(folder)
            raise
        return folder.files

    def _is_locked(self, folder: FolderFiles) -> bool:
        if folder.id in self._locks:
            return True
        kept = kept_folder(folder)
        kept.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(kept.with_name(f"{kept.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        self._locks[folder.id] = lock
        return True

    def _unlock(self, folder: FolderFiles) -> None:
        lock = self._locks.pop(folder.id, None)
        if lock is not None:
            lock.release(force=True)

    def store(self, folder: FolderFiles, name: str, offset: int, data: bytes) -> None:
        """Store a part of a file."""
        try:
            with (_partial(folder) / Path(name).name).open("r+b") as file:
                file.seek(offset)
                file.write(data)
        except OSError as error:
            raise _cannot_keep(folder, error) from None

    def drop(self, folder: FolderFiles) -> None:
        """Give up a folder that did not come whole, so that another process can take it."""
        if folder.id in self._locks:
            shutil.rmtree(_partial(folder), ignore_errors=True)
            self._unlock(folder)

    def keep(self, folder: FolderFiles) -> None:
        """Check the files that were sent, and keep them under their final name."""
        partial, kept = _partial(folder), kept_folder(folder)
        wrong = [file.name for file in folder.files if _state(partial, file) != "same"]
        if wrong:
            raise UserError(
                f"{folder.path} came here with other contents: {', '.join(wrong[:3])}.",
                hint="The files may have changed meanwhile. Run the same command again.",
            )
        try:
            shutil.rmtree(kept, ignore_errors=True)  # damaged, or it would have been used
            partial.rename(kept)
        except OSError as error:
            raise _cannot_keep(folder, error) from None
        self._unlock(folder)


def _make_room(folder: FolderFiles) -> None:
    """Empty files for a folder that is about to come."""
    partial = _partial(folder)
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    _require_space(partial.parent, folder)
    partial.mkdir()
    for file in folder.files:
        (partial / file.name).touch()


def _partial(folder: FolderFiles) -> Path:
    kept = kept_folder(folder)
    return kept.with_name(f".{kept.name}")


def _require_space(place: Path, folder: FolderFiles) -> None:
    free = shutil.disk_usage(place).free
    if free < folder.bytes:
        raise UserError(
            f"{folder.path} has {folder.bytes / 1e9:.1f} GB, and the cache in {place} has {free / 1e9:.1f} GB free.",
            hint="Make room on this machine, or set SKILLMIX_CACHE to a folder with more before `ray start`.",
        )


def _cannot_keep(folder: FolderFiles, error: OSError) -> UserError:
    return UserError(
        f"{folder.path} cannot be kept in {kept_folder(folder).parent}: {error.strerror or error}.",
        hint="Make room on this machine, or set SKILLMIX_CACHE to another folder before `ray start`.",
    )
