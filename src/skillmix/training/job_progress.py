"""How training goes: its part of the run's progress, and the curve of what training.jsonl holds."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skillmix.runs.progress.progress import RunProgress
from skillmix.runs.run import write_whole
from skillmix.training.job import is_first_rank
from skillmix.training.loss_curve import Point, loss_curve


class TrainingProgress:
    """Tells the progress of a run about every step of a training."""

    def __init__(self, step: str, steps: int, progress: RunProgress) -> None:
        self._step, self._steps, self._progress = step, steps, progress
        self._made = 0
        self._last = ""
        if is_first_rank():
            progress.expect(step, steps)
            progress.begin(step)

    def report(self, row: Mapping[str, Any]) -> None:
        """Note a row of training.jsonl."""
        if is_first_rank():
            self._made += 1
            detail = _detail(row)
            self._last = f"{self._step}: step {row['step'] + 1} of {self._steps}, {detail}"
            self._progress.update(self._step, done=row["step"] + 1, made=self._made, detail=detail)

    def close(self) -> None:
        """Say how it ended."""
        if is_first_rank():
            self._progress.end(self._step, self._last or None)


def _detail(row: Mapping[str, Any]) -> str:
    parts = [f"loss {row['answers']:.4f}"]
    if row.get("replay") is not None:
        parts.append(f"replay {row['replay']:.4f}")
    if row.get("validation") is not None:
        parts.append(f"validation {row['validation']:.4f}")
    parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
    if row.get("utilisation") is not None:
        parts.append(f"{100 * row['utilisation']:.0f} % utilisation")
    return ", ".join(parts)


def draw_losses(folder: Path) -> None:
    """Draw training.svg from training.jsonl."""
    rows = _rows(folder / "training.jsonl")
    curves: dict[str, list[Point]] = {
        name: [(row["step"] + 1, row[key]) for row in rows if row.get(key) is not None]
        for name, key in (("answers", "answers"), ("replay", "replay"), ("validation", "validation"))
    }
    write_whole(folder / "training.svg", loss_curve({name: points for name, points in curves.items() if points}))


def _rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file; a resumed run writes some steps again, and the later row counts."""
    by_step: dict[int, dict[str, Any]] = {}
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):  # cut by a kill
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                by_step[row["step"]] = {**by_step.get(row["step"], {}), **row}
    return [by_step[step] for step in sorted(by_step)]
