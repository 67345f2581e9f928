"""The train steps of an experiment, each of which leaves a checkpoint in the run's folder."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.catalog.json import json_object
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, load_experiment
from skillmix.experiment.train_step import TrainStep
from skillmix.models.lineage_files import read_model_lineage
from skillmix.models.local.model import calm_threads
from skillmix.runs.budget import LimitedBudget
from skillmix.runs.calling import StepContext
from skillmix.runs.folders import MODEL, require_replaceable
from skillmix.runs.planned_work import planned_work
from skillmix.runs.progress.progress import NO_PROGRESS, RunProgress
from skillmix.runs.run import Run, new_run, write_whole
from skillmix.steps.before_run import check_journal, check_plan, was_other
from skillmix.training.data.replay import state_of
from skillmix.training.job import Job, chosen_steps, is_first_rank, job_of
from skillmix.training.sources import read_lessons


@dataclass(frozen=True, slots=True)
class Trained:
    """A train step's checkpoint."""

    step: str
    folder: Path
    was_there: bool
    """Whether an earlier call had made it."""


def train_steps(path: Path, *, changes: Sequence[str] = (), only: str | None = None) -> list[Trained]:
    """The train steps of an experiment file, without its calls; the same command under torchrun."""
    experiment = load_experiment(path, changes=changes)
    run = new_run(experiment.name)
    chosen = chosen_steps(experiment, only)
    if not is_first_rank():
        with RunProgress(()) as progress:
            return [train_step(experiment, step, run, progress) for step in chosen]
    catalog = load_catalog(experiment.catalog)
    check_plan(experiment, catalog, chosen, run)
    trained: list[Trained] = []
    with (
        RunProgress(planned_work(experiment, chosen, run)) as progress,
        _locked(run, experiment, catalog, chosen),
        run.continued(experiment, catalog, has_made=lambda: bool(trained)),
    ):
        for step in chosen:
            trained.append(train_step(experiment, step, run, progress))
    return trained


@contextmanager
def _locked(run: Run, experiment: Experiment, catalog: Catalog, steps: Sequence[TrainStep]) -> Iterator[None]:
    """Keep other writers out, and find what contradicts the journal of the run, if it has one."""
    with run.write() if run.has_journal else run.locked() as journal:
        run.checked_document(experiment, catalog)
        if journal is not None:
            purse = LimitedBudget({}, spent=(0, 0.0), max_calls=None, max_usd=None)
            check_journal(StepContext(experiment, catalog, run, journal, purse, NO_PROGRESS), steps)
        yield


def train_step(experiment: Experiment, step: TrainStep, run: Run, progress: RunProgress = NO_PROGRESS) -> Trained:
    """Train, or find that it is done; killed in the middle, the next call goes on from the last checkpoint."""
    job = job_of(experiment, step, run)
    identity = job.identity()
    made = read_model_lineage(job.model_folder)
    if made is not None:
        if made.get("identity") != identity:
            raise was_other(job.model_folder)
        progress.end(step.name, f"{step.name}: found in {job.model_folder}")
        return Trained(step.name, job.model_folder, was_there=True)
    require_replaceable(job.model_folder, MODEL)
    _require_packages(step)
    if is_first_rank():
        _begin(job, identity)
    calm_threads()
    from skillmix.training.job_run import run_training

    run_training(job, read_lessons(job.sources, validation_share=step.validation_share), progress)
    return Trained(step.name, job.model_folder, was_there=False)


def _require_packages(step: TrainStep) -> None:
    wanted = ["torch", "transformers", "safetensors", *(["peft"] if step.lora else [])]
    missing = [package for package in wanted if find_spec(package) is None]
    if missing:
        raise UserError(f"Training needs {', '.join(missing)}.", hint="pip install 'skillmix[train]'")


def _begin(job: Job, identity: str) -> None:
    """Note what a run is about, so that it is never resumed as another."""
    note = job.folder / "begun.json"
    job.folder.mkdir(parents=True, exist_ok=True)
    sources = [Path(source).expanduser() for source in job.step.replay.sources] if job.step.replay else []
    told = {"identity": identity, "replay": state_of(sources) if sources else []}
    if note.is_file():
        hint = f"Remove {job.folder} to train anew."
        begun = json_object(note.read_bytes(), source=str(note), hint=hint)
        if begun.get("identity") != identity:
            raise was_other(job.folder)
        if begun.get("replay") != told["replay"]:
            raise UserError(
                f"{job.folder} was begun with other files to replay.",
                hint="Put them back as they were, or remove the folder to train anew.",
            )
        return
    write_whole(note, json.dumps({**told, "base": job.base, "recipe": job.step.recipe()}, indent=1) + "\n")
