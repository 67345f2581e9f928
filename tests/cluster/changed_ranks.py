"""A command whose trainings go another way: the program of test_ray_local.py.

python -m tests.cluster.changed_ranks [own-disks | shared-disk] [kill] run EXPERIMENT.yaml --on ray

With `own-disks` the machines train in their own folders, as if they did not see the driver's. With `kill` the second
rank of a training is killed once, after a checkpoint.
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
from skillmix.training.data.batches import TrainingOrder
from skillmix.training.data.examples import Example

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
    from tests.cluster import changed_ranks

    start = sys.argv.index("run")
    if "own-disks" in sys.argv[:start]:
        rank_group.shares_disk = lambda *_: False
    if "kill" in sys.argv[:start]:
        rank_job.train_rank = changed_ranks.train_and_die
    sys.exit(main(sys.argv[start:]))
