"""Replace a file or folder as a whole: the old one stays until the new one is complete; only our own is replaced."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

from filelock import FileLock, Timeout

from skillmix.errors import UserError
from skillmix.models.lineage_files import LINEAGE_FILE, is_dataset_folder

REPORT_MARK: Final = "skillmix-report"
REPORT_NOTE: Final = "This folder was made by `skillmix report`, and is replaced by the next one.\n"
_WORKSHOP_MARK: Final = "skillmix-workshop"
_WORKSHOP_NOTE: Final = "A skillmix command writes here what will take the place of the folder beside it.\n"
_LOCK: Final = "lock"
_BY_THE_SYSTEM: Final = (".DS_Store",)
"""Files that a file manager leaves in any folder."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of folder that a command writes."""

    name: str
    is_marked: Callable[[Path], bool]
    """Whether the content of a folder shows that it is of this kind."""
    files: tuple[str, ...] = ()
    """Patterns of all files that belong in it."""


def _is_report(folder: Path) -> bool:
    try:
        return (folder / REPORT_MARK).read_text(encoding="utf-8") == REPORT_NOTE
    except (OSError, ValueError):
        return False


DATASET: Final = Kind(
    "a data set",
    is_dataset_folder,
    ("train.jsonl", "validation.jsonl", "rows.parquet", "README.md", "dataset_info.json", LINEAGE_FILE),
)
_SCRIPTS: Final = ("page.js", "data.js", "search.js", "cards.js", "texts.js", "compare.js")
_PAGES: Final = ("index.html", "texts.html", "compare.html", "report.css", "texts.css", *_SCRIPTS, "experiments/*.yaml")
_TABLES: Final = ("tables/*.md", "tables/*.csv", "tables/*.json", "tables/*.tex")
_FIGURES: Final = ("figures/*.svg", "figures/*.png")
_STYLED: Final = tuple(f"{style}/figures/*.{ending}" for style in ("paper", "slide") for ending in ("pdf", "png"))
_PAPER: Final = ("paper/*.tex", "paper/scores.csv", "paper/scores.parquet", *_STYLED)
REPORT: Final = Kind("a report", _is_report, (REPORT_MARK, *_PAGES, *_TABLES, "data/*.js", *_FIGURES, *_PAPER))
MODEL: Final = Kind("a folder that may be replaced", lambda _: False)
"""A model is never replaced: it cost too much to make."""


def require_replaceable(folder: Path, kind: Kind) -> None:
    """Refuse a folder that is in use, or that holds a file which skillmix did not write."""
    target = folder.resolve()
    if Path.cwd().resolve().is_relative_to(target):
        raise UserError(f"{folder} is the current folder, or holds it.", hint="Name a folder of its own.")
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"{folder} is a file.", hint="Name a folder.")
    if not any(target.iterdir()):
        return
    if not kind.is_marked(target):
        raise UserError(
            f"{folder} is there, and is not {kind.name}.", hint="Nothing was changed. Name another folder, or move it."
        )
    known = (*kind.files, *_BY_THE_SYSTEM)
    inside = (path.relative_to(target).as_posix() for path in sorted(target.rglob("*")) if not _is_plain_folder(path))
    other = next((name for name in inside if not any(fnmatchcase(name, pattern) for pattern in known)), None)
    if other is not None:
        raise UserError(
            f"{folder} would be replaced, but {other} in it is not part of {kind.name}.",
            hint="Nothing was changed. Move that file, or name another folder.",
        )


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


@contextmanager
def replacing(folder: Path, kind: Kind) -> Iterator[Path]:
    """A path to write the new folder to; it takes the place of the old one if the block ends without an error.

    The new folder is written in a workshop beside the old one, under a name that nothing else has and under a lock. A
    workshop that a killed process left is removed by the next one for the same folder.
    """
    require_replaceable(folder, kind)
    target = folder.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_overs(target)
    workshop = Path(mkdtemp(prefix=_prefix(target), dir=target.parent))
    lock = FileLock(workshop / _LOCK)
    try:
        with lock:
            # The mark comes after the lock: a workshop with a mark and without a lock is left over.
            (workshop / _WORKSHOP_MARK).write_text(_WORKSHOP_NOTE, encoding="utf-8")
            yield workshop / "new"
            require_replaceable(folder, kind)  # writing may have taken hours
            if target.exists():
                target.rename(workshop / "old")
            (workshop / "new").rename(target)
    finally:
        _remove(workshop, target)


def _prefix(target: Path) -> str:
    return f".{target.name}.skillmix-"


def _remove(workshop: Path, target: Path) -> None:
    """Remove a workshop; a folder that was moved into it and not replaced goes back first."""
    old = workshop / "old"
    if old.exists() and not target.exists():
        old.rename(target)
    rmtree(workshop, ignore_errors=True)


def _remove_left_overs(target: Path) -> None:
    prefix = _prefix(target)
    for path in [path for path in target.parent.iterdir() if path.name.startswith(prefix)]:
        with suppress(OSError, ValueError, Timeout):
            if (path / _WORKSHOP_MARK).read_text(encoding="utf-8") == _WORKSHOP_NOTE:
                with FileLock(path / _LOCK, timeout=0):
                    _remove(path, target)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a training run that is done; whatever else lies in the folder stays."""
    for path in folder.glob("step-*"):
        if (path / "state.json").is_file() or path.name.endswith(".partial"):
            rmtree(path, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()


def write_whole(file: Path, content: str) -> None:
    """Replace a file in one step: a crash leaves the old one."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(content, encoding="utf-8")
    partial.replace(file)
