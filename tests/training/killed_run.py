"""Trains an experiment's steps and is killed before one of them: the program of test_checkpoints.py.

python tests/training/killed_run.py EXPERIMENT.yaml STEP
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from skillmix.steps.run import train_steps


def main(experiment: Path, last: int) -> None:
    """Train, and never come to the end."""
    from skillmix.training.data.batches import TrainingOrder

    step: Any = TrainingOrder.step

    def killed(self: TrainingOrder, number: int) -> Any:
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, number)

    TrainingOrder.step = killed  # type: ignore[method-assign]
    train_steps(experiment)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
