"""Train steps: each writes a checkpoint into its folder of the run."""

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

from skillmix.catalog.catalog import Catalog
from skillmix.errors import UserError
from skillmix.experiment.costs import training_hours, training_tokens
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.step_base import student_name
from skillmix.experiment.train_step import DEFAULT_STEPS, TrainStep
from skillmix.models.checkpoints import Checkpoint
from skillmix.models.lineage_files import LINEAGE_FILE, read_model_file
from skillmix.models.local.model import MODELS, free_device_memory
from skillmix.models.providers import LOCAL_PACKAGES
from skillmix.models.servers.managed import stop_servers
from skillmix.render import listed
from skillmix.runs.calling import StepContext
from skillmix.runs.folder_replacement import MODEL, require_replaceable
from skillmix.runs.progress import NO_PROGRESS, Bound, RunProgress, Work
from skillmix.runs.rows import StepRecord
from skillmix.runs.run import Run
from skillmix.runs.students import model_folder, settings_for
from skillmix.steps.estimates import CallEstimate, EstimateBasis
from skillmix.steps.step_kind import Inputs, RunResult, StepInputs, StepKind, Trained
from skillmix.training.data.replay import state_of
from skillmix.training.job import Job, check_base, check_data, check_replay, is_first_rank, job_of, read_lessons

_REPLAY = "its replay texts"


class TrainKind(StepKind[TrainStep]):
    """Fine-tune a model on data sets."""

    def check(self, step: TrainStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Refuse missing weights, data and replay texts, and a folder that is no model or was begun differently."""
        check_data(step)
        folder = model_folder(run, step.name)
        file = read_model_file(folder, strict=True)
        if file is None:
            require_replaceable(folder, MODEL)
            _require_packages(step)
            check_replay(step)
            stored = _begun(step, run)
        else:
            recipe = file.document.get("recipe")
            stored = {f"its {name}": value for name, value in recipe.items()} if isinstance(recipe, dict) else {}
            stored |= {"its seed": file.document["seed"]} if "seed" in file.document else {}
        now = _of_recipe(step, seed=experiment.seed if step.seed is None else step.seed)
        if changed := _differences(stored, now):
            raise _was_other(run.step(step.name), changed)
        check_base(step, experiment, run)

    def estimates(self, step: TrainStep, basis: EstimateBasis) -> list[CallEstimate]:
        """No calls, but GPU hours."""
        model = settings_for(basis.experiment, student_name(step.base)).model
        tokens = training_tokens(step, conversations=_conversations(step, basis.experiment))
        hours = training_hours(step, model, tokens)
        return [CallEstimate(step.name, step.base, 0, tokens, 0, 0.0, hours, role="training")]

    def work(self, step: TrainStep, experiment: Experiment, catalog: Catalog, run: Run) -> Work:
        """The optimiser steps; their number is unknown if epochs of an unknown number of conversations decide it."""
        is_over = (model_folder(run, step.name) / LINEAGE_FILE).is_file()
        total: int | None = step.steps or DEFAULT_STEPS
        if step.epochs is not None:
            rows = [_rows(name, experiment) for name in step.data]
            known = [count for count in rows if count is not None]
            total = ceil(step.epochs * sum(known) / step.batch) if len(known) == len(rows) else None
        bound: Bound = "at most" if step.patience is not None else "about"
        return Work(step.name, "training", total, bound, is_over=is_over)

    def inputs(self, step: TrainStep, source: StepInputs) -> Inputs | None:
        """The recipe, the seed, the weights of the base and the conversations of the data."""
        try:
            return _of_job(job_of(source.experiment, step, source.run))
        except UserError:
            return None  # the step itself reports what is missing

    def made(self, step: TrainStep, run: Run, result: RunResult) -> dict[str, Any]:
        """The identity of the model."""
        file = read_model_file(model_folder(run, step.name), strict=True)
        return {"identity": file.identity if file else None}

    def take(self, step: TrainStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """The model, if its folder still holds it."""
        folder = model_folder(run, step.name)
        file = read_model_file(folder, strict=True)
        if file is None or file.identity != made["identity"]:
            return None
        result.trained[step.name] = Trained(step.name, folder, was_there=True)
        return f"found in {folder}"

    def run(self, step: TrainStep, context: StepContext, result: RunResult) -> bool:
        """Train the model from the start or from its last checkpoint."""
        if context.cluster is not None:
            context.cluster.end_workers()  # this process trains, and may need their GPU
        result.trained[step.name] = train_step(context.experiment, step, context.run, context.progress)
        context.progress.end(step.name)
        return True


def _conversations(step: TrainStep, experiment: Experiment) -> int | None:
    """Conversations that the dataset steps will write; None if a file or a joined data set decides the number."""
    planned = {other.name: other.planned_texts for other in experiment.steps}
    known = [number for name in step.data if (number := planned.get(name)) is not None]
    return sum(known) if len(known) == len(step.data) else None


def _rows(name: str, experiment: Experiment) -> int | None:
    """Conversations in a file, or that a dataset step will write; None if not known yet."""
    if "/" not in name:
        return next((step.planned_texts for step in experiment.steps if step.name == name), None)
    path = Path(name).expanduser()
    file = path / "train.jsonl" if path.is_dir() else path
    if not file.is_file():
        return None
    try:
        with file.open("rb") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return None


def _of_recipe(step: TrainStep, *, seed: int) -> Inputs:
    return {"its seed": seed, **{f"its {name}": value for name, value in step.decisive().items()}}


def _of_job(job: Job) -> Inputs:
    data = {f"the data {source.name}": source.hash for source in job.sources}
    return {**_of_recipe(job.step, seed=job.seed), "its base": job.base_hash(), **data}


def _begun(step: TrainStep, run: Run) -> Inputs:
    """What a training that is not finished began with; nothing if there is none, or if its folder was removed."""
    record = run.state.steps.get(step.name)
    is_begun = record is not None and record.result is None and run.step(step.name).exists()
    return dict(record.inputs) if record is not None and is_begun else {}


def _differences(stored: Inputs, now: Inputs) -> list[str]:
    """The names of inputs that both have with other values; JSON has no tuples."""
    plain = json.loads(json.dumps(now))
    return [name for name in plain if name in stored and stored[name] != plain[name]]


def _was_other(folder: Path, changed: Sequence[str] = ()) -> UserError:
    names = f": {listed(changed)} changed" if changed else ""
    return UserError(
        f"{folder} is from other data, another base or another recipe{names}.",
        hint="Remove the folder to train anew, or give the step another name.",
    )


def train_step(
    experiment: Experiment,
    step: TrainStep,
    run: Run,
    progress: RunProgress = NO_PROGRESS,
) -> Trained:
    """Train a step unless its model exists; after a kill, continue from the last checkpoint."""
    job = job_of(experiment, step, run)
    identity = job.identity()
    file = read_model_file(job.model_folder, strict=True)
    if file is not None:
        if file.identity != identity:
            raise _was_other(job.model_folder)
        progress.end(step.name, f"{step.name}: found in {job.model_folder}")
        return Trained(step.name, job.model_folder, was_there=True)
    require_replaceable(job.model_folder, MODEL)
    _require_packages(step)
    if is_first_rank():
        _begin(job, run)
    lessons = read_lessons(job.sources, validation_share=step.validation_share)
    from skillmix.training.job_run import run_training

    stop_servers()
    MODELS.drop()
    try:
        run_training(job, lessons, progress)
    finally:
        free_device_memory()  # models that write may work in another process
    return Trained(step.name, job.model_folder, was_there=False)


def check_trainable(step: TrainStep, checkpoint: Checkpoint, run: Run) -> None:
    """Refuse a base whose answers cannot be masked or whose layers cannot be trained; the weights are not read.

    Nothing is checked if the model exists, or if this machine lacks the weights or a package.
    """
    is_trained = read_model_file(model_folder(run, step.name)) is not None
    if is_trained or not checkpoint.bytes() or _missing_packages(step):
        return
    from skillmix.training.job_run import check_student

    check_student(checkpoint, step)


def packages_for_training(step: TrainStep) -> list[str]:
    """The packages that a step needs on the machine that trains."""
    return [*LOCAL_PACKAGES, *(["peft"] if step.lora else [])]


def _missing_packages(step: TrainStep) -> list[str]:
    """The packages that this machine lacks for a step."""
    return [package for package in packages_for_training(step) if find_spec(package) is None]


def _require_packages(step: TrainStep) -> None:
    if missing := _missing_packages(step):
        raise UserError(f"Training needs {', '.join(missing)}.", hint="pip install 'skillmix[train]'")


def _begin(job: Job, run: Run) -> None:
    """Record what a training began with, and refuse to resume one that began with something else."""
    sources = [Path(source).expanduser() for source in job.step.replay.sources] if job.step.replay else []
    inputs = {**_of_job(job), _REPLAY: state_of(sources) if sources else []}
    changed = _differences(_begun(job.step, run), inputs)
    if changed == [_REPLAY]:
        raise UserError(
            f"{job.folder} was begun with other files to replay.",
            hint="Restore the former files, or remove the folder to train anew.",
        )
    if changed:
        raise _was_other(job.folder, changed)
    job.folder.mkdir(parents=True, exist_ok=True)
    run.record_step(job.step.name, StepRecord(inputs, None))
