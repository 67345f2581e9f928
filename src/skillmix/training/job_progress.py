"""How training goes: its part of the run's progress, and the curve of what training.jsonl holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skillmix.runs.progress.progress import RunProgress
from skillmix.runs.run import write_whole
from skillmix.training.job import is_first_rank
from skillmix.training.log import TRAINING_LOG, logged_losses
from skillmix.training.loss_curve import loss_curve


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
    write_whole(folder / "training.svg", loss_curve(logged_losses(folder / TRAINING_LOG)))
