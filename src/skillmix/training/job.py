"""A train step with its base model, its data and its lineage.

`job_run.py` runs the training. This module does not import torch, so that plans and errors appear quickly.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Final

from skillmix.catalog.files import load_catalog
from skillmix.datasets.row_files import content_hash
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.steps import DatasetStep
from skillmix.experiment.train_step import TrainStep
from skillmix.files import FolderKind, write_whole
from skillmix.hashing import digest
from skillmix.models.checkpoints import Checkpoint, checkpoint_of
from skillmix.models.hub import cached_folder, hub_folder, is_hub_id
from skillmix.models.lineage_files import (
    LINEAGE_FILE,
    BaseEntry,
    DataEntry,
    DatasetFile,
    ModelFile,
    read_dataset_file,
    read_model_file,
)
from skillmix.models.shapes import CopiedShape, shape_of
from skillmix.models.specs import parse_spec, provider_of
from skillmix.render import name_hint
from skillmix.runs.progress import say
from skillmix.runs.run import Run
from skillmix.runs.students import model_folder
from skillmix.training.data.examples import Conversation, read_conversations
from skillmix.training.data.replay import check_texts

MODEL: Final = FolderKind("a folder that may be replaced", lambda _: False)
"""A model is never replaced, because training it was expensive."""


@dataclass(frozen=True, slots=True)
class TrainingSource:
    """The files of a data set."""

    name: str
    path: Path
    train: Path
    validation: Path | None
    hash: str
    """The hash of the data set's current conversations."""
    about: DatasetFile | None
    """The data set's `skillmix.json`, if it has one."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """Conversations for training and for validation."""

    train: list[Conversation]
    validation: list[Conversation]


@dataclass(frozen=True, slots=True)
class Job:
    """A train step, with its base model and its data sets."""

    experiment: Experiment
    step: TrainStep
    folder: Path
    base: str
    checkpoint: Checkpoint | None
    """The weights to begin with; None for a base without weights, `new:SHAPE` or `new:MODEL`."""
    sources: list[TrainingSource]
    model_folder: Path
    """The folder of the trained model."""

    @property
    def seed(self) -> int:
        """The seed of the order, the adapter and the rounding."""
        return self.experiment.seed if self.step.seed is None else self.step.seed

    def identity(self) -> str:
        """Hash everything that affects the trained model."""
        recipe = self.step.decisive()
        hashes = [source.hash for source in self.sources]
        return digest("training", self.base_hash(), hashes, recipe, self.seed).hex()

    def base_hash(self) -> str:
        """Return the hash of the base's weights, or of the shape of a base without weights."""
        if self.checkpoint is not None:
            return self.checkpoint.weights_hash()
        shape = shape_of(self.base)
        assert shape is not None
        if isinstance(shape, CopiedShape):
            return digest("new model like", checkpoint_of(parse_spec(shape.spec)).weights_hash()).hex()
        return shape.hash()

    def lineage(self, *, steps: int) -> ModelFile:
        """Return the content of the trained model's `skillmix.json`."""
        parent = _parent(self.checkpoint)
        before = [file for file in (*(source.about for source in self.sources), parent) if file is not None]
        base_hash = self.base_hash()
        # Use the data sets' catalog and partition, or the experiment's if they differ or are unknown.
        steps_of_data = [
            s for s in self.experiment.steps if isinstance(s, DatasetStep) and s.name in self.step.data_steps
        ]
        places = {(step.catalog, step.partition) for step in steps_of_data}
        own_catalog, partition = places.pop() if len(places) == 1 else (None, None)
        catalog = own_catalog or self.experiment.catalog
        partition = partition or (None if own_catalog else self.experiment.partition)
        return ModelFile(
            kind="model",
            base=BaseEntry(spec=self.base, hash=base_hash),
            dataset=[DataEntry(path=str(source.path), hash=source.hash) for source in self.sources],
            k=sorted({k for file in before for k in file.k}),
            **({"requests": "one"} if before and {file.requests for file in before} == {"one"} else {}),
            catalog=catalog,
            partition=partition or load_catalog(catalog).default_partition,
            combinations=sorted({combination for file in before for combination in file.combinations}),
            recipe={**self.step.recipe(), "steps_taken": steps},
            seed=self.seed,
            parent=base_hash if parent else None,
            adapter=self.step.lora is not None and not self.step.lora.merge,
            identity=self.identity(),
        )


def chosen_steps(experiment: Experiment, only: str | None) -> list[TrainStep]:
    """Return all train steps, or the one with a given name; raise an error if there is none."""
    chosen = [step for step in experiment.steps if isinstance(step, TrainStep) and only in (None, step.name)]
    if not chosen:
        names = ", ".join(f"{step.name} ({step.stage})" for step in experiment.steps)
        called = f" called {only!r}" if only else ""
        raise UserError(
            f"The experiment has no train step{called}.",
            hint=name_hint(only or "", [step.name for step in experiment.steps], otherwise=f"It has: {names}."),
        )
    return chosen


def job_of(experiment: Experiment, step: TrainStep, run: Run) -> Job:
    """Look up the base model and the data sets of a step."""
    base = base_spec(experiment, step, run)
    checkpoint = checkpoint_of(parse_spec(base)) if shape_of(base) is None else None
    _parent(checkpoint)  # raise an error for a damaged file before training starts
    return Job(
        experiment=experiment,
        step=step,
        folder=run.path / step.name,
        base=base,
        checkpoint=checkpoint,
        sources=sources_of(step, run.path),
        model_folder=model_folder(run, step.name),
    )


def base_spec(experiment: Experiment, step: TrainStep, run: Run) -> str:
    """Return the model string of a step's base model."""
    if step.base.startswith("step:"):
        folder = model_folder(run, step.base.removeprefix("step:"))
        file = read_model_file(folder, strict=True)
        if file is None:
            raise UserError(f"{step.base} has not trained its model yet.", hint="Run that train step first.")
        return f"{file.base.spec}+{folder}" if file.adapter else f"local:{folder}"
    spec = experiment.students[step.base].model
    if not provider_of(spec).has_checkpoint and shape_of(spec) is None:
        raise UserError(
            f"{spec} cannot be trained: its weights are not on this machine.",
            hint="base: must name a student with a local: model, or with new:SHAPE to train from scratch.",
        )
    return spec


def is_first_rank() -> bool:
    """Return whether this process writes files, because it is the only process or the first one under torchrun."""
    return int(os.environ.get("RANK", "0")) == 0


def write_lineage(folder: Path, file: ModelFile) -> None:
    """Write a checkpoint's `skillmix.json`."""
    write_whole(folder / LINEAGE_FILE, file.text())


def sources_of(step: TrainStep, run: Path) -> list[TrainingSource]:
    """Return a step's data sets; raise an error if one is missing."""
    sources = []
    for name in step.data:
        folder = run / name / "dataset"
        if "/" in name:
            folder = hub_folder(name, "dataset") if is_hub_id(name) else Path(name).expanduser()
        elif not (folder / "train.jsonl").is_file():
            raise UserError(f"Step {name!r} has not made its data set yet.", hint="Run that step first.")
        if folder.is_file():
            sources.append(TrainingSource(name, folder, folder, None, _hash_of([folder]), about=None))
            continue
        train, validation = files = folder / "train.jsonl", folder / "validation.jsonl"
        if not train.is_file():
            raise _no_data(name, folder)
        existing = [file for file in files if file.is_file()]
        about = read_dataset_file(folder, strict=True)
        present_hash = _hash_of(existing) if about is None else content_hash(list(files))
        if about is not None and about.hash != present_hash:
            say(
                f"{name}: its conversations differ from those described in its {LINEAGE_FILE}, whose "
                "combinations and k may be wrong"
            )
        own_validation = validation if validation in existing else None
        sources.append(TrainingSource(name, folder, train, own_validation, present_hash, about))
    return sources


def _hash_of(files: Sequence[Path]) -> str:
    hashes = []
    for file in files:
        with file.open("rb") as content:
            hashes.append(file_digest(content, "blake2b").hexdigest())
    return digest("data set", hashes).hex()


def _no_data(name: str, path: Path) -> UserError:
    if path.is_dir():
        return UserError(f"There is no data set in {path}.", hint="A data set's conversations are in train.jsonl.")
    return UserError(f"There is no data set {name}.", hint="data: names dataset steps, folders or JSON Lines files.")


def read_lessons(sources: Sequence[TrainingSource], *, validation_share: float) -> Lessons:
    """Read all conversations; part of each data set without a validation file is held back, chosen by hash."""
    train: list[Conversation] = []
    validation: list[Conversation] = []
    for source in sources:
        conversations = read_conversations(source.train, name=source.name)
        if source.validation is not None:
            train += conversations
            validation += read_conversations(source.validation, name=f"{source.name}/validation")
            continue
        for conversation in conversations:
            turns = [list(turn) for turn in conversation.turns]
            is_held_back = int.from_bytes(digest("validation", turns, size=4)) < validation_share * 2**32
            (validation if is_held_back else train).append(conversation)
    if not train:
        raise UserError(
            f"There is nothing to train on in {', '.join(source.name for source in sources)}.",
            hint="The data set is empty; its README.md lists the excluded texts by reason.",
        )
    return Lessons(train, validation)


def check_base(step: TrainStep, experiment: Experiment, run: Run) -> Checkpoint | None:
    """Return the checkpoint that a step starts from, after checking it before any step of the run begins.

    Return None for a base without weights, and for the model of an earlier train step, which may not exist yet.
    """
    if step.base.startswith("step:"):
        return None
    base = base_spec(experiment, step, run)
    checkpoint = checkpoint_of(parse_spec(base), fetches=False) if shape_of(base) is None else None
    given = [name for name in ("lora", "format", "ranks") if getattr(step, name) is not None]
    if checkpoint is None and given:
        raise UserError(
            f"Step {step.name!r} sets {', '.join(given)}, which cannot be used with {base}.",
            hint="A new model learns all of its weights in one process, and its chat template is fixed.",
        )
    if checkpoint is not None and not checkpoint.bytes():
        raise UserError(
            f"There are no safetensors weights in {checkpoint.base}, the base of step {step.name!r}.",
            hint="Download the checkpoint into this folder, or convert its weights with transformers.",
        )
    return checkpoint


def check_replay(step: TrainStep) -> None:
    """Reject replay sources that are missing, empty or unreadable, before any step of the run begins."""
    if step.replay is None:
        return
    sources = [Path(source).expanduser() for source in step.replay.sources]
    try:
        check_texts(sources, field=step.replay.field)
    except UserError as error:
        raise UserError(f"Step {step.name!r}: {error.message}", hint=error.hint) from None


def check_data(step: TrainStep) -> None:
    """Reject files and folders that a step cannot train on, before any step of the run begins."""
    for name in step.data:
        if "/" not in name:
            continue
        path = (cached_folder(name, "dataset") if is_hub_id(name) else None) or Path(name).expanduser()
        if not path.is_file() and not (path / "train.jsonl").is_file():
            raise _no_data(name, path)
        read_dataset_file(path, strict=True)


def _parent(checkpoint: Checkpoint | None) -> ModelFile | None:
    """Return the `skillmix.json` of a checkpoint's last adapter or its base; None if it was not trained here."""
    if checkpoint is None:
        return None
    return read_model_file((checkpoint.adapters or (checkpoint.base,))[-1])
