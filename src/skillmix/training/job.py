"""`skillmix train`: from data sets and a model to a checkpoint that says what it was made of."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.train_step import TrainStep
from skillmix.hashing import digest
from skillmix.models.checkpoints import Checkpoint, checkpoint_of
from skillmix.models.lineage_files import LINEAGE_FILE, BaseEntry, DataEntry, ModelFile, read_model_file
from skillmix.models.specs import parse_spec, provider_of
from skillmix.runs.run import Run, write_whole
from skillmix.runs.students import model_folder
from skillmix.training.sources import Lessons, TrainingSource, read_lessons, sources_of

DEFAULT_STEPS: Final = 4000
"""arXiv 2409.19808, section 3.3."""


@dataclass(frozen=True, slots=True)
class Job:
    """A train step with everything that it names looked up."""

    experiment: Experiment
    step: TrainStep
    folder: Path
    base: str
    checkpoint: Checkpoint
    sources: list[TrainingSource]
    model_folder: Path
    """Where the result goes."""

    @property
    def seed(self) -> int:
        """Of order, adapter and rounding."""
        return self.experiment.seed if self.step.seed is None else self.step.seed

    def identity(self) -> str:
        """Changes with whatever changes the result."""
        recipe = self.step.decisive()
        hashes = [source.hash for source in self.sources]
        return digest("training", self.checkpoint.weights_hash(), hashes, recipe, self.seed).hex()

    def lineage(self, *, steps: int) -> ModelFile:
        """What the checkpoint's `skillmix.json` says."""
        parent = _parent(self.checkpoint)
        before = [file for file in (*(source.about for source in self.sources), parent) if file is not None]
        base_hash = self.checkpoint.weights_hash()
        return ModelFile(
            kind="model",
            base=BaseEntry(spec=self.base, hash=base_hash),
            dataset=[DataEntry(path=str(source.path), hash=source.hash) for source in self.sources],
            k=sorted({k for file in before for k in file.k}),
            catalog=self.experiment.catalog,
            partition=self.experiment.partition or load_catalog(self.experiment.catalog).default_partition,
            combinations=sorted({combination for file in before for combination in file.combinations}),
            recipe={**self.step.recipe(), "steps_taken": steps},
            seed=self.seed,
            parent=base_hash if parent else None,
            adapter=self.step.lora is not None and not self.step.lora.merge,
            identity=self.identity(),
        )


def chosen_steps(experiment: Experiment, only: str | None) -> list[TrainStep]:
    """The train steps, or the one of a name; an error if there is none."""
    chosen = [step for step in experiment.steps if isinstance(step, TrainStep) and only in (None, step.name)]
    if not chosen:
        names = ", ".join(f"{step.name} ({step.stage})" for step in experiment.steps)
        called = f" called {only!r}" if only else ""
        raise UserError(f"The experiment has no train step{called}.", hint=f"It has: {names}.")
    return chosen


def job_of(experiment: Experiment, step: TrainStep, run: Run) -> Job:
    """Look up what a step names."""
    base = base_spec(experiment, step, run)
    checkpoint = checkpoint_of(parse_spec(base))
    _parent(checkpoint)  # a damaged file is found before the training
    return Job(
        experiment=experiment,
        step=step,
        folder=run.path / step.name,
        base=base,
        checkpoint=checkpoint,
        sources=sources_of(step, run.path),
        model_folder=model_folder(run, step.name),
    )


def _parent(checkpoint: Checkpoint) -> ModelFile | None:
    """What the base says of its own training; None if it was not tuned."""
    return read_model_file((checkpoint.adapters or (checkpoint.base,))[-1])


def base_spec(experiment: Experiment, step: TrainStep, run: Run) -> str:
    """The model that is trained."""
    if step.base.startswith("step:"):
        folder = model_folder(run, step.base.removeprefix("step:"))
        made = read_model_file(folder, strict=True)
        if made is None:
            raise UserError(f"The model of {step.base} is not there yet.", hint="Run that train step first.")
        return f"{made.base.spec}+{folder}" if made.adapter else f"local:{folder}"
    spec = experiment.students[step.base].model
    if not provider_of(spec).has_checkpoint:
        raise UserError(
            f"{spec} cannot be trained: its weights are not here.", hint="base: is a student with a local: model."
        )
    return spec


def lessons_of(experiment: Experiment, step: TrainStep, run: Run) -> Lessons:
    """The conversations of a step."""
    return read_lessons(sources_of(step, run.path), validation_share=step.validation_share)


def is_first_rank() -> bool:
    """Whether this process writes files: the only one, or the first under torchrun."""
    return int(os.environ.get("RANK", "0")) == 0


def write_lineage(folder: Path, file: ModelFile) -> None:
    """Write a checkpoint's `skillmix.json`."""
    write_whole(folder / LINEAGE_FILE, file.text())
