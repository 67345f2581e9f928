"""The command `calibrate`: a grader is asked about texts with known labels, and gets a card."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from skillmix.commands.shared_options import Commands, above_zero, add_command, add_trust_option, positive
from skillmix.commands.streams import print_json
from skillmix.render import plural, wrapped

if TYPE_CHECKING:
    from skillmix.validation.calibration import Calibration, CalibrationPlan


def add_parsers(commands: Commands) -> None:
    """Add the command `calibrate`."""
    parser = add_command(commands, "calibrate", calibrate)
    add_trust_option(parser)
    parser.add_argument("grader", metavar="GRADER", help="a model spec, or rules: to let code grade")
    parser.add_argument(
        "--set",
        required=True,
        metavar="NAME|FILE",
        help="texts with known labels: paper (shipped), a YAML file or a folder of them, or bigbench:TASK",
    )
    parser.add_argument("--catalog", default="paper", metavar="DIR", help="a shipped catalogue or a folder")
    parser.add_argument("--run", metavar="NAME", help="name of the run, or a path to it (default: set and grader)")
    parser.add_argument("--n", type=positive, metavar="N", help="take only N texts of the set, chosen by hash")
    parser.add_argument("--rounds", type=positive, metavar="R", help="gradings of a text, an odd number (default: 3)")
    parser.add_argument("--prompts", default="standard", metavar="DIR", help="a shipped prompt set or a folder")
    parser.add_argument(
        "--variant", metavar="NAME", help="the grader's prompt: grade-NAME.txt of the prompt set (default: gpt)"
    )
    parser.add_argument("--system", metavar="TEXT", help="system text before the grader's prompt (default: none)")
    parser.add_argument("--temperature", type=float, metavar="T", help="of the grader's replies (default: 0.7)")
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="of a reply (default: 1,024)")
    parser.add_argument("--attempts", type=positive, metavar="N", help="calls until a reply is readable (default: 3)")
    parser.add_argument("--concurrency", type=positive, metavar="N", help="simultaneous calls")
    parser.add_argument("--key", metavar="VARIABLE", help="environment variable with the key for the model's address")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-usd", type=above_zero, metavar="X", help="stop before the calls cost more")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="your own price file")
    parser.add_argument(
        "--bigbench", type=Path, metavar="PATH", help="source archive of the package bigbench, or a folder with it"
    )
    parser.add_argument("--dry-run", action="store_true", help="print calls, tokens and cost without calling a model")
    parser.add_argument("--wide", action="store_true", help="with --dry-run: print the whole table")


def calibrate(options: argparse.Namespace) -> int:
    """Ask a grader about texts with known labels, and print its card; run the same command again to continue."""
    from skillmix.validation.calibration import CalibrationWish, planned

    names = ("rounds", "system", "temperature", "max_tokens", "attempts", "concurrency", "key")
    settings = {name: getattr(options, name) for name in names} | {"prompts": options.variant}
    given = {name: value for name, value in settings.items() if value is not None}
    plan = planned(
        CalibrationWish(
            grader={"model": options.grader, **given},
            set=options.set,
            catalog=options.catalog,
            prompts=options.prompts,
            run=options.run,
            size=options.n,
            seed=options.seed,
            max_usd=options.max_usd,
            bigbench=options.bigbench,
        )
    )
    return _dry_run(plan, options) if options.dry_run else _calibrate(plan, options)


def _calibrate(plan: "CalibrationPlan", options: argparse.Namespace) -> int:
    from skillmix.models.local.importing import import_lean
    from skillmix.runs.progress.stopping import signal_of
    from skillmix.steps.calibrating import calibrated
    from skillmix.validation.calibration import card_lines, write_card

    import_lean()
    calibration = calibrated(plan, prices=options.prices)
    for key, problem in list(calibration.counts.failed.items())[:1]:
        failed = plural(len(calibration.counts.failed), "call")
        print(f"failed: {failed}, such as {key}: {problem.reason}", file=sys.stderr)
    stopped = calibration.counts.stopped
    signal = signal_of(stopped)
    if signal is not None:
        print(f"interrupted; all answers are in {calibration.run.path}: run the same command to go on", file=sys.stderr)
        return 128 + signal
    if stopped is not None:
        print(f"stopped: {stopped.value}; raise it and run again to go on", file=sys.stderr)
    page = write_card(calibration)
    if options.json:
        print_json(calibration.as_json())
    else:
        print(card_lines(calibration))
    sys.stdout.flush()
    print(f"card: open {page} in a browser", file=sys.stderr)
    return _status(calibration)


def _status(calibration: "Calibration") -> int:
    return 0 if calibration.is_complete else 1


def _dry_run(plan: "CalibrationPlan", options: argparse.Namespace) -> int:
    from skillmix.steps.calibrating import estimated
    from skillmix.steps.estimates import budget_warnings, estimate_notes, estimate_table

    estimates = estimated(plan, prices=options.prices)
    if options.json:
        print_json([asdict(estimate) for estimate in estimates])
    else:
        print(estimate_table(estimates, wide=options.wide))
        for note in estimate_notes(estimates):
            print(f"\n{wrapped(note)}")
    sys.stdout.flush()
    for warning in budget_warnings(estimates, plan.experiment.budget):
        print(f"warning: {warning}", file=sys.stderr)
    return 0
