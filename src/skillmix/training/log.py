"""The log of a training run, `training.jsonl`: one row for each optimizer step.

`training.svg` and the report show the same points from the log.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
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
    """Return each loss in a log by step, counted from 1; a series above `MOST_POINTS` is averaged over neighbors.

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


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 360, 64, 44, 16, 120
_COLORS: Final = {"answers": "#0b62a4", "replay": "#b35c00", "validation": "#1a7f37"}


def loss_curve(curves: Mapping[str, Sequence[Point]]) -> str:
    """Draw the losses by step, with a line for each name."""
    points = [point for curve in curves.values() for point in curve]
    last = max((step for step, _ in points), default=1)
    highest = max((loss for _, loss in points), default=1.0)
    highest = highest if highest > 0 else 1.0
    unit = 10.0 ** floor(log10(highest / 4))
    distance = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit * 5 >= highest)
    ticks = [round(distance * number, 10) for number in range(ceil(highest / distance) + 1)]
    right, base = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(step: int) -> float:
        return _LEFT + (right - _LEFT) * (step - 1) / max(1, last - 1)

    def y(loss: float) -> float:
        return base - (base - _TOP) * loss / ticks[-1]

    parts = []
    for tick in ticks:
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts += [
        f'<text x="{x(step):.1f}" y="{base + 18}" text-anchor="middle">{step}</text>'
        for step in sorted({1, (1 + last) // 2, last})
    ]
    parts += [
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">optimizer step</text>',
        f'<text transform="translate(16 {base / 2}) rotate(-90)" text-anchor="middle">loss (nats a token)</text>',
    ]
    for number, (name, curve) in enumerate(curves.items()):
        color = _COLORS.get(name, "#555")
        corners = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in curve)
        dashes = ' stroke-dasharray="5 3"' if name == "validation" else ""
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{color}" stroke-width="1.6"{dashes}/>')
        place = f'x="{right + 12}" y="{_TOP + 16 + 20 * number}"'
        parts.append(f'<text {place} fill="{color}">{escape(name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="13">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
