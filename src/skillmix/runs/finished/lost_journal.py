"""Tell a journal that is gone from one that never was."""

import json
from collections.abc import Iterator
from pathlib import Path

from skillmix.errors import UserError
from skillmix.runs.finished.manifest import MANIFEST
from skillmix.runs.finished.step_records import FinishedSteps
from skillmix.runs.journal.journal import MAIN_FILE


def require_journal(run: Path, journal: Path, finished: FinishedSteps) -> None:
    """Refuse a journal that is gone: as an empty one, it would have all its calls made and paid again."""
    gone = [name for name in _noted_files(run, journal, finished) if not (journal / name).is_file()]
    if gone:
        raise UserError(
            f"{run} says that calls were made, but its journal is gone: there is no {journal / gone[0]}.",
            hint=f"Restore {journal} from a copy. To make and pay all calls again, delete {run} first.",
        )


def _noted_files(run: Path, journal: Path, finished: FinishedSteps) -> Iterator[str]:
    """The journal files that the other files of a run speak of."""
    yield from (str(name) for name, *_ in finished.journal if str(name).endswith(".sqlite"))
    if not (journal / MAIN_FILE).is_file() and _has_made_calls(run / MANIFEST):
        yield MAIN_FILE


def _has_made_calls(manifest: Path) -> bool:
    try:
        return any(entry.get("called") for entry in json.loads(manifest.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, TypeError):
        return False
