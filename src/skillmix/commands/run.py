"""Commands that run an experiment: `run`, those for the steps of one stage, and `merge`."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from skillmix.commands.results import print_outcomes, print_scores
from skillmix.commands.shared import (
    DRY_RUN,
    PRICES,
    TRUST,
    WIDE_DRY_RUN,
    OptionGroup,
    command,
    flag,
    number,
    option,
    positive,
    print_json,
    print_notes,
    program,
)
from skillmix.errors import LOG
from skillmix.render import plural, wrapped

IN_BATCHES: Final = 3
"""The exit status of a command that leaves batches at a provider."""
EXPERIMENT: Final = option(
    "experiment", "experiment file, or a shipped experiment such as smoke", type=Path, metavar="EXPERIMENT.yaml"
)
CHANGES: Final = (
    option("--set", "change a value of the experiment; repeatable", action="append", default=[], metavar="A.B=C"),
    DRY_RUN,
    WIDE_DRY_RUN,
    PRICES,
    TRUST,
)
STEP: Final = option("--step", "run only this step", metavar="NAME")
ON: Final = option("--on", "make calls from Ray workers (cluster at RAY_ADDRESS, or a new local one)", choices=["ray"])
_BATCHES: Final = (
    OptionGroup(
        (
            flag("--no-wait", "send and read batches, then exit with status 3 if some are unfinished"),
            option(
                "--wait",
                "stop waiting for batches after H hours without a result (default 26)",
                type=number(float, "a number of hours from 0 to 1000", lambda hours: 0 <= hours <= 1000),
                metavar="HOURS",
            ),
        )
    ),
    flag("--forget-batches", "repeat the calls of all batches, although the provider may bill twice"),
)
"""The options for models with `batch: true`."""


@command("run", EXPERIMENT, *CHANGES, ON, *_BATCHES, stage=None, step=None)
def run(options: argparse.Namespace) -> int:
    """Run every step of an experiment; rerun the same command to continue."""
    if options.dry_run:
        return dry_run(options)
    from skillmix.commands.closing import Ended, next_commands, run_cost, run_name
    from skillmix.runs.batches.step_batches import WAIT, BatchWishes, parts_in_batches
    from skillmix.runs.scheduler import StopReason
