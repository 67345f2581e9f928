"""`skillmix train`: from data sets and a model to a checkpoint that says what it was made of."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from skillmix.config.catalogs import load_catalog
from skillmix.config.dataset_about import check_model_about
from skillmix.config.experiment import Experiment, load_experiment
from skillmix.config.train_step import TrainStep
from skillmix.core.catalog import Catalog
from skillmix.core.errors import UserError
from skillmix.core.hashing import digest
from skillmix.core.json_texts import json_object
from skillmix.core.specs import IN_PROCESS, parse_spec
from skillmix.engine.run_folder import RunFolder, new_run, write_whole
from skillmix.engine.scheduler import LimitedPurse
from skillmix.models.checkpoints import LINEAGE, Checkpoint, checkpoint_of, lineage_of
from skillmix.models.threads import calm_threads
from skillmix.stages.before_run import check_journal, check_plan, was_other
from skillmix.stages.evaluate import Workplace
from skillmix.stages.experiment import checked_document, continued
from skillmix.stages.folders import MODEL, require_replaceable
from skillmix.stages.planned_work import planned_work
from skillmix.stages.progress import NO_PROGRESS, RunProgress
from skillmix.stages.training_data import Lessons, Source, read_lessons, sources_of, united
from skillmix.training.replay import state_of

DEFAULT_STEPS: Final = 4000
"""arXiv 2409.19808, section 3.3."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A train step's checkpoint."""

    step: str
    folder: Path
    was_there: bool
    """Whether an earlier call had made it."""


@dataclass(frozen=True, slots=True)
class Job:
    """A train step with everything that it names looked up."""

    experiment: Experiment
    step: TrainStep
    folder: Path
    base: str
    checkpoint: Checkpoint
    sources: list[Source]

    @property
    def model_folder(self) -> Path:
        """Where the result goes."""
        return self.folder / "model"

    @property
    def seed(self) -> int:
        """Of order, adapter and rounding."""
        return self.experiment.seed if self.step.seed is None else self.step.seed

    def identity(self) -> str:
        """Changes with whatever changes the result."""
        recipe = self.step.decisive()
        hashes = [source.about["hash"] for source in self.sources]
        return digest("training", self.checkpoint.weights_hash(), hashes, recipe, self.seed).hex()

    def lineage(self, *, steps: int) -> dict[str, Any]:
        """What the checkpoint says of itself."""
        parent = lineage_of(_last_folder(self.checkpoint))
        is_trained = parent.get("kind") == "model"
        about = [source.about for source in self.sources] + ([parent] if is_trained else [])
        base = {"spec": self.base, "hash": self.checkpoint.weights_hash()}
        return {
            "kind": "model",
            "base": base,
            "dataset": [{"path": str(s.path), "hash": s.about["hash"]} for s in self.sources],
            "k": united(about, "k"),
            "catalog": self.experiment.catalog,
            "partition": self.experiment.partition or load_catalog(self.experiment.catalog).default_partition,
            "combinations": united(about, "combinations"),
            "recipe": {**self.step.recipe(), "steps_taken": steps},
            "seed": self.seed,
            "parent": base["hash"] if is_trained else None,
            "adapter": self.step.lora is not None and not self.step.lora.merge,
            "identity": self.identity(),
        }


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
        continued(run, experiment, catalog, has_made=lambda: bool(trained)),
    ):
        for step in chosen:
            trained.append(train_step(experiment, step, run, progress))
    return trained


@contextmanager
def _locked(run: RunFolder, experiment: Experiment, catalog: Catalog, steps: Sequence[TrainStep]) -> Iterator[None]:
    """Keep other writers out, and find what contradicts the journal of the run, if it has one."""
    with run.write() if run.has_journal else run.locked() as journal:
        checked_document(run, experiment, catalog)
        if journal is not None:
            purse = LimitedPurse({}, spent=(0, 0.0), max_calls=None, max_usd=None)
            check_journal(Workplace(experiment, catalog, run, journal, purse, NO_PROGRESS), steps)
        yield


def chosen_steps(experiment: Experiment, only: str | None) -> list[TrainStep]:
    """The train steps, or the one of a name; an error if there is none."""
    chosen = [step for step in experiment.steps if isinstance(step, TrainStep) and only in (None, step.name)]
    if not chosen:
        names = ", ".join(f"{step.name} ({step.stage})" for step in experiment.steps)
        called = f" called {only!r}" if only else ""
        raise UserError(f"The experiment has no train step{called}.", hint=f"It has: {names}.")
    return chosen


def train_step(experiment: Experiment, step: TrainStep, run: RunFolder, progress: RunProgress = NO_PROGRESS) -> Trained:
    """Train, or find that it is done; killed in the middle, the next call goes on from the last checkpoint."""
    job = job_of(experiment, step, run)
    identity = job.identity()
    made = lineage_of(job.model_folder)
    if made:
        if made.get("identity") != identity:
            raise was_other(job.model_folder)
        progress.end(step.name, f"{step.name}: found in {job.model_folder}")
        return Trained(step.name, job.model_folder, was_there=True)
    require_replaceable(job.model_folder, MODEL)
    _require_packages(step)
    if is_first_rank():
        _begin(job, identity)
    calm_threads()
    from skillmix.stages.training_run import run_training

    run_training(job, read_lessons(job.sources, validation_share=step.validation_share), progress)
    return Trained(step.name, job.model_folder, was_there=False)


def job_of(experiment: Experiment, step: TrainStep, run: RunFolder) -> Job:
    """Look up what a step names."""
    base = base_spec(experiment, step, run)
    checkpoint = checkpoint_of(parse_spec(base))
    parent = lineage_of(_last_folder(checkpoint))
    if parent.get("kind") == "model":
        check_model_about(parent, source=str(_last_folder(checkpoint) / LINEAGE))
    return Job(
        experiment=experiment,
        step=step,
        folder=run.path / step.name,
        base=base,
        checkpoint=checkpoint,
        sources=sources_of(step, run.path),
    )


def _last_folder(checkpoint: Checkpoint) -> Path:
    """The folder that says what a model was last trained on."""
    return (checkpoint.adapters or (checkpoint.base,))[-1]


def base_spec(experiment: Experiment, step: TrainStep, run: RunFolder) -> str:
    """The model that is trained."""
    if step.base.startswith("step:"):
        folder = run.path / step.base.removeprefix("step:") / "model"
        made = lineage_of(folder)
        if not made:
            raise UserError(f"The model of {step.base} is not there yet.", hint="Run that train step first.")
        return f"{made['base']['spec']}+{folder}" if made.get("adapter") else f"local:{folder}"
    spec = experiment.students[step.base].model
    if parse_spec(spec).provider not in IN_PROCESS:
        raise UserError(
            f"{spec} cannot be trained: its weights are not here.", hint="base: is a student with a local: model."
        )
    return spec


def lessons_of(experiment: Experiment, step: TrainStep, run: RunFolder) -> Lessons:
    """The conversations of a step."""
    return read_lessons(sources_of(step, run.path), validation_share=step.validation_share)


def is_first_rank() -> bool:
    """Whether this process writes files: the only one, or the first under torchrun."""
    return int(os.environ.get("RANK", "0")) == 0


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


def write_lineage(folder: Path, lineage: dict[str, Any]) -> None:
    """Write a checkpoint's skillmix.json."""
    write_whole(folder / LINEAGE, json.dumps(lineage, ensure_ascii=False, indent=1) + "\n")
