"""Commands that run an experiment: `run`, and those for the steps of one stage; and `merge`."""

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skillmix.commands.shared import (
    Commands,
    add_command,
    add_trust_option,
    positive,
    print_first,
    print_json,
    print_notes,
    print_outcomes,
    print_result,
    print_scores,
    program,
    score_rows,
)
from skillmix.errors import LOG
from skillmix.render import plural, wrapped

if TYPE_CHECKING:
    from skillmix.runs.batches.step_batches import BatchWishes
    from skillmix.scores.scoring import ScoredRun
    from skillmix.steps.step_kind import RunResult
    from skillmix.training.job_run import ShownConversation


IN_BATCHES: Final = 3
"""The exit status of a command that left batches under way."""


def add_parsers(commands: Commands) -> None:
    """Add the commands `run`, `generate`, `grade` and `evaluate`."""
    parser = add_command(commands, "run", run)
    add_experiment_options(parser)
    parser.set_defaults(stage=None, step=None)
    add_on_option(parser)
    _add_batch_options(parser)
    for stage, command in (("generate", generate), ("grade", grade), ("evaluate", evaluate)):
        parser = add_command(commands, stage, command)
        add_experiment_options(parser)
        add_step_option(parser)
        add_on_option(parser)
        _add_batch_options(parser)
        parser.set_defaults(stage=stage)


def add_experiment_options(parser: argparse.ArgumentParser) -> None:
    """Add an experiment file, and the options of every command that runs one."""
    parser.add_argument(
        "experiment", type=Path, metavar="EXPERIMENT.yaml", help="a file, or an experiment that ships, such as smoke"
    )
    add_change_options(parser)


def add_change_options(parser: "argparse._ActionsContainer") -> None:
    """Add the options that change an experiment, estimate it, or price it."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="change a value of the experiment; may be repeated"
    )
    parser.add_argument("--dry-run", action="store_true", help="print calls, tokens and cost without calling a model")
    parser.add_argument("--wide", action="store_true", help="with --dry-run: print the whole table")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="your own price file")
    add_trust_option(parser)


def add_step_option(parser: "argparse._ActionsContainer") -> None:
    """Add the option that chooses one step."""
    parser.add_argument("--step", metavar="NAME", help="only the step with this name")


def add_on_option(parser: "argparse._ActionsContainer") -> None:
    """Add the option that chooses the machines that make the calls."""
    parser.add_argument(
        "--on",
        choices=["ray"],
        help="let workers on a Ray cluster make the calls: that of RAY_ADDRESS, or a new one here",
    )


def _add_batch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for models with `batch: true`."""
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "--no-wait",
        action="store_true",
        help="send and read batches, then leave with exit status 3 if some are under way; run again to go on",
    )
    waiting.add_argument(
        "--wait",
        type=_hours,
        metavar="HOURS",
        help="leave batches in the same way after so many hours without a result (default 26)",
    )
    parser.add_argument(
        "--forget-batches",
        action="store_true",
        help="make the calls of all batches of the run again, although the provider may bill them twice",
    )


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = -1.0
    if not 0 <= hours <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours from 0 to 1000")
    return hours


def generate(options: argparse.Namespace) -> int:
    """Run the generate steps of an experiment: students write texts."""
    return run(options)


def grade(options: argparse.Namespace) -> int:
    """Run the grade steps of an experiment: graders vote on existing texts."""
    return run(options)


def evaluate(options: argparse.Namespace) -> int:
    """Run the evaluate steps of an experiment: students write texts, and graders vote on them."""
    return run(options)


def run(options: argparse.Namespace) -> int:
    """Run every step of an experiment; run the same command again to continue."""
    if options.dry_run:
        return dry_run(options)
    from skillmix.commands.closing import run_name
    from skillmix.models.local.importing import import_lean
    from skillmix.scores.scoring import ScoredRun, scored_run
    from skillmix.steps.run import StepFilter, run_experiment

    import_lean()
    wanted = StepFilter(stage=options.stage, step=options.step)
    result = run_experiment(
        options.experiment,
        prices=options.prices,
        changes=options.set,
        wanted=wanted,
        on_ray=getattr(options, "on", None) == "ray",
        batches=_batch_wishes(options),
    )
    for line in result.failure_lines():
        LOG.warning(f"failed: {line}")
    left = _left_early(result)
    if left is not None:
        return left
    if result.stopped:
        LOG.warning(f"stopped: {result.stopped.value}; raise it and run again to go on")
    scored = ScoredRun([], [], [])
    undecided = 0
    if options.stage == "dataset":
        written = {name: dataset.as_json() for name, dataset in result.datasets.items()}
        _print_datasets(written, as_json=options.json)
    elif result.run.has_outcomes:
        named = print_outcomes(result.run, name=run_name(result.run), as_json=options.json)
        undecided = result.undecided(named)
    else:
        scored = scored_run(result.run)
        print_notes(scored.notes)
        _print_scores(scored, run=run_name(result.run), as_json=options.json)
    ungraded = result.ungraded(scored.scores)
    if ungraded and result.has_all_texts:
        whose = "its" if ungraded == 1 else "their"
        LOG.warning(f"ungraded: {plural(ungraded, 'text')}, as too many of {whose} grades cannot be read")
    if undecided and result.has_all_texts:
        LOG.warning(f"undecided: {plural(undecided, 'text')}, as grades cannot be read or have no majority")
    _close(options, result, scored)
    return 0 if result.is_complete and not ungraded and not undecided else 1


def _left_early(result: "RunResult") -> int | None:
    """The exit status of a run that left calls under way, after a line on how to go on; None if it did not."""
    if result.is_interrupted:
        LOG.warning(f"interrupted; all answers are in {result.run.path}: run the same command to go on")
        return 128 + (result.signal or 0)
    if not result.has_batches:
        return None
    from skillmix.runs.batches.step_batches import parts_in_batches

    for part in parts_in_batches(result.run):
        LOG.warning(f"waiting: {part.in_words}")
    LOG.info(
        f"batches are under way; all answers are in {result.run.path}: run the same command again to read them and go "
        "on"
    )
    return IN_BATCHES


def _batch_wishes(options: argparse.Namespace) -> "BatchWishes":
    from skillmix.runs.batches.step_batches import WAIT, BatchWishes

    hours = getattr(options, "wait", None)
    wait = 0.0 if getattr(options, "no_wait", False) else WAIT if hours is None else 3600 * hours
    return BatchWishes(wait, forgets=getattr(options, "forget_batches", False))


def _print_scores(scored: "ScoredRun", *, run: str, as_json: bool) -> None:
    if as_json:
        print_json(score_rows(scored.scores))
    elif scored.scores:
        print_first(scored)
        print_scores(scored.scores, run=run)
        print_result(scored, run=run)


def _close(options: argparse.Namespace, result: "RunResult", scored: "ScoredRun") -> None:
    """Print cut replies, what steps wait for, the cost, the report and, without `--json`, commands to try next."""
    from skillmix.commands.closing import Ended, command_lines, cost_line, next_commands
    from skillmix.scores.table import cut_lines

    sys.stdout.flush()
    for line in cut_lines(scored.scores):
        LOG.warning(f"cut: {line}")
    for line in result.waiting_lines():
        LOG.warning(f"missing: {line}")
    cost = cost_line(
        called=result.called,
        found=_found(result),
        seconds=result.seconds,
        cpu_seconds=sum(os.times()[:4]),
        cost_usd=result.cost_usd,
    )
    LOG.info(f"{cost}; all in {result.run.path}")
    for page in result.reports:
        LOG.info(f"report: open {page} in a browser")
    if not options.json:
        ended = Ended(result.run, options.experiment, options.set, scored, has_report=bool(result.reports))
        for line in command_lines(next_commands(ended, program=program())):
            LOG.info(line)


def _found(result: "RunResult") -> int:
    """Calls that the journal had before; two steps that use one call count it twice, and here it counts once."""
    # One step finds no call twice, and a run that was finished before ends without a look into its journal.
    if not result.found or len(result.counts) < 2 or result.counts.keys() <= result.taken:
        return result.found
    with result.run.read() as journal:
        return min(result.found, max(0, journal.size() - result.called))


def _print_datasets(written: dict[str, dict[str, object]], *, as_json: bool) -> None:
    if as_json:
        print_json(written)
    else:
        print("\n".join(str(dataset["folder"]) for dataset in written.values()))


def dry_run(options: argparse.Namespace) -> int:
    """Print the calls, tokens and cost of an experiment without running it."""
    from skillmix.experiment.costs import NOTE
    from skillmix.experiment.experiment import load_experiment
    from skillmix.steps.estimates import budget_warnings, estimate_notes, estimate_table
    from skillmix.steps.run import estimate_experiment, lacks_here

    experiment = load_experiment(options.experiment, changes=options.set)
    estimates = estimate_experiment(experiment, prices=options.prices)
    if options.json:
        print_json([asdict(estimate) for estimate in estimates])
    else:
        print(estimate_table(estimates, wide=options.wide))
        has_hours = any(estimate.gpu_hours != 0 for estimate in estimates)
        for note in [*estimate_notes(estimates), *([NOTE] if has_hours else [])]:
            print(f"\n{wrapped(note)}")
        if not options.wide:
            print("\nMore: --wide for the tokens and what the expectation comes from; --json")
    sys.stdout.flush()
    lacking = lacks_here(experiment, calls_here=getattr(options, "on", None) is None)
    for warning in (*budget_warnings(estimates, experiment.budget), *lacking):
        LOG.warning(f"warning: {warning}")
    return 0


def add_training(commands: Commands) -> None:
    """Add the commands `train` and `merge`."""
    parser = add_command(commands, "train", train)
    add_experiment_options(parser)
    add_step_option(parser)
    parser.add_argument(
        "--show-mask", action="store_true", help="print conversations token by token and mark the trained tokens"
    )
    parser.add_argument("--n", type=positive, default=1, help="number of conversations of --show-mask (default 1)")

    parser = add_command(commands, "merge", merge, has_json=False)
    parser.add_argument("model", metavar="MODEL+ADAPTER", help="such as local:PATH+ADAPTER")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a folder that does not exist yet")


def train(options: argparse.Namespace) -> int:
    """Run the train steps of an experiment: fine-tune models on data sets."""
    if options.show_mask:
        return _show_mask(options)
    if options.dry_run:
        return dry_run(options)
    from skillmix.steps.run import train_steps
    from skillmix.training.job import is_first_rank

    trained = train_steps(options.experiment, changes=options.set, only=options.step)
    if not is_first_rank():
        return 0
    if options.json:
        return print_json([{**asdict(one), "folder": str(one.folder)} for one in trained])
    for one in trained:
        print(one.folder)
    return 0


def merge(options: argparse.Namespace) -> int:
    """Merge a model and its adapter into one checkpoint."""
    from skillmix.training.saving import merge_adapters

    print(merge_adapters(options.model, options.output))
    return 0


def _show_mask(options: argparse.Namespace) -> int:
    from skillmix.training.job_run import shown_masks

    shown = list(shown_masks(options.experiment, changes=options.set, only=options.step, count=options.n))
    if options.json:
        return print_json([asdict(conversation) for conversation in shown])
    print("\n\n".join(map(mask_page, shown)))
    return 0


_MARK: Final = "█"


def mask_page(shown: "ShownConversation") -> str:
    """One line for each token of a conversation: its position, its id, a mark if it is trained, and its text."""
    trained = sum(token.is_trained for token in shown.tokens)
    lines = [f"{shown.step}: {shown.key}: {len(shown.tokens)} tokens, {trained} of them trained ({_MARK})"]
    lines += [
        f"{position:>6} {token.id:>7} {_MARK if token.is_trained else ' '} {_quoted(token.text)}"
        for position, token in enumerate(shown.tokens)
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Quote a token, so that its blanks show and no character of it acts on a terminal."""
    return (
        "'"
        + "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
        + "'"
    )
