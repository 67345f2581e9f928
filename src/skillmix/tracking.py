"""Send training curves and scores to the trackers that an experiment lists under `track:`.

A tracker shows data that are also in the run's folder, so its failure never stops a run. Instead, the run logs one
warning and continues without the tracker.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import uuid4

from skillmix.errors import UserError, visible
from skillmix.runs.progress import say
from skillmix.runs.run import Run
from skillmix.scores.cells import CellScore
from skillmix.scores.sentences import scored_run


class Tracker(Protocol):
    """A service or a folder to which curves are sent; a resumed run continues its curves."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Add a point to each curve in `values`."""
        ...

    def end(self) -> None:
        """Write any points that are not written yet."""
        ...


@dataclass(frozen=True, slots=True)
class TrackedPart:
    """A part of a run whose curves belong together: a training run, or the scores."""

    run: str
    name: str
    folder: Path

    def key(self, tracker: str) -> str:
        """Return the part's id in a tracker; a file in the folder stores the id for resumed runs."""
        file = self.folder / f"{tracker}-{self.name}.id"
        if not file.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            file.write_text(uuid4().hex, encoding="utf-8")
        return file.read_text(encoding="utf-8").strip()


class TensorboardFiles:
    """Writes event files; an interrupted training run continues in another file in the same folder."""

    def __init__(self, part: TrackedPart, facts: Mapping[str, str]) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(part.folder / "tensorboard" / part.name))

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Write a scalar for each value, and flush the file, so that the values survive if the process is killed."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self) -> None:
        """Close the file."""
        self._writer.close()


class WandbRun:
    """A run in Weights & Biases, to which only the facts and the values are sent."""

    def __init__(self, part: TrackedPart, facts: Mapping[str, str]) -> None:
        import wandb

        has_key = bool(os.environ.get("WANDB_API_KEY"))
        part.folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "skillmix"),
            name=f"{part.run}/{part.name}",
            group=part.run,
            id=part.key("wandb"),
            resume="allow",
            dir=str(part.folder),
            config=dict(facts),
            # Without a key, `online` would ask for a key in the terminal.
            mode=os.environ.get("WANDB_MODE") or ("online" if has_key else "offline"),
            settings=wandb.Settings(console="off", disable_git=True, save_code=False, silent=True),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Log the values, with the step as an additional value, because resumed training logs some steps again."""
        self._run.log({**values, "step": step})

    def end(self) -> None:
        """Finish the run, and stop its service process, which would ignore a second run with the same id."""
        import wandb

        self._run.finish()
        wandb.teardown()


_LONGEST_FACT = 250


class MlflowRun:
    """A run in MLflow, in the experiment `skillmix` unless MLFLOW_EXPERIMENT_NAME names another."""

    def __init__(self, part: TrackedPart, facts: Mapping[str, str]) -> None:
        from mlflow.tracking import MlflowClient

        folder = part.folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        server = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(server or f"sqlite:///{folder / 'mlflow.db'}")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "skillmix")
        found = self._client.get_experiment_by_name(name)
        files = None if server else (folder / "mlflow-artifacts").as_uri()  # beside the database, or set by the server
        experiment = found.experiment_id if found else self._client.create_experiment(name, files)
        key = part.key("mlflow")
        earlier = self._client.search_runs([experiment], f"tags.skillmix_part = '{key}'", max_results=1)
        tags = {"skillmix_part": key, **{fact: value[:_LONGEST_FACT] for fact, value in facts.items()}}
        run = earlier[0] if earlier else None
        run = run or self._client.create_run(experiment, tags=tags, run_name=f"{part.run}/{part.name}")
        self._run: str = run.info.run_id

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Log the values in one call."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def end(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)


FOLDER: Final = "tracking"
"""The folder inside a run that contains the trackers' files; it may be deleted."""


TRACKERS: Final[dict[str, Callable[[TrackedPart, Mapping[str, str]], Tracker]]] = {
    "tensorboard": TensorboardFiles,
    "wandb": WandbRun,
    "mlflow": MlflowRun,
}
"""The trackers by their names in `track:`; each name is both a package to import and an extra of skillmix."""


def require_trackers(names: Sequence[str]) -> None:
    """Raise an error if a tracker's package is not installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UserError(
            f"`track:` lists packages that are not installed: {', '.join(missing)}.",
            hint=f"Run pip install 'skillmix[{','.join(missing)}]', or remove {', '.join(missing)} from `track:`.",
        )


class Tracking:
    """A context manager that keeps the trackers for one part of a run open."""

    def __init__(self, names: Sequence[str], part: TrackedPart, facts: Mapping[str, str]) -> None:
        self._open: dict[str, Tracker] = {}
        for name in dict.fromkeys(names):
            with self._guarded(name):
                self._open[name] = TRACKERS[name](part, facts)

    def __enter__(self) -> "Tracking":
        return self

    def log(self, values: Mapping[str, object], *, step: int) -> None:
        """Add a point to each curve; values that are not finite numbers are left out."""
        numbers = {name: value for name, value in values.items() if isinstance(value, float | int) and isfinite(value)}
        for name, tracker in list(self._open.items()):
            with self._guarded(name):
                tracker.log(numbers, step=step)

    def __exit__(self, *_: object) -> None:
        for name, tracker in list(self._open.items()):
            with self._guarded(name):
                tracker.end()

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Log a warning and stop using a tracker if it fails, because the run does not need it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a fault in third-party code must not stop hours of training
            self._open.pop(name, None)
            words = visible(f"{type(error).__name__}: {error}".partition("\n")[0][:200])
            say(f"{name} failed, and the run continues without it: {words}")


SCORES = "scores"
"""The name under which trackers show a run's scores."""


def track_scores(run: Run, names: Sequence[str]) -> None:
    """Send a run's scores to its trackers; do nothing if there are no trackers or no scores."""
    points = score_points(scored_run(run).scores) if names and not run.has_outcomes else {}
    if not points:
        return
    facts = {"catalog": run.fact("catalog") or "", "seed": str(run.seed), "prompts": run.fact("prompts") or ""}
    with Tracking(names, TrackedPart(run.name, SCORES, run.path / FOLDER), facts) as tracked:
        for k, values in points.items():
            tracked.log(values, step=k)


def score_points(scores: Iterable[CellScore]) -> dict[int, dict[str, float]]:
    """Map each k to the values and interval ends of its scores; omit scores without a value."""
    points: dict[int, dict[str, float]] = {}
    for score in scores:
        if score.sets != "all" or score.value is None:
            continue
        name = f"{score.metric}/{score.student}/{score.grader}/{score.setting}"
        ends: Mapping[str, float | None] = {"low": score.low, "high": score.high}
        own = points.setdefault(score.k, {})
        own[name] = score.value
        own |= {f"{name}/{end}": value for end, value in ends.items() if value is not None}
    return dict(sorted(points.items()))
