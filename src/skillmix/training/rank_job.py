"""A train step whose ranks are processes of a cluster; the driver looks everything up and shows the progress."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from skillmix.models.checkpoints import Checkpoint
from skillmix.models.local.importing import before_torch
from skillmix.runs.leases.driving import CallWorkers
from skillmix.runs.leases.rank_work import RankEvent, RankWork
from skillmix.runs.progress import Bound, RunProgress, say
from skillmix.training.job import Job, Lessons


class _Payload(NamedTuple):
    """What every rank needs besides the base."""

    job: Job
    lessons: Lessons


def train_on_ranks(job: Job, lessons: Lessons, workers: CallWorkers, progress: RunProgress) -> bool:
    """Train on the ranks of a cluster; False if the cluster has no GPU and the step does not ask for ranks."""

    def show(event: RankEvent) -> None:
        name, arguments, keywords = event
        if name == "say":
            say(*arguments)
        elif name in ("expect", "begin", "update", "end"):
            getattr(progress, name)(*arguments, **keywords)

    if job.checkpoint is None:  # a new model is too small for ranks
        return False
    replayed = job.step.replay.sources if job.step.replay else []
    work = RankWork(
        step=job.step.name,
        train=train_rank,
        payload=_Payload(replace(job, known_lineage=job.lineage(steps=0)), lessons),
        base=job.checkpoint,
        folder=job.folder.absolute(),
        model=job.model_folder.absolute(),
        ranks=job.step.ranks,
        on_event=show,
        steps_saved=lambda: steps_saved(job.folder),
        paths=tuple(str(Path(source).expanduser().absolute()) for source in replayed),
    )
    return workers.run_ranks(work)


def steps_saved(folder: Path) -> int:
    """Steps of the last complete checkpoint in a training's folder; 0 without one."""
    names = [note.parent.name.removeprefix("step-") for note in (folder / "checkpoints").glob("step-*/state.json")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def train_rank(report: Callable[[RankEvent], None], base: Checkpoint, folder: Path, payload: Any) -> None:
    """Train as one rank of a group that the environment describes, as torchrun does."""
    before_torch()
    from skillmix.training.job_run import run_training

    job, lessons = payload
    here = replace(job, checkpoint=base, folder=folder, model_folder=folder / "model")
    run_training(here, lessons, ReportedProgress(report))


class ReportedProgress(RunProgress):
    """Reports what the first rank would show to the driver, which shows it."""

    def __init__(self, report: Callable[[RankEvent], None]) -> None:
        super().__init__()
        self._report = report

    def expect(self, name: str, total: int, *, bound: Bound | None = None) -> None:
        """Report a corrected total."""
        self._report(("expect", (name, total), {"bound": bound}))

    def begin(self, name: str) -> None:
        """Report the begin of a step."""
        self._report(("begin", (name,), {}))

    def update(self, name: str, *, done: int, made: int, detail: str = "") -> None:
        """Report how far a step is."""
        self._report(("update", (name,), {"done": done, "made": made, "detail": detail}))

    def end(self, name: str, line: str | None = None) -> None:
        """Report the end of a step."""
        self._report(("end", (name, line), {}))
