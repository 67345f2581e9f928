"""A command whose trainings lose a rank once: the program of test_ray_local.py.

python -m tests.cluster.killed_rank run EXPERIMENT.yaml --on ray

With OWN_DISKS in the environment, the machines train in their own folders, as if they did not see the driver's.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skillmix.cluster import rank_group
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
        drivers: Path = payload[0].folder
        note = drivers / "killed"

        def killed(self: TrainingOrder, number: int) -> Sequence[Example]:
            if number == KILLED_BEFORE and not note.exists():
                while not (drivers / "checkpoints" / "step-00000004" / "state.json").is_file():
                    time.sleep(0.02)
                note.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return _step(self, number)

        TrainingOrder.step = killed  # type: ignore[method-assign]
    _train_rank(report, base, folder, payload)


if __name__ == "__main__":
    from skillmix.commands import main
    from tests.cluster import killed_rank

    if "OWN_DISKS" in os.environ:
        rank_group.shares_disk = lambda *_: False
    rank_job.train_rank = killed_rank.train_and_die
    sys.exit(main(sys.argv[1:]))
