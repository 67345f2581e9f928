"""The log of a training run, `training.jsonl`: one row for each optimiser step.

`training.svg` and the report show the same points of it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path
from typing import Any, Final

from skillmix.runs.folder_replacement import write_whole
from skillmix.runs.run import Run
from skillmix.training.loss_curve import Point, loss_curve

TRAINING_LOG: Final = "training.jsonl"
MOST_POINTS: Final = 600
LOSSES: Final = ("answers", "validation", "replay")
"""The losses in a log: on answers, on data held back, on replayed text."""
Row = Mapping[str, Any]


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


def draw_losses(folder: Path) -> None:
    """Draw training.svg from training.jsonl."""
    write_whole(folder / "training.svg", loss_curve(logged_losses(folder / TRAINING_LOG)))


def logged_losses(file: Path) -> dict[str, list[Point]]:
    """Each loss in a log, by step from 1; a long series becomes means of neighbouring steps.

    A resumed training logs some steps again, and the later row counts.
    """
    losses: dict[str, dict[int, float]] = {}
    for _, row in _lines_and_rows(file):
        for name in LOSSES:
            loss = _number(row.get(name))
            if loss is not None:
                losses.setdefault(name, {})[row["step"] + 1] = loss
    return {name: mean_points(sorted(losses[name].items())) for name in LOSSES if name in losses}


def mean_points(points: Sequence[Point]) -> list[Point]:
    """At most `MOST_POINTS` points: each is the mean of neighbouring ones, at the last of their steps."""
    size = max(1, ceil(len(points) / MOST_POINTS))
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], sum(loss for _, loss in group) / len(group)) for group in groups]


def append_row(file: Path, row: Row) -> None:
    """Write a row at the end of a log."""
    with file.open("a", encoding="utf-8") as log:
        log.write(json.dumps(row) + "\n")


def cut_log(file: Path, *, before: int) -> None:
    """Remove the rows of a step and of all later ones, which a resumed training takes again."""
    lines = [line for line, row in _lines_and_rows(file) if row["step"] < before] if file.is_file() else []
    partial = file.with_name(f"{file.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    partial.replace(file)


def _lines_and_rows(file: Path) -> Iterator[tuple[str, Row]]:
    """The rows of a log that have a step, each with its line; a kill may have cut the last line."""
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield line, row


def _number(value: object) -> float | None:
    """A loss that can be drawn; a training that diverged logs some that cannot."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None
