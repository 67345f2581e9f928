"""The folder of a training on a machine that does not see the driver's disk; this module does not import Ray."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from skillmix.cluster.folder_files import FolderFiles, found_folder, kept_folder
from skillmix.errors import UserError
from skillmix.models.bundled import cache_folder

CHECKPOINTS: Final = "checkpoints"
NOTE: Final = "state.json"
"""The file of a complete checkpoint that is written last."""
_HELD: Final = "held"


class GivenFolder(NamedTuple):
    """Files that a training begins with."""

    name: str
    """Where they go, in the folder of the training."""
    files: FolderFiles


def own_folder(key: str) -> Path:
    """The folder of a training on this machine."""
    return cache_folder() / "training" / key


def set_up(folder: Path, given: Sequence[GivenFolder]) -> None:
    """A new folder with the files that the driver has sent."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, files in given:
            place, target = found_folder(files), folder / name
            target.mkdir(parents=True, exist_ok=True)
            for file in files.files:
                shutil.copyfile(place / file.name, target / file.name)
            if place == kept_folder(files):  # nobody else needs it
                shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"The folder {folder} cannot be written: {error.strerror or error}.",
            hint="Make room on this machine, or set SKILLMIX_CACHE to another folder before `ray start`.",
        ) from None


def last_checkpoint(folder: Path) -> str | None:
    """The name of the last complete checkpoint."""
    names = [note.parent.name for note in (folder / CHECKPOINTS).glob(f"step-*/{NOTE}")]
    return max((name for name in names if name.removeprefix("step-").isdecimal()), default=None)


def hold(folder: Path, checkpoint: str) -> dict[str, int]:
    """Keep the files of a checkpoint, which training may remove, until `release`; their names and sizes."""
    held = folder / _HELD / checkpoint
    shutil.rmtree(held.parent, ignore_errors=True)
    held.mkdir(parents=True)
    try:
        for file in sorted((folder / CHECKPOINTS / checkpoint).iterdir()):
            _link_or_copy(file, held / file.name)
    except OSError:  # a later checkpoint has replaced it
        return {}
    return sizes_in(folder, f"{_HELD}/{checkpoint}")


def _link_or_copy(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except FileNotFoundError:
        raise
    except OSError:  # the file system has no hard links
        shutil.copyfile(file, target)


def release(folder: Path) -> None:
    """Keep no checkpoint any more."""
    shutil.rmtree(folder / _HELD, ignore_errors=True)


def sizes_in(folder: Path, name: str) -> dict[str, int]:
    """The files directly in a folder of the training, by their names in the training, with their sizes."""
    place = folder / name
    files = sorted(place.iterdir()) if place.is_dir() else []
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files if file.is_file()}


def read_part(folder: Path, name: str, offset: int, size: int) -> bytes:
    """A part of a file."""
    with (folder / name).open("rb") as file:
        file.seek(offset)
        return file.read(size)
