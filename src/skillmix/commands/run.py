"""Commands that make an experiment's calls."""

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from skillmix.commands.report import tell_pages
from skillmix.commands.streams import print_json, program, score_rows

if TYPE_CHECKING:
    from skillmix.scores.scoring import ScoredRun
    from skillmix.steps.run import RunResult


def run(options: argparse.Namespace) -> int:
    """Every step of an experiment, or those of one stage."""
    from skillmix.commands.actions.next_commands import run_name
    from skillmix.scores.scoring import ScoredRun, scored_run
    from skillmix.steps.run import Wanted, run_experiment

    if options.dry_run:
        return dry_run(options)
    wanted = Wanted(stage=options.stage, step=options.step)
    result = run_experiment(options.experiment, prices=options.prices, changes=options.set, wanted=wanted)
    for line in result.failure_lines():
        print(f"failed: {line}", file=sys.stderr)
    if result.is_interrupted:
        print(f"interrupted; all answers are in {result.run.path}: run the same command to go on", file=sys.stderr)
        return 128 + (result.signal or 0)
    if result.stopped:
        print(f"stopped: {result.stopped}; raise it and run again to go on", file=sys.stderr)
    scored = ScoredRun([], [])
    if options.stage == "dataset":
        made = {name: made.as_json() for name, made in result.datasets.items()}
        _print_datasets(made, as_json=options.json)
    else:
        scored = scored_run(result.run)
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
    from skillmix.steps.dry_run import estimate_table, estimates

    found = estimates(options.experiment, prices=options.prices, changes=options.set)
    if options.json:
        return print_json([asdict(estimate) for estimate in found])
    rows = [(e.step, e.model, e.calls, e.input_tokens, e.output_tokens, e.cost_usd, e.gpu_hours) for e in found]
    print(estimate_table(rows))
    if any(e.gpu_hours != 0 for e in found):
        print(f"\n{NOTE}")
    return 0
