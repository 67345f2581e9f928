"""A run's folder: its experiment as resolved, its manifest, its journal; everything else there can be remade."""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from skillmix import __version__
from skillmix.core.calls import checked_name
from skillmix.core.errors import UserError
from skillmix.engine.journal import JournalReader, JournalWriter


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

    def experiment(self) -> dict[str, object]:
        """The experiment as it was resolved when the run was made."""
        try:
            document = yaml.safe_load((self.path / "experiment.yaml").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{self.path} has no experiment.yaml.", hint="Check the run's name.") from None
        except (yaml.YAMLError, UnicodeDecodeError):
            document = None
        if not isinstance(document, dict):
            raise UserError(f"{self.path / 'experiment.yaml'} is damaged.", hint="Restore it from a copy.")
        return document

    def begin(self, experiment: Mapping[str, object]) -> None:
        """Make the folder, or check that it belongs to this experiment."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / "experiment.yaml"
        if file.exists():
            stored = self.experiment()
            changed = sorted(k for k in experiment.keys() | stored.keys() if experiment.get(k) != stored.get(k))
            if changed:
                raise UserError(
                    f"The run {self.path} exists with another {', '.join(changed)}.",
                    hint="Use another run name, or set it back.",
                )
            return
        _write_whole(file, yaml.safe_dump(dict(experiment), sort_keys=False, allow_unicode=True))

    def note_invocation(self, facts: Mapping[str, object]) -> None:
        """Add an entry to the manifest: what ran, with which versions."""
        file = self.path / "manifest.json"
        try:
            entries = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        except ValueError:
            entries = []
        at = datetime.now(UTC).isoformat(timespec="seconds")
        entries.append({"at": at, "skillmix": __version__, "python": platform.python_version(), **facts})
        _write_whole(file, json.dumps(entries, ensure_ascii=False, indent=1) + "\n")


def new_run(name: str) -> RunFolder:
    """The folder of a run by name (under `runs/`) or by path."""
    path = Path(name)
    checked_name(path.name, "run")
    return RunFolder(path if len(path.parts) > 1 else Path("runs") / path)


def find_run(name: str) -> RunFolder:
    """An existing run by name or by path."""
    for path in (Path(name), Path("runs") / name):
        if (path / "experiment.yaml").exists() or (path / "journal").is_dir():
            return RunFolder(path)
    known = sorted(p.parent.name for p in Path("runs").glob("*/experiment.yaml"))
    raise UserError(
        f"There is no run {name!r}.",
        hint=f"Runs here: {', '.join(known)}." if known else "There are no runs here yet.",
    )


def _write_whole(file: Path, content: str) -> None:
    """All or nothing: a crash leaves the old file."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(content, encoding="utf-8")
    partial.replace(file)
