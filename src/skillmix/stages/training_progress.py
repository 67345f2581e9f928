"""How training goes: a line on standard error, and the curve of what training.jsonl holds."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from skillmix.engine.run_folder import write_whole
from skillmix.render.loss_curve import Point, loss_curve
from skillmix.stages.progress import duration
from skillmix.stages.train import is_first_rank

_EVERY: Final = 5.0


class TrainingProgress:
    """One line written over on a terminal, a line now and then elsewhere."""

    def __init__(self, step: str, steps: int) -> None:
        self._step, self._steps = step, steps
        self._is_terminal = sys.stderr.isatty()
        self._shown = 0.0

    def report(self, row: Mapping[str, Any]) -> None:
        """Show a row of training.jsonl, if it is time."""
        now = time.monotonic()
        is_last = row["step"] + 1 >= self._steps
        if not is_first_rank() or (now - self._shown < (0.2 if self._is_terminal else _EVERY) and not is_last):
            return
        self._shown = now
        line = self._line(row)
        sys.stderr.write(f"\r{line}\x1b[K" if self._is_terminal else f"{line}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Leave the line."""
        if self._is_terminal and self._shown:
            sys.stderr.write("\n")

    def _line(self, row: Mapping[str, Any]) -> str:
        parts = [f"{self._step}: step {row['step'] + 1} of {self._steps}", f"loss {row['answers']:.4f}"]
        if row.get("replay") is not None:
            parts.append(f"replay {row['replay']:.4f}")
        if row.get("validation") is not None:
            parts.append(f"validation {row['validation']:.4f}")
        parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
        if row.get("utilisation") is not None:
            parts.append(f"{100 * row['utilisation']:.0f} % utilisation")
        parts.append(duration(row["seconds_left"]))
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
