"""The records of finished steps, in `finished.json` of a run: what each step made, and what it depended on.

The next run takes a step from its record if nothing that the step depended on has changed. A record is never needed: a
missing or damaged file means that every step looks through the journal again, which makes no call twice. Only the
process that holds the run's lock writes the file.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

from skillmix.experiment.step_base import Step
from skillmix.hashing import short_id
from skillmix.runs.folder_replacement import write_whole

_FORMAT: Final = 2
FileState = list[list[Any]]
"""Name, size and modification time of files."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that ended with everything done."""

    depends_on: Mapping[str, Any]
    """Everything that decides what the step makes: a name in words, and a setting or a hash."""
    made: Mapping[str, Any]
    """What the step made."""
    seconds: float = 0.0
    """Wall seconds, added up over all times that the step ended; 0 in records of older versions."""

    def changes(self, depends_on: Mapping[str, Any]) -> list[str]:
        """The names of dependencies that differ now; those that came or went count only if no other differs."""
        both = self.depends_on.keys() & depends_on.keys()
        changed = [name for name in depends_on if name in both and self.depends_on[name] != depends_on[name]]
        return changed or sorted(self.depends_on.keys() ^ depends_on.keys())


class FinishedSteps:
    """The records of one run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._document: dict[str, Any] | None = None

    @property
    def journal(self) -> FileState:
        """The state of the journal's files when the last writer that knew of these records closed them."""
        state: FileState = self._content["journal"]
        return state

    def note_journal(self, state: FileState) -> None:
        """Store the state of the journal's files."""
        if state != self.journal:
            self._content["journal"] = state
            self._save()

    def record(self, step: str) -> StepRecord | None:
        """The record of a step; None if the step never ended."""
        stored = self._content["steps"].get(step)
        return None if stored is None else StepRecord(stored["depends_on"], stored["made"], stored.get("seconds", 0.0))

    def keep(self, step: str, record: StepRecord) -> None:
        """Store the record of a step that just ended."""
        stored = json.loads(json.dumps(asdict(record)))  # tuples become lists, as they are in a file that was read
        if self._content["steps"].get(step) != stored:
            self._content["steps"][step] = stored
            self._save()

    def seconds(self, steps: Iterable[Step]) -> dict[str, float]:
        """The wall seconds of steps that ended.

        Steps that read the whole run are left out: a report cannot show its own time, and must not change when it is
        written again.
        """
        known = {step.name: self.record(step.name) for step in steps if not step.reads_whole_run}
        return {name: record.seconds for name, record in known.items() if record is not None and record.seconds}

    def reload(self) -> None:
        """Forget what was read, because another process may have written since."""
        self._document = None

    def hash_of(self, key: str, files: Iterable[Path], compute: Callable[[], str]) -> str:
        """A hash of files under a key of their own; it is computed again only if a file changed."""
        state = file_state(files)
        known = self._content["files"].get(key)
        if known is None or known["state"] != state:
            known = self._content["files"][key] = {"state": state, "hash": compute()}
        return str(known["hash"])

    @property
    def _content(self) -> dict[str, Any]:
        if self._document is None:
            self._document = _read(self._file) or _empty()
        return self._document

    def _save(self) -> None:
        """Write the file; a failed write is harmless, because the next run looks through the journal again."""
        content = json.dumps({**self._content, "digest": _digest(self._content)}, ensure_ascii=False, indent=1)
        with suppress(OSError):
            write_whole(self._file, content + "\n")


def file_state(files: Iterable[Path]) -> FileState:
    """Name, size and modification time of those files that exist, in the order of their paths."""
    state = []
    for file in sorted(files):
        with suppress(OSError):
            facts = file.stat()
            if S_ISREG(facts.st_mode):
                state.append([file.name, facts.st_size, facts.st_mtime_ns])
    return state


def journal_state(folder: Path) -> FileState:
    """The state of a journal's files; an empty write-ahead log, which readers leave behind, does not count."""
    return [file for file in file_state([*folder.glob("*.sqlite"), *folder.glob("*.sqlite-wal")]) if file[1]]


def _empty() -> dict[str, Any]:
    return {"format": _FORMAT, "journal": [], "files": {}, "steps": {}}


def _read(file: Path) -> dict[str, Any] | None:
    """The content of the file; None if it is missing, damaged, edited or of another version."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        digest = document.pop("digest")
        is_whole = document["format"] == _FORMAT and digest == _digest(document) and _has_its_shape(document)
    except (OSError, ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return None
    return document if is_whole else None


def _has_its_shape(document: Mapping[str, Any]) -> bool:
    steps, files = document["steps"], document["files"]
    return (
        isinstance(document["journal"], list)
        and all(isinstance(record[name], dict) for record in steps.values() for name in ("depends_on", "made"))
        and all(isinstance(known["hash"], str) and known["state"] is not None for known in files.values())
    )


def _digest(content: Mapping[str, Any]) -> str:
    return short_id("finished steps", content)
