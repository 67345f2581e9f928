"""What a tracker can do, and the part of a run that it shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4


class Tracker(Protocol):
    """What every tracker can do."""

    def begin(self, facts: Mapping[str, str]) -> None:
        """Open the curves, or go on with them after an interruption."""
        ...

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Add a point to each named curve."""
        ...

    def end(self) -> None:
        """Write what is not written yet."""
        ...


@dataclass(frozen=True, slots=True)
class TrackedPart:
    """A part of a run whose curves belong together: a training, or the scores."""

    run: str
    name: str
    folder: Path

    def key(self, tracker: str) -> str:
        """The id of the part at a tracker: the same after an interruption, another if the folder was deleted."""
        file = self.folder / f"{tracker}-{self.name}.id"
        if not file.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            file.write_text(uuid4().hex, encoding="utf-8")
        return file.read_text(encoding="utf-8").strip()
