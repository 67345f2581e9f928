"""Checkpoints of a training run: weights, moments and progress; each checkpoint is complete or absent.

Every rank writes its part of each parameter with the part's offset, so another number of ranks can resume.
"""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from skillmix.errors import UserError
from skillmix.files import json_object
from skillmix.training.ranks import Ranks
from skillmix.training.step.optimizer import Optimizer, TrainedParameter

_NOTE: Final = "state.json"
_PARTIAL: Final = ".partial"
_KINDS: Final = ("weight", "low", "first", "second")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run. Order, dropout and rounding depend on step and seed, so there is no other random state."""

    steps: int
    """Optimiser steps taken."""
    seed: int
    best: float | None = None
    """The lowest validation loss so far."""
    best_steps: int | None = None
    """Steps after which the lowest validation loss was reached."""
    worse: int = 0
    """Validations since the lowest loss."""
    seconds: float = 0.0
    """Time of all steps so far."""
    budget: int | None = None
    """Tokens of a micro-batch that fit into memory."""


class Checkpoints:
    """The checkpoints of one run: the last one, and the best one if the recipe has patience."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self._folder, self._ranks = folder, ranks

    def save(self, optimizer: Optimizer, progress: Progress) -> None:
        """Write a checkpoint under a temporary name and rename it, then remove the ones that it replaces."""
        folder = self._step_folder(progress.steps)
        partial = folder.with_name(folder.name + _PARTIAL)
        if self._ranks.makes_folders:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self._ranks.wait()
        _write_part(optimizer.parameters, partial / f"part-{self._ranks.own}.safetensors")
        self._ranks.wait()
        if self._ranks.makes_folders:
            note = {**asdict(progress), "parts": self._ranks.count, "precision": optimizer.precision.name}
            _write_durably(partial / _NOTE, json.dumps(note, indent=1) + "\n")
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
            self._prune({progress.steps, progress.best_steps})
        self._ranks.wait()

    def last(self) -> Progress | None:
        """The progress of the last complete checkpoint; None if there is none."""
        steps = [steps for steps in self._steps() if (self._step_folder(steps) / _NOTE).is_file()]
        return _progress(self._note(max(steps))) if steps else None

    def load(self, optimizer: Optimizer, steps: int) -> None:
        """Load weights and moments."""
        self._read(optimizer, steps, _KINDS)

    def load_weights(self, optimizer: Optimizer, steps: int) -> None:
        """Load the weights, and leave the moments unchanged."""
        self._read(optimizer, steps, _KINDS[:2])

    def _read(self, optimizer: Optimizer, steps: int, kinds: Iterable[str]) -> None:
        folder, note = self._step_folder(steps), self._note(steps)
        precision = optimizer.precision.name
        if note["precision"] != precision:
            raise UserError(
                f"{folder} was written with precision {note['precision']}, and this run has {precision}.",
                hint=f"Set precision: {note['precision']}, or remove the folder to train anew.",
            )
        try:
            files = [folder / f"part-{number}.safetensors" for number in range(note["parts"])]
            # A machine with a disk of its own may have only the parts of its ranks, and these need no others.
            parts = [_Part(file) for file in files if file.is_file()]
            for trained in optimizer.parameters:
                for kind in kinds:
                    if (tensor := getattr(trained, kind)) is not None:
                        _fill(tensor, f"{kind}/{trained.name}", start=int(trained.start), parts=parts)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise UserError(
                f"{folder} does not belong to this model, or is damaged: {error}",
                hint="Remove the folder; the run then continues from an earlier checkpoint, or starts anew.",
            ) from None

    def _steps(self) -> list[int]:
        names = (path.name.removeprefix("step-") for path in self._folder.glob("step-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _step_folder(self, steps: int) -> Path:
        return self._folder / f"step-{steps:08d}"

    def _note(self, steps: int) -> dict[str, Any]:
        file = self._step_folder(steps) / _NOTE
        return json_object(file.read_bytes(), source=str(file), hint=f"It is damaged. Remove {file.parent}.")

    def _prune(self, kept: set[int | None]) -> None:
        for steps in self._steps():
            if steps not in kept and (self._step_folder(steps) / _NOTE).is_file():
                shutil.rmtree(self._step_folder(steps), ignore_errors=True)


def _progress(note: dict[str, Any]) -> Progress:
    return Progress(**{key: value for key, value in note.items() if key in Progress.__dataclass_fields__})


class _Part:
    """The file of one rank."""

    def __init__(self, file: Path) -> None:
        self._opened = cast(Any, safe_open(file, framework="pt"))
        self._starts: dict[str, int] = json.loads(self._opened.metadata()["starts"])

    def piece(self, name: str, start: int, end: int) -> tuple[int, torch.Tensor] | None:
        """The overlap of the file's part of a tensor with a range, and the index where the overlap begins."""
        stored = self._opened.get_slice(name)
        first = self._starts[name]
        low, high = max(start, first), min(end, first + stored.get_shape()[0])
        return (low, stored[low - first : high - first]) if low < high else None


def _write_part(parameters: Iterable[TrainedParameter], file: Path) -> None:
    tensors, starts = {}, {}
    for trained in parameters:
        for kind in _KINDS:
            if (tensor := getattr(trained, kind)) is not None:
                tensors[f"{kind}/{trained.name}"] = tensor.detach().cpu()
                starts[f"{kind}/{trained.name}"] = int(trained.start)
    save_file(tensors, file, metadata={"starts": json.dumps(starts)})
    _sync(file)


def _fill(target: torch.Tensor, name: str, *, start: int, parts: Iterable[_Part]) -> None:
    filled = 0
    for part in parts:
        if (overlap := part.piece(name, start, start + len(target))) is not None:
            low, piece = overlap
            if piece.dtype != target.dtype:
                raise ValueError(f"{name} is {piece.dtype} in the file and {target.dtype} in the model")
            target[low - start : low - start + len(piece)].copy_(piece)
            filled += len(piece)
    if filled != len(target):
        raise ValueError(f"{name} has {filled} of {len(target)} numbers")


def _write_durably(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    _sync(file)
    _sync(file.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
