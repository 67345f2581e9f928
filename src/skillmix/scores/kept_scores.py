"""Keep the scores of a run beside it, so that a finished run shows them again without reading its journal.

The file `derived-scores.json` of a run is a cache: it may be deleted at any time, and it counts only for the state of
the run that it was computed from.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from skillmix.hashing import short_id
from skillmix.runs.finished.reading_state import reading_state
from skillmix.runs.folder_replacement import write_whole
from skillmix.runs.run import Run
from skillmix.scores.cells import CellScore
from skillmix.scores.compare import Change
from skillmix.scores.format_effect import FormatEffect, ValidTexts
from skillmix.scores.scoring import ScoredRun, scored_run
from skillmix.scores.statistics.ratios import ShareDifference
from skillmix.scores.verdicts.judged import PairRow

_FIELDS = tuple(field.name for field in fields(ScoredRun))


def kept_scores(run: Run) -> ScoredRun:
    """The scores of a run: those that were kept for its present state, or new ones, which are kept from now on."""
    file = run.path / "derived-scores.json"
    state = reading_state(run)
    known = _read(file, state) if state is not None else None
    if known is not None:
        return known
    scored = scored_run(run)
    if state is not None and state == reading_state(run):  # no other process wrote to the run meanwhile
        _write(file, state, scored)
    return scored


def _write(file: Path, state: str, scored: ScoredRun) -> None:
    """Store scores; a failed write is harmless."""
    content = asdict(scored)
    with suppress(OSError, TypeError, ValueError):
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
        document = {"state": state, "digest": _digest(state, json.loads(text)), **content}
        write_whole(file, json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")


def _read(file: Path, state: str) -> ScoredRun | None:
    """The stored scores; None if there are none, if they are of another state, or if the file is damaged."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        content = {name: document[name] for name in _FIELDS}
        if document["state"] != state or document["digest"] != _digest(state, content):
            return None
        scores = [CellScore(**row) for row in content["scores"]]
        return ScoredRun(**{**content, "scores": scores, "changes": [_change(row) for row in content["changes"]]})
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _digest(state: str, content: Mapping[str, Any]) -> str:
    return short_id("scores", state, content)


def _change(row: Mapping[str, Any]) -> Change:
    own = {"trained": tuple(row["trained"]), "row": PairRow(**row["row"]), "format": _format(row["format"])}
    return Change(**{**row, **own})


def _format(row: Mapping[str, Any] | None) -> FormatEffect | None:
    if row is None:
        return None
    among = row["among_valid"]
    return FormatEffect(
        first=ValidTexts(**row["first"]),
        second=ValidTexts(**row["second"]),
        among_valid=None if among is None else ShareDifference(*among),
        role=row["role"],
    )
