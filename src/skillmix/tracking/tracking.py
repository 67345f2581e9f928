"""Send training curves and scores to trackers, if an experiment names some; without `track:` nothing here is used.

A tracker shows what a run has on disk anyway, so its failure never stops a run: it gets one warning, and the run goes
on without it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import isfinite
from typing import Final, NamedTuple

from skillmix.errors import UserError, visible
from skillmix.runs.progress.terminal import say
from skillmix.tracking.mlflow_run import MlflowRun
from skillmix.tracking.tensorboard_files import TensorboardFiles
from skillmix.tracking.tracker import TrackedPart, Tracker
from skillmix.tracking.wandb_run import WandbRun

FOLDER: Final = "tracking"
"""The folder of a run with the trackers' files; it may be deleted."""


class TrackerKind(NamedTuple):
    """A row of the table of trackers."""

    package: str
    """Imported when the tracker is opened."""
    open: Callable[[TrackedPart], Tracker]


TRACKERS: Final[dict[str, TrackerKind]] = {
    "tensorboard": TrackerKind("tensorboard", TensorboardFiles),
    "wandb": TrackerKind("wandb", WandbRun),
    "mlflow": TrackerKind("mlflow", MlflowRun),
}
"""The trackers by the names that `track:` takes; each name is also that of an extra of this package."""


def require_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker whose package is not installed."""
    missing = [name for name in names if find_spec(TRACKERS[name].package) is None]
    if missing:
        packages = ", ".join(TRACKERS[name].package for name in missing)
        raise UserError(
            f"track: names {', '.join(missing)}, but these packages are not installed: {packages}.",
            hint=f"pip install 'skillmix[{','.join(missing)}]', or leave it out of track.",
        )


class Tracking:
    """The trackers of one part of a run."""

    def __init__(self) -> None:
        self._open: dict[str, Tracker] = {}

    def begin(self, names: Sequence[str], part: TrackedPart, facts: Mapping[str, str]) -> None:
        """Open the trackers."""
        for name in dict.fromkeys(names):
            with self._guarded(name):
                tracker = TRACKERS[name].open(part)
                tracker.begin(facts)
                self._open[name] = tracker

    def log(self, values: Mapping[str, object], *, step: int) -> None:
        """Add a point to each curve; values that are no finite numbers are left out."""
        numbers = {name: value for name, value in values.items() if isinstance(value, float | int) and isfinite(value)}
        for name, tracker in list(self._open.items()):
            with self._guarded(name):
                tracker.log(numbers, step=step)

    def end(self) -> None:
        """Close the trackers."""
        for name, tracker in list(self._open.items()):
            with self._guarded(name):
                tracker.end()
        self._open.clear()

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Go on without a tracker that fails: its server may be gone, and the run does not need it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # other people's code, and hours of training around it
            self._open.pop(name, None)
            words = visible(f"{type(error).__name__}: {error}".partition("\n")[0][:200])
            say(f"{name} failed, and the run goes on without it: {words}")


@contextmanager
def tracking(names: Sequence[str], part: TrackedPart, facts: Mapping[str, str]) -> Iterator[Tracking]:
    """The trackers of a part of a run, closed at the end of the block."""
    opened = Tracking()
    opened.begin(names, part, facts)
    try:
        yield opened
    finally:
        opened.end()
