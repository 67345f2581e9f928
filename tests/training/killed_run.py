"""Trains an experiment's steps and is killed before one of them: the program of test_checkpoints.py.

python tests/training/killed_run.py EXPERIMENT.yaml STEP
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from skillmix.steps.run import train_steps
from skillmix.training.data.examples import Example
from skillmix.training.data.order import TrainingOrder

_step = TrainingOrder.step


def _killed(self: TrainingOrder, number: int) -> Sequence[Example]:
    if number == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return _step(self, number)


if __name__ == "__main__":
    TrainingOrder.step = _killed  # type: ignore[method-assign]
    train_steps(Path(sys.argv[1]))
