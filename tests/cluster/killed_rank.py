"""A command whose trainings lose a rank once: the program of test_ray_local.py.

python -m tests.cluster.killed_rank run EXPERIMENT.yaml --on ray
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skillmix.models.checkpoints import Checkpoint
from skillmix.training import rank_job
from skillmix.training.data.examples import Example
from skillmix.training.data.order import TrainingOrder

KILLED_BEFORE = 5
_train_rank = rank_job.train_rank
_step = TrainingOrder.step


def train_and_die(report: Any, base: Checkpoint, folder: Path, payload: Any) -> None:
    """Train as a rank; the first time, the second rank is killed in the middle."""
    if os.environ["RANK"] == "1":
        note = folder / "killed"

        def killed(self: TrainingOrder, number: int) -> Sequence[Example]:
            if number == KILLED_BEFORE and not note.exists():
                note.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return _step(self, number)

        TrainingOrder.step = killed  # type: ignore[method-assign]
    _train_rank(report, base, folder, payload)


if __name__ == "__main__":
    from skillmix.commands import main
    from tests.cluster import killed_rank

    rank_job.train_rank = killed_rank.train_and_die
    sys.exit(main(sys.argv[1:]))
