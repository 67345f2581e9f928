"""`skillmix train`: from data sets and a model to a checkpoint that says what it was made of."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.train_step import TrainStep
from skillmix.hashing import digest
from skillmix.models.checkpoints import Checkpoint, checkpoint_of
from skillmix.models.lineage_files import LINEAGE, check_model_about, read_lineage, read_model_lineage
from skillmix.models.specs import IN_PROCESS, parse_spec
from skillmix.runs.run import Run, write_whole
from skillmix.training.sources import Lessons, TrainingSource, read_lessons, sources_of, united

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
        parent = read_lineage(_last_folder(self.checkpoint)) or {}
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
    parent = read_lineage(_last_folder(checkpoint)) or {}
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


def base_spec(experiment: Experiment, step: TrainStep, run: Run) -> str:
    """The model that is trained."""
    if step.base.startswith("step:"):
        folder = run.path / step.base.removeprefix("step:") / "model"
        made = read_model_lineage(folder)
        if made is None:
            raise UserError(f"The model of {step.base} is not there yet.", hint="Run that train step first.")
        return f"{made['base']['spec']}+{folder}" if made.get("adapter") else f"local:{folder}"
    spec = experiment.students[step.base].model
    if parse_spec(spec).provider not in IN_PROCESS:
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


def write_lineage(folder: Path, lineage: dict[str, Any]) -> None:
    """Write a checkpoint's skillmix.json."""
    write_whole(folder / LINEAGE, json.dumps(lineage, ensure_ascii=False, indent=1) + "\n")
