"""Commands that run an experiment: `run`, the commands for the steps of one stage, and `merge`."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Final

from skillmix.commands import shared as cli
from skillmix.commands.results import print_outcomes, print_scores
from skillmix.errors import LOG
from skillmix.render import dollars, duration, plural, whole, wrapped

if TYPE_CHECKING:
    from skillmix.experiment.experiment import BudgetSettings
    from skillmix.runs.run import Run
    from skillmix.scores.sentences import ScoredRun
    from skillmix.steps.estimates import CallEstimate
    from skillmix.steps.step_kind import RunResult

IN_BATCHES: Final = 3
"""The exit status of a command that ends before all its batches are finished."""
EXPERIMENT: Final = cli.option(
    "experiment", "experiment file, or name of a shipped experiment such as smoke", type=Path, metavar="EXPERIMENT.yaml"
)
CHANGES: Final = (
    cli.option("--set", "change a value of the experiment; repeatable", action="append", default=[], metavar="A.B=C"),
    cli.DRY_RUN,
    cli.WIDE_DRY_RUN,
    cli.PRICES,
    cli.TRUST,
)
STEP: Final = cli.option("--step", "run only this step", metavar="NAME")
ON: Final = cli.option("--on", "make calls from Ray workers (at RAY_ADDRESS, or started here)", choices=["ray"])
_HOURS: Final = cli.number(float, "a number of hours from 0 to 1000", lambda hours: 0 <= hours <= 1000)
_BATCHES: Final = (
    cli.either(
        cli.flag("--no-wait", "submit and collect batches, then exit with status 3 if any are unfinished"),
        cli.option(
            "--wait", "hours to wait for the next result of a batch (default: 26)", type=_HOURS, metavar="HOURS"
        ),
    ),
    cli.flag("--forget-batches", "resubmit the calls of all batches, although the provider may bill them twice"),
)
"""The options for models with `batch: true`."""


@cli.command("run", EXPERIMENT, *CHANGES, ON, *_BATCHES, stage=None, step=None)
def run(options: argparse.Namespace) -> int:
    """Run every step of an experiment. Rerun the same command to continue."""
    if options.dry_run:
        return dry_run(options)
    from skillmix.runs.batches.step_batches import WAIT, BatchWishes
    from skillmix.runs.scheduler import StopReason
    from skillmix.runs.texts import keep_table
    from skillmix.scores.sentences import ScoredRun, scored_run
    from skillmix.scores.status import parts_in_batches
    from skillmix.scores.table import cut_lines
    from skillmix.steps.run import StepFilter, run_experiment

    wait = 0.0 if options.no_wait else WAIT if options.wait is None else 3600 * options.wait
    result = run_experiment(
        options.experiment,
        prices=options.prices,
        changes=options.set,
        wanted=StepFilter(stage=options.stage, step=options.step),
        on_ray=options.on == "ray",
        batches=BatchWishes(wait, forgets=options.forget_batches),
    )
    name = run_name(result.run)
    for line in result.failure_lines():
        LOG.warning(f"failed: {line}")
    if result.stopped is StopReason.BATCHES:
        for part in parts_in_batches(result.run):
            LOG.warning(f"waiting: {part.in_words}")
        LOG.info(f"batches are unfinished; all replies are saved in {result.run.path}; rerun the command to continue")
        return IN_BATCHES
    signal_status = cli.say_why_stopped(result.stopped, result.run.path)
    if signal_status is not None:
        return signal_status
    scored = ScoredRun([], [], [])
    undecided = 0
    if options.stage == "dataset" and options.json:
        cli.print_json({name: dataset.as_json() for name, dataset in result.datasets.items()})
    elif options.stage == "dataset":
        print("\n".join(str(dataset.as_json()["folder"]) for dataset in result.datasets.values()))
    elif result.run.has_outcomes:
        undecided = result.undecided(print_outcomes(result.run, name=name, as_json=options.json))
    else:
        scored = scored_run(result.run)
        cli.print_notes(scored.notes)
        if scored.scores or options.json:
            print_scores(scored, run=name, as_json=options.json)
    if options.stage != "dataset" and result.is_complete:
        keep_table(result.run)
    ungraded = result.ungraded(scored.scores)
    if ungraded and result.has_all_texts:
        LOG.warning(f"ungraded: {plural(ungraded, 'text')} with too many unparseable grades")
    if undecided and result.has_all_texts:
        LOG.warning(f"undecided: {plural(undecided, 'text')} with unparseable grades or without a majority")
    sys.stdout.flush()
    for line in cut_lines(scored.scores):
        LOG.warning(f"cut: {line}")
    for step, lines in result.waiting.items():
        for line in lines:
            LOG.warning(f"missing: {step}: {line}")
    LOG.info(f"{run_cost(result)}; all in {result.run.path}")
    for page in result.reports:
        LOG.info(f"report: open {page} in a browser")
    if not options.json:
        LOG.info("try next:")
        for line, about in next_commands(result, scored, options.experiment, options.set):
            LOG.info(f"  {line}  # {about}")
    return 0 if result.is_complete and not ungraded and not undecided else 1


for _stage, _about in {
    "generate": "Run the generate steps of an experiment: students write texts.",
    "grade": "Run the grade steps of an experiment: graders vote on existing texts.",
    "evaluate": "Run the evaluate steps of an experiment: students write texts, and graders vote on them.",
}.items():
    cli.command(_stage, EXPERIMENT, *CHANGES, STEP, ON, *_BATCHES, about=_about, stage=_stage)(run)


def run_cost(result: "RunResult") -> str:
    """Describe the cost of a run that has just ended, including the CPU time of its child processes."""
    found = result.found
    # A call that two steps share is counted twice. A run that was already finished does not read its journal.
    if found and len(result.counts) > 1 and not result.counts.keys() <= result.taken:
        with result.run.read() as journal:
            found = min(found, max(0, journal.extent()[0] - result.called))
    seconds, cpu_seconds = result.seconds, sum(os.times()[:4])
    return cost_line(called=result.called, found=found, seconds=seconds, cpu_seconds=cpu_seconds, usd=result.cost_usd)


def cost_line(*, called: int, found: int, seconds: float, cpu_seconds: float, usd: float | None) -> str:
    """Format the calls, times and cost of a command; omit dollars if everything was free.

    >>> cost_line(called=480, found=0, seconds=660, cpu_seconds=1080, usd=0.0)
    'cost: 480 calls made, 0 found, 11 min, 18 min of CPU time'
    >>> cost_line(called=5, found=10, seconds=20, cpu_seconds=1, usd=None)
    'cost: 5 calls made, 10 found, 20 s, 1 s of CPU time, US dollars unknown'
    """
    paid = ", US dollars unknown" if usd is None else f", {dollars(usd)} US dollars" if usd else ""
    times = f"{duration(seconds)}, {duration(cpu_seconds)} of CPU time"
    return f"cost: {plural(called, 'call')} made, {whole(found)} found, {times}{paid}"


def run_name(run: "Run") -> str:
    """Return the name by which commands find a run."""
    return run.name if run.path == Path("runs") / run.name else str(run.path)


def next_commands(
    result: "RunResult", scored: "ScoredRun", file: Path, changes: Sequence[str]
) -> list[tuple[str, str]]:
    """Suggest three commands, each with a description, after a run of `file` with `changes` as `--set` options."""
    from skillmix.experiment.experiment import load_experiment
    from skillmix.experiment.steps import ReportStep

    run, name = result.run, run_name(result.run)
    experiment = load_experiment(file, changes=changes)
    found: list[tuple[list[str], str]] = []
    if scored.scores:
        students = {score.student for score in scored.scores}
        plans = (plan for step in experiment.steps if isinstance(step, ReportStep) for plan in step.contrasts)
        plan = next((plan for plan in plans if {plan.student, plan.against} <= students), None)
        gain = max(scored.changes, key=lambda change: change.row.found, default=None)
        best = max(scored.scores, key=lambda s: (s.metric == "full_marks", s.value or 0.0, s.k))
        student, k = (gain.student, gain.row.k) if gain and gain.row.found > 0 else (best.student, best.k)
        student, k = (plan.student, plan.k) if plan else (student, k)
        found.append((["texts", name, "--n", "3", "--student", student, "--k", str(k)], f"the best texts of {student}"))
        if plan and plan.against:
            words = ["compare", name, plan.against, plan.student, "--texts", "2"]
            found.append((words, "two texts for each of two requests, and all differences"))
    elif run.has_outcomes:
        found.append((["texts", name, "--n", "3"], "texts with their outcomes and the graders' comments"))
    if found and not result.reports:
        found.insert(1, (["report", name], "pages on which every number links to its texts"))
    if scored.scores:
        rules, whose = ("default", "the default") if experiment.rules == "paper" else ("paper", "the paper's")
        found.append((["scores", name, "--rules", rules], f"the same texts, scored by {whose} rules"))
    if any(student.model.startswith("new:") for student in experiment.students.values()):
        found.insert(2, (["run", "pretrained"], "a pre-trained model with a shipped adapter, on the same skills"))
    again = [*changes, f"name={experiment.name}-again", f"seed={experiment.seed + 1}"]
    options = [word for change in again for word in ("--set", change)]
    found.append((["run", str(file), *options, "--dry-run"], "the cost of a repetition with another seed"))
    found.append((["status", name], "finished, missing and failed calls"))
    found.append((["export", name, "--what", "calls"], "every call with its messages, in a file"))
    trust = ["--trust-code"] if run.catalog.code is not None else []
    return [(f"{cli.program()} {join([*words, *trust])}", about) for words, about in found[:3]]


def dry_run(options: argparse.Namespace) -> int:
    """Print the calls, tokens and cost of an experiment without running it."""
    from skillmix.experiment.experiment import load_experiment
    from skillmix.steps.run import estimate_experiment, lacks_here

    experiment = load_experiment(options.experiment, changes=options.set)
    print_estimates(estimate_experiment(experiment, prices=options.prices), experiment.budget, options)
    for lacking in lacks_here(experiment, calls_here=getattr(options, "on", None) is None):
        LOG.warning(f"warning: {lacking}")
    return 0


def print_estimates(estimates: "Sequence[CallEstimate]", budget: "BudgetSettings", options: argparse.Namespace) -> None:
    """Print estimates as a table with notes or as JSON, and warn about budget limits that are too low."""
    from skillmix.experiment.costs import NOTE
    from skillmix.steps.estimates import budget_warnings, estimate_notes, estimate_table

    if options.json:
        cli.print_json([asdict(estimate) for estimate in estimates])
    else:
        print(estimate_table(estimates, wide=options.wide))
        has_hours = any(estimate.gpu_hours != 0 for estimate in estimates)
        for note in [*estimate_notes(estimates), *([NOTE] if has_hours else [])]:
            print(f"\n{wrapped(note)}")
        if not options.wide:
            print("\nMore: --wide for tokens and the basis of the estimate; --json")
    sys.stdout.flush()
    for warning in budget_warnings(estimates, budget):
        LOG.warning(f"warning: {warning}")


@cli.command(
    "train",
    EXPERIMENT,
    *CHANGES,
    STEP,
    cli.flag("--show-mask", "print conversations token by token and mark the trained tokens"),
    cli.option("--n", "conversations for --show-mask (default: 1)", type=cli.positive, default=1),
)
def train(options: argparse.Namespace) -> int:
    """Run the train steps of an experiment: fine-tune models on data sets."""
    if options.show_mask:
        return _show_mask(options)
    if options.dry_run:
        return dry_run(options)
    from skillmix.steps.run import train_steps
    from skillmix.training.job import is_first_rank

    trained = train_steps(options.experiment, changes=options.set, only=options.step, prices=options.prices)
    if not is_first_rank():
        return 0
    if options.json:
        return cli.print_json([{**asdict(one), "folder": str(one.folder)} for one in trained])
    for one in trained:
        print(one.folder)
    return 0


def _show_mask(options: argparse.Namespace) -> int:
    """Print conversations with one line per token: its position, its id, a mark if it is trained on, and its text."""
    from skillmix.training.job_run import shown_masks

    shown = list(shown_masks(options.experiment, changes=options.set, only=options.step, count=options.n))
    if options.json:
        return cli.print_json(
            [{"step": s, "key": key, "tokens": [token._asdict() for token in tokens]} for s, key, tokens in shown]
        )
    pages = []
    for step, key, tokens in shown:
        trained = sum(token.is_trained for token in tokens)
        lines = [f"{step}: {key}: {len(tokens)} tokens, {trained} of them trained ({_MARK})"]
        for position, token in enumerate(tokens):
            # Quotes make blanks visible, and escapes keep control characters from the terminal.
            text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in token.text)
            lines.append(f"{position:>6} {token.id:>7} {_MARK if token.is_trained else ' '} '{text}'")
        pages.append("\n".join(lines))
    print("\n\n".join(pages))
    return 0


_MARK: Final = "█"


@cli.command(
    "merge",
    cli.option("model", "a local model with an adapter: local:PATH+ADAPTER", metavar="MODEL+ADAPTER"),
    cli.option("--output", "folder for the checkpoint; must not exist", type=Path, required=True, metavar="DIR"),
    has_json=False,
)
def merge(options: argparse.Namespace) -> int:
    """Merge an adapter into its model and write one checkpoint."""
    from skillmix.training.job_run import merge_adapters

    print(merge_adapters(options.model, options.output))
    return 0
