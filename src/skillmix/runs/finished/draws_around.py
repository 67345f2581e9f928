"""The combinations that the draws of evaluations skip, in `around.json` of a run.

They decide the cells of the run just as experiment.yaml does, so a damaged file is an error. Only the process that
holds the run's lock writes the file.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from skillmix.errors import UserError
from skillmix.runs.folder_replacement import write_whole


class DrawsAround:
    """The skipped combinations of one run."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._by_step: dict[str, frozenset[str]] | None = None

    @property
    def by_step(self) -> Mapping[str, frozenset[str]]:
        """By step, the combinations that its draws skip because one of its students was trained on them."""
        if self._by_step is None:
            self._by_step = _read(self.file)
        return self._by_step

    def store(self, step: str, combinations: frozenset[str]) -> None:
        """Store the combinations that the draws of a step skip."""
        if combinations == self.by_step.get(step, frozenset()):
            return
        others = {name: ids for name, ids in self.by_step.items() if name != step}
        by_step = {**others, step: combinations} if combinations else others
        content = {name: sorted(ids) for name, ids in sorted(by_step.items())}
        write_whole(self.file, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
        self._by_step = by_step

    def reload(self) -> None:
        """Forget what was read, because another process may have written since."""
        self._by_step = None


def _read(file: Path) -> dict[str, frozenset[str]]:
    """The content of the file; a missing file means that no draw skips anything."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not all(_are_names(ids) for ids in document.values()):
        raise UserError(
            f"{file} is damaged.",
            hint="Restore it from a copy. Without it, evaluations are drawn anew and may need more calls.",
        )
    return {step: frozenset(ids) for step, ids in document.items()}


def _are_names(ids: object) -> bool:
    return isinstance(ids, list) and all(isinstance(name, str) for name in ids)
