"""The loop of a training run: steps, checkpoints, validation, and a row of training.jsonl for every step."""

import json
import math
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from skillmix.errors import Interrupted, UserError
from skillmix.files import json_object
from skillmix.training.data.examples import Data, Example
from skillmix.training.log import TRAINING_LOG, Row, append_row, cut_log
from skillmix.training.ranks import Ranks, gather, joined_ranks
from skillmix.training.step.engine import Engine, OptimizerStep, PreparedStep
from skillmix.training.step.optimizer import Optimizer, TrainedParameter, TrainingRecipe

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
        if self._ranks.is_first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self._ranks.wait()
        _write_part(optimizer.parameters, partial / f"part-{self._ranks.own}.safetensors")
        self._ranks.wait()
        if self._ranks.is_first:
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


class StepData(NamedTuple):
    """The examples of a step, and their micro-batches if these were packed already."""

    examples: Sequence[Example]
    prepared: PreparedStep | None


class UpcomingSteps:
    """Hands out the data of each step, and prepares those of the next one in a thread.

    On a CPU there is no thread: it would only take time from the step.
    """

    def __init__(self, data: Data, engine: Engine, *, steps: int, is_ahead: bool | None = None) -> None:
        self._data, self._engine, self._steps = data, engine, steps
        self._is_ahead = engine.device.type == "cuda" if is_ahead is None else is_ahead
        self._thread: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[StepData]] | None = None

    def __enter__(self) -> "UpcomingSteps":
        if self._is_ahead:
            self._thread = ThreadPoolExecutor(1, "next-step", initializer=_use_device, initargs=(self._engine.device,))
        return self

    def __exit__(self, *_: Any) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def take(self, number: int) -> StepData:
        """The data of a step; an error in the data of a step is raised when the step is taken."""
        if self._next is not None and self._next[0] == number:
            data = self._next[1].result()
        else:
            data = StepData(self._data.step(number), prepared=None)
        if self._thread is not None and number + 1 < self._steps:
            self._next = number + 1, self._thread.submit(self._prepared, number + 1)
        return data

    def _prepared(self, number: int) -> StepData:
        examples = self._data.step(number)
        # The first step decides on the device how steps are packed, which is not for this thread.
        prepared = self._engine.prepare(examples) if self._engine.is_ready else None
        return StepData(examples, prepared)


def _use_device(device: torch.device) -> None:
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


_PEAKS: Final = {"H100": 989e12, "H200": 989e12, "H800": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12}
"""Dense bfloat16 operations per second as the makers state them, by a part of the device's name."""
_RECENT: Final = 20
"""Steps that the rate is averaged over; the first step, which compiles kernels, soon drops out."""
_LONGEST: Final = 1800.0
"""Seconds after which a checkpoint is written, even if `checkpoint_every` steps are not over."""
_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a training after its step; Windows has no SIGHUP."""


class Pace(NamedTuple):
    """The speed of training after a step."""

    tokens_per_second: float
    utilisation: float | None
    """Share of the GPUs' peak; None for a device whose peak is not known."""
    seconds_left: float


class Stopwatch:
    """Measures the pace over the last steps."""

    def __init__(self, model: Any, *, steps: int, ranks: int) -> None:
        self._steps = steps
        self._operations = operations_per_token(model)
        peak = peak_of(next(model.parameters()).device)
        self._peak = None if peak is None else peak * ranks
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def after(self, step: int, *, tokens: int, seconds: float) -> Pace:
        """The pace after a step, counted from 0."""
        self._recent.append((tokens, seconds))
        recent_seconds = sum(seconds for _, seconds in self._recent)
        rate = sum(tokens for tokens, _ in self._recent) / max(recent_seconds, 1e-9)
        return Pace(
            tokens_per_second=rate,
            utilisation=None if self._peak is None else self._operations * rate / self._peak,
            seconds_left=(self._steps - step - 1) * recent_seconds / len(self._recent),
        )


def operations_per_token(model: Any) -> int:
    """Operations of a training step per token: 4 for each weight, and 2 more for the gradient of a trained weight."""
    return sum((6 if parameter.requires_grad else 4) * parameter.numel() for parameter in model.parameters())


def peak_of(device: torch.device) -> float | None:
    """Peak operations per second of a device; None if it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), None)


@dataclass(slots=True)
class Interruption:
    """A signal to stop, once it has arrived."""

    number: int | None = None
    """The signal; None until it arrives."""


@contextmanager
def finishing_steps(ranks: Ranks) -> Iterator[Interruption]:
    """Let the step finish on the first signal, and obey the second at once.

    Several ranks cannot agree on the step after which they stop, so they obey the first signal.
    """
    interruption = Interruption()
    if ranks.count > 1 or threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    handlers = {int(number): signal.getsignal(number) for number in _SIGNALS}
    # nohup ignores SIGHUP, and it must stay ignored.
    before = {number: handler for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}

    def on_signal(number: int, _: Any) -> None:
        interruption.number = number
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The outcome of a training run."""

    model: Any
    """The trained model. If several ranks shared its weights, only the first rank has them."""
    steps: int
    """Steps after which the model had these weights; fewer than the recipe's if training stopped early."""


def train(
    model: Any,
    data: Data,
    recipe: TrainingRecipe,
    folder: Path,
    *,
    validation: Sequence[Example] | None,
    on_progress: Callable[[Row], None],
    resume: bool,
) -> TrainResult:
    """Train to the end; with `resume`, from the last checkpoint if there is one."""
    return _Loop(model, data, recipe, folder, validation).run(on_progress, resume=resume)


class _Loop:
    def __init__(
        self, model: Any, data: Data, recipe: TrainingRecipe, folder: Path, validation: Sequence[Example] | None
    ) -> None:
        self._ranks = joined_ranks()
        self._model, self._data, self._recipe, self._validation = model, data, recipe, validation
        self._stopwatch = Stopwatch(model, steps=recipe.steps, ranks=self._ranks.count)
        self._engine = Engine(model, recipe, self._ranks)
        self._checkpoints = Checkpoints(folder / "checkpoints", self._ranks)
        self._upcoming = UpcomingSteps(data, self._engine, steps=recipe.steps)
        self._log = folder / TRAINING_LOG
        self._progress = Progress(steps=0, seed=recipe.seed)
        self._saved_at = time.monotonic()

    def run(self, on_progress: Callable[[Row], None], *, resume: bool) -> TrainResult:
        if resume:
            self._resume()
        if self._ranks.is_first:
            cut_log(self._log, before=self._progress.steps)
        with finishing_steps(self._ranks) as interruption, self._upcoming:
            while self._progress.steps < self._recipe.steps and not self._has_lost_patience():
                row = self._step(self._progress.steps)
                self._write(row)
                on_progress(row)
                if interruption.number is not None or self._is_time_to_save():
                    self._checkpoints.save(self._engine.optimizer, self._progress)
                    self._saved_at = time.monotonic()
                if interruption.number is not None:
                    raise Interrupted(interruption.number)
        return self._result()

    def _resume(self) -> None:
        progress = self._checkpoints.last()
        if progress is None:
            return
        self._checkpoints.load(self._engine.optimizer, progress.steps)
        self._progress = progress
        self._engine.first_step = progress.steps
        if self._recipe.token_budget is None and self._ranks.count == 1:
            self._engine.budget = progress.budget

    def _step(self, number: int) -> dict[str, Any]:
        started = time.perf_counter()
        examples, prepared = self._upcoming.take(number)
        step = self._engine.step(number, examples, prepared)
        self._stop_if_not_finite(number, step, examples)
        seconds = time.perf_counter() - started
        pace = self._stopwatch.after(number, tokens=step.tokens, seconds=seconds)
        self._progress = replace(
            self._progress,
            steps=number + 1,
            seconds=self._progress.seconds + seconds,
            budget=self._engine.budget,
        )
        return {
            "step": number,
            "answers": step.answers,
            "replay": step.replay,
            "norm": step.norm,
            "rate": self._recipe.rate_at(number),
            "tokens": step.tokens,
            "micro_batches": step.micro_batches,
            "seconds": round(seconds, 4),
            **pace._asdict(),
            **self._validated(number),
        }

    def _validated(self, number: int) -> dict[str, float]:
        every = self._recipe.validate_every or self._data.steps_per_epoch
        is_last = number + 1 == self._recipe.steps
        if not self._validation or ((number + 1) % every and not is_last):
            return {}
        loss = self._engine.validate(self._validation)
        if self._progress.best is None or loss < self._progress.best:
            self._progress = replace(self._progress, best=loss, best_steps=number + 1, worse=0)
        else:
            self._progress = replace(self._progress, worse=self._progress.worse + 1)
        return {"validation": loss}

    def _has_lost_patience(self) -> bool:
        return self._recipe.patience is not None and self._progress.worse >= self._recipe.patience

    def _is_time_to_save(self) -> bool:
        steps = self._progress.steps
        is_best = self._recipe.patience is not None and self._progress.best_steps == steps
        is_late = self._ranks.minimum(time.monotonic() - self._saved_at, self._engine.device) > _LONGEST
        is_due = is_late or steps % self._recipe.checkpoint_every == 0
        return is_best or (is_due and steps < self._recipe.steps)

    def _stop_if_not_finite(self, number: int, step: OptimizerStep, examples: Sequence[Example]) -> None:
        if math.isfinite(step.answers + (step.replay or 0.0) + step.norm):
            return
        keys = [example.key for example in examples]
        self._write({"step": number, "problem": "not finite", "norm": str(step.norm), "keys": keys})
        raise UserError(
            f"Step {number + 1}: loss {step.answers}, gradient norm {step.norm}. Its {len(keys)} examples: "
            f"{', '.join(keys)}.",
            hint="This step did not change the weights. Look at the examples, set clip, or lower learning_rate.",
        )

    def _write(self, row: Row) -> None:
        if self._ranks.is_first:
            append_row(self._log, row)

    def _result(self) -> TrainResult:
        steps = self._progress.steps
        best = self._progress.best_steps
        if self._recipe.patience is not None and best is not None and best != steps:
            self._checkpoints.load_weights(self._engine.optimizer, best)
            steps = best
        self._engine.close()
        if self._ranks.count > 1:
            gather(self._model, self._ranks)
        return TrainResult(self._model, steps)
