"""A run's folder: its experiment as resolved, its manifest, its journal; everything else there can be remade."""

import json
import os
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from skillmix import __version__
from skillmix.calls import checked_name
from skillmix.errors import UserError
from skillmix.runs.journal.journal import MAIN_FILE, JournalReader, JournalWriter
from skillmix.runs.journal.locking import locked


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name is its folder's."""
        return self.path.resolve().name

    @property
    def journal(self) -> Path:
        """The folder of journal files."""
        return self.path / "journal"

    def read(self) -> JournalReader:
        """Open the journal for reading."""
        return JournalReader(self.journal)

    def write(self) -> JournalWriter:
        """Open the journal for writing; only one process can."""
        return JournalWriter(self.journal)

    @property
    def has_journal(self) -> bool:
        """Whether any call was ever stored."""
        return (self.journal / MAIN_FILE).is_file()

    def locked(self) -> AbstractContextManager[None]:
        """Keep other writers out without opening the journal."""
        return locked(self.journal / MAIN_FILE)

    @property
    def derived(self) -> Path:
        """What was worked out from the journal; it may be deleted."""
        return self.path / "derived.sqlite"

    def step(self, name: str) -> Path:
        """The folder of what one step made."""
        return self.path / name

    @property
    def experiment_file(self) -> Path:
        """The experiment as it was resolved when the run was made."""
        return self.path / "experiment.yaml"

    def note_invocation(self, facts: Mapping[str, object]) -> None:
        """Add an entry to the manifest: what ran, with which versions."""
        file = self.path / "manifest.json"
        try:
            entries = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        except ValueError:
            entries = None
        if not isinstance(entries, list):
            file.rename(file.with_name("manifest.json.damaged"))
            entries = []
        at = datetime.now(UTC).isoformat(timespec="seconds")
        entries.append({"at": at, "skillmix": __version__, "python": platform.python_version(), **facts})
        write_whole(file, json.dumps(entries, ensure_ascii=False, indent=1) + "\n")


def new_run(name: str) -> RunFolder:
    """The folder of a run by name (under `runs/`) or by path."""
    path = Path(name)
    checked_name(path.name, "run")
    return RunFolder(path if _is_path(name) else Path("runs") / path)


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name


def find_run(name: str) -> RunFolder:
    """An existing run by name or by path."""
    places = [Path(name)] if _is_path(name) else [Path("runs") / name, Path(name)]
    for path in places:
        if (path / "experiment.yaml").exists() or (path / "journal").is_dir():
            return RunFolder(path)
    known = sorted(p.parent.name for p in Path("runs").glob("*/experiment.yaml"))
    raise UserError(
        f"There is no run {name!r}.",
        hint=f"Runs here: {', '.join(known)}." if known else "There are no runs here yet.",
    )


def write_whole(file: Path, content: str) -> None:
    """All or nothing: a crash leaves the old file."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(content, encoding="utf-8")
    partial.replace(file)
