"""A training run: steps, checkpoints, validation, and a row of training.jsonl for every step."""

import json
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from skillmix.errors import Interrupted, UserError
from skillmix.training.checkpoints import Checkpoints, Progress
from skillmix.training.data.examples import Data, Example
from skillmix.training.ranks import Ranks, gather, joined_ranks
from skillmix.training.recipe import TrainingRecipe
from skillmix.training.step.engine import Engine, OptimizerStep

_PEAKS: Final = {"H100": 989e12, "H200": 989e12, "H800": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12}
"""bfloat16 operations a second without sparsity, as the makers state them, by a part of the device's name."""


_RECENT: Final = 20
"""Steps that the rate is taken over; the very first, in which kernels are compiled, is soon forgotten."""


class Pace(NamedTuple):
    """The rate at some moment."""

    tokens_per_second: float
    utilisation: float | None
    """Part of what the GPUs could compute at most; unknown for a device without a stated figure."""
    seconds_left: float


class Stopwatch:
    """Keeps the last steps' times."""

    def __init__(self, model: Any, *, steps: int, ranks: int) -> None:
        self._steps = steps
        self._operations = operations_a_token(model)
        peak = peak_of(next(model.parameters()).device)
        self._peak = None if peak is None else peak * ranks
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def after(self, step: int, *, tokens: int, seconds: float) -> Pace:
        """Note a step, counted from 0."""
        self._recent.append((tokens, seconds))
        taken = sum(seconds for _, seconds in self._recent)
        rate = sum(tokens for tokens, _ in self._recent) / max(taken, 1e-9)
        return Pace(
            tokens_per_second=rate,
            utilisation=None if self._peak is None else self._operations * rate / self._peak,
            seconds_left=(self._steps - step - 1) * taken / len(self._recent),
        )


def operations_a_token(model: Any) -> int:
    """Two for each weight forward, two backward, and two more for the gradient of each weight that is trained."""
    return sum((6 if parameter.requires_grad else 4) * parameter.numel() for parameter in model.parameters())


def peak_of(device: torch.device) -> float | None:
    """What a device can do at most, if that is known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), None)


_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Windows has no SIGHUP."""


@dataclass(slots=True)
class Interruption:
    """Whether somebody wants the run to stop."""

    number: int | None = None
    """The signal that said so."""

    @property
    def is_wanted(self) -> bool:
        """Whether to stop after this step."""
        return self.number is not None


@contextmanager
def finishing_steps(ranks: Ranks) -> Iterator[Interruption]:
    """Take note of the first signal, and obey the second at once; several ranks cannot agree on a step, and stop."""
    found = Interruption()
    if ranks.count > 1 or threading.current_thread() is not threading.main_thread():
        yield found
        return
    known = {int(number): signal.getsignal(number) for number in _SIGNALS}
    before = {n: handler for n, handler in known.items() if handler not in (None, signal.SIG_IGN)}  # nohup ignores one

    def note(number: int, _: Any) -> None:
        found.number = number
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, note)
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


LOG: Final = "training.jsonl"
_LONGEST: Final = 1800.0
"""Seconds after which a checkpoint is written, however many steps it is still away."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run made."""

    model: Any
    """On the first rank, the trained model; the others have none of its weights if these were divided."""
    steps: int
    """After so many steps it was like this: fewer than asked for if it stopped early."""


def train(  # noqa: PLR0913, each is a part of its own
    model: Any,
    data: Data,
    recipe: TrainingRecipe,
    folder: Path,
    *,
    validation: Sequence[Example] | None,
    on_progress: Callable[[Row], None],
    resume: bool,
) -> TrainResult:
    """Train to the end, from the last checkpoint if there is one and it is wanted."""
    return _Run(model, data, recipe, folder, validation).to_the_end(on_progress, resume=resume)


class _Run:
    def __init__(
        self, model: Any, data: Data, recipe: TrainingRecipe, folder: Path, validation: Sequence[Example] | None
    ) -> None:
        self._ranks = joined_ranks()
        self._model, self._data, self._recipe, self._validation = model, data, recipe, validation
        self._stopwatch = Stopwatch(model, steps=recipe.steps, ranks=self._ranks.count)
        self._engine = Engine(model, recipe, self._ranks)
        self._checkpoints = Checkpoints(folder / "checkpoints", self._ranks)
        self._log = folder / LOG
        self._progress = Progress(steps=0, seed=recipe.seed)
        self._saved_at = time.monotonic()

    def to_the_end(self, on_progress: Callable[[Row], None], *, resume: bool) -> TrainResult:
        if resume:
            self._resume()
        _cut_log(self._log, before=self._progress.steps, ranks=self._ranks)
        with finishing_steps(self._ranks) as interruption:
            while self._progress.steps < self._recipe.steps and not self._has_lost_patience():
                row = self._step(self._progress.steps)
                self._write(row)
                on_progress(row)
                if interruption.is_wanted or self._is_time_to_save():
                    self._checkpoints.save(self._engine.optimizer, self._progress)
                    self._saved_at = time.monotonic()
                if interruption.number is not None:
                    raise Interrupted(interruption.number)
        return self._result()

    def _resume(self) -> None:
        found = self._checkpoints.last()
        if found is None:
            return
        self._checkpoints.load(self._engine.optimizer, found.steps)
        self._progress = found
        if self._recipe.token_budget is None and self._ranks.count == 1:
            self._engine.budget = found.budget

    def _step(self, number: int) -> dict[str, Any]:
        started = time.perf_counter()
        examples = self._data.step(number)
        step = self._engine.step(number, examples)
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
        is_long = self._ranks.least(time.monotonic() - self._saved_at, self._engine.device) > _LONGEST
        is_due = is_long or steps % self._recipe.checkpoint_every == 0
        return is_best or (is_due and steps < self._recipe.steps)

    def _stop_if_not_finite(self, number: int, step: OptimizerStep, examples: Sequence[Example]) -> None:
        if math.isfinite(step.answers + (step.replay or 0.0) + step.norm):
            return
        keys = [example.key for example in examples]
        self._write({"step": number, "problem": "not finite", "norm": str(step.norm), "keys": keys})
        raise UserError(
            f"Step {number + 1}: loss {step.answers}, gradient norm {step.norm}. Its {len(keys)} examples: "
            f"{', '.join(keys)}.",
            hint="The weights are as before this step. Look at the examples, set clip, or lower learning_rate.",
        )

    def _write(self, row: Row) -> None:
        if self._ranks.is_first:
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(row) + "\n")

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


def _cut_log(log: Path, *, before: int, ranks: Ranks) -> None:
    """Keep the rows of the steps that count; those after the last checkpoint are taken again."""
    if ranks.is_first:
        lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
        kept = [line for line in lines if (number := _step_of(line)) is not None and number < before]
        partial = log.with_name(f"{log.name}.partial")
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        partial.replace(log)


def _step_of(line: str) -> int | None:
    try:
        found = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, int) else None
