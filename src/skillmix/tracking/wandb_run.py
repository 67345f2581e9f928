"""Weights & Biases: online with WANDB_API_KEY in the environment, else in files that `wandb sync` uploads."""

import os
from collections.abc import Mapping
from typing import Any

from skillmix.tracking.tracker import TrackedPart


class WandbRun:
    """A run of Weights & Biases."""

    def __init__(self, part: TrackedPart) -> None:
        self._part = part
        self._run: Any = None

    def begin(self, facts: Mapping[str, str]) -> None:
        """Begin the run, or resume it; nothing but the facts and the values is sent."""
        import wandb

        has_key = bool(os.environ.get("WANDB_API_KEY"))
        self._part.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "skillmix"),
            name=f"{self._part.run}/{self._part.name}",
            group=self._part.run,
            id=self._part.key("wandb"),
            resume="allow",
            dir=str(self._part.folder),
            config=dict(facts),
            # Without a key, `online` would ask for one on the terminal.
            mode=os.environ.get("WANDB_MODE") or ("online" if has_key else "offline"),
            settings=wandb.Settings(console="off", disable_git=True, save_code=False, silent=True),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Log the values; the step is a value, because a resumed training logs some steps again."""
        self._run.log({**values, "step": step})

    def end(self) -> None:
        """Finish the run; the service process ends too, because it ignores a second run of the same id."""
        import wandb

        self._run.finish()
        wandb.teardown()
