"""A training run on disk: weights, moments and progress, each checkpoint whole or absent.

Every rank writes its own part of each parameter, with its place in it, so that any number of ranks can go on.
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

from skillmix.catalog.json import json_object
from skillmix.errors import UserError
from skillmix.training.ranks import Ranks
from skillmix.training.step.optimizer import Optimizer, TrainedParameter

_NOTE: Final = "state.json"
_PARTIAL: Final = ".partial"
_KINDS: Final = ("weight", "low", "first", "second")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. Order, dropout and rounding are functions of step and seed, so these are the random state."""

    steps: int
    """Optimiser steps taken."""
    seed: int
    best: float | None = None
    """The lowest validation loss so far."""
    best_steps: int | None = None
    """After how many steps it was reached."""
    worse: int = 0
    """Validations since then."""
    seconds: float = 0.0
    """Spent on the steps so far."""
    budget: int | None = None
    """Tokens of a micro-batch, as memory turned out to allow."""


class Checkpoints:
    """The checkpoints of one run: the last one, and the best if it is wanted."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self._folder, self._ranks = folder, ranks

    def save(self, optimizer: Optimizer, progress: Progress) -> None:
        """Write a checkpoint beside its place and put it there, then remove those that it replaces."""
        place = self._place(progress.steps)
        partial = place.with_name(place.name + _PARTIAL)
        if self._ranks.is_first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self._ranks.wait()
        _write_part(optimizer.parameters, partial / f"part-{self._ranks.own}.safetensors")
        self._ranks.wait()
        if self._ranks.is_first:
            note = {**asdict(progress), "parts": self._ranks.count, "precision": optimizer.precision.name}
            _write_durably(partial / _NOTE, json.dumps(note, indent=1) + "\n")
            shutil.rmtree(place, ignore_errors=True)
            partial.rename(place)
            self._prune({progress.steps, progress.best_steps})
        self._ranks.wait()

    def last(self) -> Progress | None:
        """How far the last whole checkpoint is."""
        steps = [steps for steps in self._steps() if (self._place(steps) / _NOTE).is_file()]
        return _progress(self._note(max(steps))) if steps else None

    def load(self, optimizer: Optimizer, steps: int) -> None:
        """Bring weights and moments back."""
        self._read(optimizer, steps, _KINDS)

    def load_weights(self, optimizer: Optimizer, steps: int) -> None:
        """Bring the weights back, and leave the moments as they are."""
        self._read(optimizer, steps, _KINDS[:2])

    def _read(self, optimizer: Optimizer, steps: int, kinds: Iterable[str]) -> None:
        place, note = self._place(steps), self._note(steps)
        if note["precision"] != optimizer.precision.name:
            raise UserError(
                f"{place} was written with precision {note['precision']}, and this run has {optimizer.precision.name}.",
                hint=f"Set precision: {note['precision']}, or remove the folder to train anew.",
            )
        try:
            parts = [_Part(place / f"part-{number}.safetensors") for number in range(note["parts"])]
            for trained in optimizer.parameters:
                for kind in kinds:
                    if (tensor := getattr(trained, kind)) is not None:
                        _fill(tensor, f"{kind}/{trained.name}", start=int(trained.start), parts=parts)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise UserError(
                f"{place} does not belong to this model, or is damaged: {error}",
                hint="Remove it; the run then goes on from an earlier one, or starts anew.",
            ) from None

    def _steps(self) -> list[int]:
        names = (path.name.removeprefix("step-") for path in self._folder.glob("step-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _place(self, steps: int) -> Path:
        return self._folder / f"step-{steps:08d}"

    def _note(self, steps: int) -> dict[str, Any]:
        file = self._place(steps) / _NOTE
        return json_object(file.read_bytes(), source=str(file), hint=f"It is damaged. Remove {file.parent}.")

    def _prune(self, kept: set[int | None]) -> None:
        for steps in self._steps():
            if steps not in kept and (self._place(steps) / _NOTE).is_file():
                shutil.rmtree(self._place(steps), ignore_errors=True)


def _progress(note: dict[str, Any]) -> Progress:
    return Progress(**{key: value for key, value in note.items() if key in Progress.__dataclass_fields__})


class _Part:
    """What one rank wrote."""

    def __init__(self, file: Path) -> None:
        self._opened = cast(Any, safe_open(file, framework="pt"))
        self._starts: dict[str, int] = json.loads(self._opened.metadata()["starts"])

    def piece(self, name: str, start: int, end: int) -> tuple[int, torch.Tensor] | None:
        """What it has of a stretch of a tensor, and where that begins."""
        own = self._opened.get_slice(name)
        first = self._starts[name]
        low, high = max(start, first), min(end, first + own.get_shape()[0])
        return (low, own[low - first : high - first]) if low < high else None


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
        if (found := part.piece(name, start, start + len(target))) is not None:
            low, piece = found
            if piece.dtype != target.dtype:
                raise ValueError(f"{name} is {piece.dtype} there and {target.dtype} here")
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
