"""The log of a training run, `training.jsonl`: one row for each optimizer step.

`training.svg` and the report plot the same points, which `logged_losses` returns.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import ceil
from pathlib import Path
from typing import Any, Final

from skillmix.files import write_whole
from skillmix.runs.run import Run

TRAINING_LOG: Final = "training.jsonl"
MOST_POINTS: Final = 600
_LARGEST: Final = 1e300
LOSSES: Final = ("answers", "validation", "replay")
"""The losses in a log: on answers, on held-back data and on replayed text."""
Row = Mapping[str, Any]
Point = tuple[int, float]
"""An optimizer step, counted from 1, and a loss."""


@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """The losses that a train step logged, each as a series of points (step, value)."""

    name: str
    series: Mapping[str, Sequence[Point]]


def run_curves(run: Run) -> list[TrainingCurve]:
    """Return the losses of every train step in a run."""
    files = sorted(run.path.glob(f"*/{TRAINING_LOG}"))
    curves = [TrainingCurve(file.parent.name, logged_losses(file)) for file in files]
    return [curve for curve in curves if curve.series]


def draw_losses(folder: Path) -> None:
    """Draw training.svg from training.jsonl."""
    write_whole(folder / "training.svg", loss_curve(logged_losses(folder / TRAINING_LOG)))


def logged_losses(file: Path) -> dict[str, list[Point]]:
    """Return each loss in a log by step, counted from 1; a series longer than `MOST_POINTS` is averaged over neighbors.

    A resumed training run logs some steps again, in which case the later row counts.
    """
    losses: dict[str, dict[int, float]] = {}
    for _, row in _lines_and_rows(file):
        for name in LOSSES:
            loss = row.get(name)
            # A training run that diverged logs values that cannot be drawn.
            if isinstance(loss, int | float) and not isinstance(loss, bool) and abs(loss) < _LARGEST:
                losses.setdefault(name, {})[row["step"] + 1] = float(loss)
    means: dict[str, list[Point]] = {}
    for name in (name for name in LOSSES if name in losses):
        points = sorted(losses[name].items())
        size = max(1, ceil(len(points) / MOST_POINTS))
        groups = [points[start : start + size] for start in range(0, len(points), size)]
        means[name] = [(group[-1][0], sum(loss for _, loss in group) / len(group)) for group in groups]
    return means


def append_row(file: Path, row: Row) -> None:
    """Append a row to a log."""
    with file.open("a", encoding="utf-8") as log:
        log.write(json.dumps(row) + "\n")


def cut_log(file: Path, *, before: int) -> None:
    """Remove the rows from a step onward, because a resumed training run repeats these steps."""
    lines = [line for line, row in _lines_and_rows(file) if row["step"] < before] if file.is_file() else []
    partial = file.with_name(f"{file.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    partial.replace(file)


def _lines_and_rows(file: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows in a log that have a step, each with its line; a kill may have truncated the last line."""
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield line, row


def loss_curve(curves: Mapping[str, Sequence[Point]]) -> str:
    """Draw the losses by step as SVG, with a line for each name."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=name, linestyle="--" if name == "validation" else "-")
    axes.set(xlabel="optimizer step", ylabel="loss (nats a token)", ylim=(0, None))
    if curves:
        axes.legend()
    picture = StringIO()
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "skillmix"}
    ):  # keep text as text, and make the file reproducible
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()
