"""The loop of a training run: steps, checkpoints, validation, and a row in training.jsonl for every step."""

import json
import math
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from skillmix.errors import Interrupted, UserError
from skillmix.files import json_object
from skillmix.training.data.examples import Data, Example
from skillmix.training.log import TRAINING_LOG, Row, append_row, cut_log
from skillmix.training.ranks import Ranks, gather, joined_ranks
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import Optimizer, TrainingRecipe

_NOTE: Final = "state.json"
_WEIGHTS: Final = ("weight", "low")
_KINDS: Final = (*_WEIGHTS, "first", "second")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a training run; no random state is stored, because randomness depends only on step and seed."""

    steps: int
    """The number of optimizer steps taken so far."""
    seed: int
    best: float | None = None
    """The lowest validation loss so far."""
    best_steps: int | None = None
    """The number of steps after which the lowest validation loss was reached."""
    worse: int = 0
    """The number of validations since the lowest loss."""
    seconds: float = 0.0
    """The time of all steps so far."""
    budget: int | None = None
    """The number of tokens in a micro-batch that fit into memory; None until it is known."""


class Checkpoints:
    """The checkpoints of one run: the last checkpoint, and the best one if the recipe has patience.

    A checkpoint is a folder with one file per rank, which contains that rank's part of every tensor.
    """

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self._folder, self._ranks = folder, ranks

    def save(self, optimizer: Optimizer, progress: Progress) -> None:
        """Write a checkpoint under a temporary name and rename it, then remove the checkpoints that it replaces."""
        folder = self._folder / f"step-{progress.steps:08d}"
        partial = folder.with_name(folder.name + ".partial")
        if self._ranks.is_first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self._ranks.wait()
        file = partial / f"part-{self._ranks.own}.safetensors"
        tensors, starts = {}, {}
        for trained in optimizer.parameters:
            for kind in _KINDS:
                if (tensor := getattr(trained, kind)) is not None:
                    tensors[f"{kind}/{trained.name}"] = tensor.detach().cpu()
                    starts[f"{kind}/{trained.name}"] = int(trained.start)
        save_file(tensors, file, metadata={"starts": json.dumps(starts)})
        _sync(file)
        self._ranks.wait()
        if self._ranks.is_first:
            note = {**asdict(progress), "parts": self._ranks.count, "precision": optimizer.precision.name}
            (partial / _NOTE).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
            _sync(partial / _NOTE)
            _sync(partial)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
            for old in self._complete():
                if int(old.name.removeprefix("step-")) not in (progress.steps, progress.best_steps):
                    shutil.rmtree(old, ignore_errors=True)
        self._ranks.wait()

    def last(self) -> Progress | None:
        """Return the progress of the last complete checkpoint; None if there is none."""
        complete = self._complete()
        if not complete:
            return None
        known = Progress.__dataclass_fields__
        return Progress(**{key: value for key, value in _note(complete[-1]).items() if key in known})

    def load(self, optimizer: Optimizer, steps: int, *, kinds: Sequence[str] = _KINDS) -> None:
        """Load the weights and moments in a checkpoint, or only the given kinds of tensors."""
        folder = self._folder / f"step-{steps:08d}"
        note, precision = _note(folder), optimizer.precision.name
        if note["precision"] != precision:
            raise UserError(
                f"{folder} was written with precision {note['precision']}, but this run uses {precision}.",
                hint=f"Set precision: {note['precision']}, or remove the folder to train from the start.",
            )
        try:
            files = [folder / f"part-{number}.safetensors" for number in range(note["parts"])]
            parts = [cast(Any, safe_open(file, framework="pt")) for file in files]
            starts = [json.loads(part.metadata()["starts"]) for part in parts]
            for trained in optimizer.parameters:
                for kind in kinds:
                    if (tensor := getattr(trained, kind)) is not None:
                        _fill(tensor, f"{kind}/{trained.name}", int(trained.start), parts, starts)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise UserError(
                f"{folder} does not belong to this model, or is damaged: {error}",
                hint="Remove the folder; the run then continues from an earlier checkpoint, or from the start.",
            ) from None

    def _complete(self) -> list[Path]:
        """Return the folders of complete checkpoints in the order of their steps."""
        folders = (folder for folder in self._folder.glob("step-*") if (folder / _NOTE).is_file())
        return sorted(folder for folder in folders if folder.name.removeprefix("step-").isdecimal())


def _note(folder: Path) -> dict[str, Any]:
    file = folder / _NOTE
    return json_object(file.read_bytes(), source=str(file), hint=f"It is damaged. Remove {folder}.")


def _fill(
    target: torch.Tensor, name: str, start: int, parts: Iterable[Any], starts: Iterable[Mapping[str, int]]
) -> None:
    """Fill a rank's part of a tensor, which begins at `start`, from the parts in the files of all ranks."""
    end, filled = start + len(target), 0
    for part, first_by_name in zip(parts, starts, strict=True):
        stored, first = part.get_slice(name), first_by_name[name]
        low, high = max(start, first), min(end, first + stored.get_shape()[0])
        if low < high:
            piece = stored[low - first : high - first]
            if piece.dtype != target.dtype:
                raise ValueError(f"{name} is {piece.dtype} in the file and {target.dtype} in the model")
            target[low - start : high - start].copy_(piece)
            filled += len(piece)
    if filled != len(target):
        raise ValueError(f"{name} has {filled} of {len(target)} numbers")


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


_PEAKS: Final = {"H100": 989e12, "H200": 989e12, "H800": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12}
"""Dense bfloat16 operations per second as stated by the manufacturers, keyed by part of the device's name."""
_RECENT: Final = 20
"""The number of steps over which the rate is averaged; the first step, which compiles kernels, soon drops out."""
_LONGEST: Final = 1800.0
"""Seconds after which a checkpoint is written even before `checkpoint_every` steps."""
_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals after which training ends with the current step; Windows has no SIGHUP."""


def operations_per_token(model: Any) -> int:
    """Count a training step's operations per token: 4 for each weight, and 2 more if the weight is trained."""
    return sum((6 if parameter.requires_grad else 4) * parameter.numel() for parameter in model.parameters())


@contextmanager
def finishing_steps(ranks: Ranks) -> Iterator[list[int]]:
    """Yield a list to which the first stop signal is added, so that the step can finish; a second one acts immediately.

    With several ranks, the first signal acts immediately, because the ranks cannot agree on the last step.
    """
    signals: list[int] = []
    if ranks.count > 1 or threading.current_thread() is not threading.main_thread():
        yield signals
        return
    handlers = {int(number): signal.getsignal(number) for number in _SIGNALS}
    # nohup makes the process ignore SIGHUP, and the signal must stay ignored.
    before = {number: handler for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}

    def on_signal(number: int, _: Any) -> None:
        signals.append(number)
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The trained model, and the number of steps that led to it."""

    model: Any
    """The trained model. If several ranks shared its weights, only the first rank has all of them."""
    steps: int
    """The number of steps that led to these weights; lower than in the recipe if training stopped early."""


def train(
    model: Any,
    data: Data,
    recipe: TrainingRecipe,
    folder: Path,
    *,
    validation: Sequence[Example] = (),
    on_progress: Callable[[Row], None] = lambda row: None,
) -> TrainResult:
    """Train until the last step or an early stop, starting from the last checkpoint if there is one."""
    ranks = joined_ranks()
    engine, checkpoints = Engine(model, recipe, ranks), Checkpoints(folder / "checkpoints", ranks)
    progress = checkpoints.last() or Progress(steps=0, seed=recipe.seed)
    if progress.steps:
        checkpoints.load(engine.optimizer, progress.steps)
        if recipe.token_budget is None and ranks.count == 1:
            engine.budget = progress.budget
    log = folder / TRAINING_LOG
    if ranks.is_first:
        cut_log(log, before=progress.steps)
    device_name = torch.cuda.get_device_name(engine.device) if engine.device.type == "cuda" else ""
    peak = next((peak * ranks.count for part, peak in _PEAKS.items() if part in device_name), None)
    operations, saved_at = operations_per_token(model), time.monotonic()
    recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)
    """The tokens and seconds of the last `_RECENT` steps."""
    with finishing_steps(ranks) as signals:
        while progress.steps < recipe.steps and (recipe.patience is None or progress.worse < recipe.patience):
            number, started = progress.steps, time.perf_counter()
            examples = data.step(number)
            step = engine.step(number, examples)
            seconds = time.perf_counter() - started
            if not math.isfinite(step.answers + (step.replay or 0.0) + step.norm):
                keys = [example.key for example in examples]
                if ranks.is_first:
                    append_row(log, {"step": number, "problem": "not finite", "norm": str(step.norm), "keys": keys})
                raise UserError(
                    f"Step {number + 1} has a loss or a gradient norm that is not finite: loss {step.answers}, norm "
                    f"{step.norm}. Its {len(keys)} examples: {', '.join(keys)}.",
                    hint="This step did not change the weights. Look at the examples, set clip, or lower "
                    "learning_rate.",
                )
            recent.append((step.tokens, seconds))
            recent_seconds = sum(seconds for _, seconds in recent)
            rate = sum(tokens for tokens, _ in recent) / max(recent_seconds, 1e-9)
            row: dict[str, Any] = {
                "step": number,
                **{name: getattr(step, name) for name in ("answers", "replay", "norm")},
                "rate": recipe.rate_at(number),
                **{name: getattr(step, name) for name in ("tokens", "micro_batches")},
                "seconds": round(seconds, 4),
                "tokens_per_second": rate,
                "utilisation": None if peak is None else operations * rate / peak,  # share of the GPUs' peak speed
                "seconds_left": (recipe.steps - number - 1) * recent_seconds / len(recent),
            }
            taken = number + 1
            progress = replace(progress, steps=taken, seconds=progress.seconds + seconds, budget=engine.budget)
            is_last = taken == recipe.steps
            if validation and (is_last or taken % (recipe.validate_every or data.steps_per_epoch) == 0):
                row["validation"] = loss = engine.validate(validation)
                if progress.best is None or loss < progress.best:
                    progress = replace(progress, best=loss, best_steps=taken, worse=0)
                else:
                    progress = replace(progress, worse=progress.worse + 1)
            if ranks.is_first:
                append_row(log, row)
            on_progress(row)
            is_best = recipe.patience is not None and progress.best_steps == taken
            is_late = ranks.minimum(time.monotonic() - saved_at, engine.device) > _LONGEST
            is_due = not is_last and (is_late or taken % recipe.checkpoint_every == 0)
            if is_best or is_due or signals:
                checkpoints.save(engine.optimizer, progress)
                saved_at = time.monotonic()
            if signals:
                raise Interrupted(signals[0])
    steps = progress.steps
    if recipe.patience is not None and progress.best_steps not in (None, steps):
        steps = progress.best_steps or steps
        checkpoints.load(engine.optimizer, steps, kinds=_WEIGHTS)
    engine.close()
    if ranks.count > 1:
        gather(model, ranks)
    return TrainResult(model, steps)
