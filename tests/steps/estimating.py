"""Estimate an experiment file, as `--dry-run` does."""

from collections.abc import Sequence
from pathlib import Path

from skillmix.experiment.experiment import load_experiment
from skillmix.steps.estimates import CallEstimate
from skillmix.steps.run import estimate_experiment


def dry_run(path: Path, *, prices: Path | None, changes: Sequence[str] = ()) -> list[CallEstimate]:
    """The estimates of every step of a file with changed settings."""
    return estimate_experiment(load_experiment(path, changes=changes), prices=prices)
