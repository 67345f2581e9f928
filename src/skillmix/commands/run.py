"""Commands that make an experiment's calls."""

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from skillmix.commands.report import tell_pages
from skillmix.commands.streams import print_json, program, score_rows

if TYPE_CHECKING:
    from skillmix.scores.scoring import ScoredRun
    from skillmix.steps.step_kind import RunResult


def run(options: argparse.Namespace) -> int:
    """Every step of an experiment, or those of one stage."""
    from skillmix.commands.actions.next_commands import run_name
    from skillmix.scores.scoring import ScoredRun, scored_run
    from skillmix.steps.run import StepFilter, run_experiment

    if options.dry_run:
        return dry_run(options)
    wanted = StepFilter(stage=options.stage, step=options.step)
    result = run_experiment(options.experiment, prices=options.prices, changes=options.set, wanted=wanted)
    for line in result.failure_lines():
        print(f"failed: {line}", file=sys.stderr)
    if result.is_interrupted:
        print(f"interrupted; all answers are in {result.run.path}: run the same command to go on", file=sys.stderr)
        return 128 + (result.signal or 0)
    if result.stopped:
        print(f"stopped: {result.stopped.value}; raise it and run again to go on", file=sys.stderr)
    scored = ScoredRun([], [])
    if options.stage == "dataset":
        made = {name: made.as_json() for name, made in result.datasets.items()}
        _print_datasets(made, as_json=options.json)
    else:
        scored = scored_run(str(result.run.path))
        _print_scores(scored, run=run_name(result.run), as_json=options.json)
    ungraded = result.ungraded(scored.scores)
    if ungraded and result.is_complete:
        print(f"ungraded: {ungraded} texts, as too many of their grades cannot be read", file=sys.stderr)
    _close(options, result, scored)
    return 0 if result.is_complete and not ungraded else 1


def _print_scores(scored: "ScoredRun", *, run: str, as_json: bool) -> None:
    if as_json:
        print_json(score_rows(scored.scores))
    elif scored.scores:
        from skillmix.commands.pages.closing import shown_lines
        from skillmix.scores.table import NOTE, score_table

        print(score_table(scored.scores))
        print(f"\n{NOTE}")
        shown = shown_lines(scored.changes, scored.scores, run=run)
        if shown:
            print("\n" + "\n".join(shown))


def _close(options: argparse.Namespace, result: "RunResult", scored: "ScoredRun") -> None:
    """What it cost, what to open and, for people, what to try next."""
    from skillmix.commands.actions.next_commands import Ended, next_commands
    from skillmix.commands.pages.closing import command_lines, cost_line

    sys.stdout.flush()
    cost = cost_line(
        called=result.called,
        found=result.found,
        seconds=result.seconds,
        cpu_seconds=result.cpu_seconds,
        cost_usd=result.cost_usd,
    )
    print(f"{cost}; all in {result.run.path}", file=sys.stderr)
    tell_pages(result.reports)
    if not options.json:
        ended = Ended(result.run, options.experiment, options.set, scored, has_report=bool(result.reports))
        for line in command_lines(next_commands(ended, program=program())):
            print(line, file=sys.stderr)


def _print_datasets(made: dict[str, dict[str, object]], *, as_json: bool) -> None:
    if as_json:
        print_json(made)
    else:
        print("\n".join(str(told["folder"]) for told in made.values()))


def dry_run(options: argparse.Namespace) -> int:
    """What it would ask for."""
    from skillmix.experiment.gpu_hours import NOTE
    from skillmix.steps import run as steps
    from skillmix.steps.estimates import estimate_table

    estimates = steps.dry_run(options.experiment, prices=options.prices, changes=options.set)
    if options.json:
        return print_json([asdict(estimate) for estimate in estimates])
    print(estimate_table(estimates))
    if any(estimate.gpu_hours != 0 for estimate in estimates):
        print(f"\n{NOTE}")
    return 0
