"""The losses in a `training.jsonl`, prepared for drawing: `training.svg` and the report show the same points."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path
from typing import Final

from skillmix.runs.run import Run

Point = tuple[int, float]
TRAINING_LOG: Final = "training.jsonl"
MOST_POINTS: Final = 600
LOSSES: Final = ("answers", "validation", "replay")
"""The losses in a log: on answers, on data held back, on replayed text."""


@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """The losses that a train step logged: a series of (step, value) for each loss."""

    name: str
    series: Mapping[str, Sequence[Point]]


def run_curves(run: Run) -> list[TrainingCurve]:
    """The losses of every training of a run."""
    files = sorted(run.path.glob(f"*/{TRAINING_LOG}"))
    curves = [TrainingCurve(file.parent.name, logged_losses(file)) for file in files]
    return [curve for curve in curves if curve.series]


def logged_losses(file: Path) -> dict[str, list[Point]]:
    """Each loss that a log holds, by step from 1; a long series as means of neighbouring steps.

    A resumed training writes some steps again, and the later row counts.
    """
    found: dict[str, dict[int, float]] = {}
    for row in _rows(file):
        step = row.get("step")
        if isinstance(step, int):
            for name in LOSSES:
                loss = _number(row.get(name))
                if loss is not None:
                    found.setdefault(name, {})[step + 1] = loss
    return {name: mean_points(sorted(found[name].items())) for name in LOSSES if name in found}


def mean_points(points: Sequence[Point]) -> list[Point]:
    """At most `MOST_POINTS` points: each is the mean of neighbouring ones, at the last of their steps."""
    size = max(1, ceil(len(points) / MOST_POINTS))
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], sum(loss for _, loss in group) / len(group)) for group in groups]


def _rows(file: Path) -> Iterator[Mapping[str, object]]:
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # cut by a kill
            continue
        if isinstance(row, dict):
            yield row


def _number(value: object) -> float | None:
    """A loss that can be drawn; a training that diverged logs some that cannot."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None
