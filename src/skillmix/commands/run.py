"""Commands that run an experiment: `run`, the commands for the steps of one stage, and `merge`."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Final

from skillmix.commands.results import print_outcomes, print_scores
from skillmix.commands.shared import (
    DRY_RUN,
    PRICES,
    TRUST,
    WIDE_DRY_RUN,
    command,
    either,
    flag,
    number,
    option,
    positive,
    print_json,
    print_notes,
    program,
    say_why_stopped,
)
from skillmix.errors import LOG
from skillmix.render import dollars, duration, plural, whole, wrapped

if TYPE_CHECKING:
    from skillmix.experiment.experiment import BudgetSettings
    from skillmix.runs.run import Run
    from skillmix.scores.sentences import ScoredRun
    from skillmix.steps.estimates import CallEstimate
    from skillmix.steps.step_kind import RunResult

IN_BATCHES: Final = 3
"""The exit status of a command that ends while batches wait at a provider."""
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
    either(
        flag("--no-wait", "send and read batches, then exit with status 3 if some are unfinished"),
        option(
            "--wait",
            "stop waiting for batches after H hours without a result (default 26)",
            type=number(float, "a number of hours from 0 to 1000", lambda hours: 0 <= hours <= 1000),
            metavar="HOURS",
        ),
    ),
    flag("--forget-batches", "repeat the calls of all batches, although the provider may bill twice"),
)
"""The options for models with `batch: true`."""


@command("run", EXPERIMENT, *CHANGES, ON, *_BATCHES, stage=None, step=None)
def run(options: argparse.Namespace) -> int:
    """Run every step of an experiment; rerun the same command to continue."""
    if options.dry_run:
        return dry_run(options)
    from skillmix.runs.batches.step_batches import WAIT, BatchWishes
    from skillmix.runs.scheduler import StopReason
    from skillmix.runs.texts import keep_table
    from skillmix.scores.sentences import ScoredRun, scored_run
    from skillmix.scores.status import parts_in_batches
    from skillmix.scores.table import cut_lines
    from skillmix.steps.run import StepFilter, run_experiment

    hours = getattr(options, "wait", None)  # `dataset` sends no batches
    wait = 0.0 if getattr(options, "no_wait", False) else WAIT if hours is None else 3600 * hours
    result = run_experiment(
        options.experiment,
        prices=options.prices,
        changes=options.set,
        wanted=StepFilter(stage=options.stage, step=options.step),
        on_ray=options.on == "ray",
        batches=BatchWishes(wait, forgets=getattr(options, "forget_batches", False)),
    )
    name = run_name(result.run)
    for line in result.failure_lines():
        LOG.warning(f"failed: {line}")
    if result.stopped is StopReason.BATCHES:
        for part in parts_in_batches(result.run):
            LOG.warning(f"waiting: {part.in_words}")
        LOG.info(
            f"batches are unfinished; all answers are in {result.run.path}; rerun the same command to read them "
            "and continue"
        )
        return IN_BATCHES
    signal_status = say_why_stopped(result.stopped, result.run.path)
    if signal_status is not None:
        return signal_status
    scored = ScoredRun([], [], [])
    undecided = 0
    if options.stage == "dataset" and options.json:
        print_json({name: dataset.as_json() for name, dataset in result.datasets.items()})
    elif options.stage == "dataset":
        print("\n".join(str(dataset.as_json()["folder"]) for dataset in result.datasets.values()))
    elif result.run.has_outcomes:
        undecided = result.undecided(print_outcomes(result.run, name=name, as_json=options.json))
    else:
        scored = scored_run(result.run)
        print_notes(scored.notes)
        if scored.scores or options.json:
            print_scores(scored, run=name, as_json=options.json)
    if options.stage != "dataset" and result.is_complete:
        keep_table(result.run)
    ungraded = result.ungraded(scored.scores)
    if ungraded and result.has_all_texts:
        whose = "its" if ungraded == 1 else "their"
        LOG.warning(f"ungraded: {plural(ungraded, 'text')}, because too many of {whose} grades are unparseable")
    if undecided and result.has_all_texts:
        LOG.warning(f"undecided: {plural(undecided, 'text')}, because grades are unparseable or have no majority")
    sys.stdout.flush()
    for line in cut_lines(scored.scores):
        LOG.warning(f"cut: {line}")
    for line in result.waiting_lines():
        LOG.warning(f"missing: {line}")
    LOG.info(f"{run_cost(result)}; all in {result.run.path}")
    for page in result.reports:
        LOG.info(f"report: open {page} in a browser")
    if not options.json:
        LOG.info("try next:")
        for line, about in next_commands(result, scored, options.experiment, options.set, program=program()):
            LOG.info(f"  {line}  # {about}")
    return 0 if result.is_complete and not ungraded and not undecided else 1


for _stage, _about in {
    "generate": "Run the generate steps of an experiment: students write texts.",
    "grade": "Run the grade steps of an experiment: graders vote on existing texts.",
    "evaluate": "Run the evaluate steps of an experiment: students write texts, and graders vote on them.",
}.items():
    command(_stage, EXPERIMENT, *CHANGES, STEP, ON, *_BATCHES, about=_about, stage=_stage)(run)


def run_cost(result: "RunResult") -> str:
    """Compute the cost of a run that has just ended, including the CPU time of its child processes."""
    found = result.found
    # If two steps share a call, it is counted twice. Within a step, calls are unique. If the run was already finished,
    # it ends without reading its journal.
    if found and len(result.counts) > 1 and not result.counts.keys() <= result.taken:
        with result.run.read() as journal:
            found = min(found, max(0, journal.extent()[0] - result.called))
    return cost_line(
        called=result.called,
        found=found,
        seconds=result.seconds,
        cpu_seconds=sum(os.times()[:4]),
        cost_usd=result.cost_usd,
    )


def cost_line(*, called: int, found: int, seconds: float, cpu_seconds: float, cost_usd: float | None) -> str:
    """Format the calls, the time and the dollars of one command; dollars are omitted if everything was free.

    >>> cost_line(called=480, found=0, seconds=660, cpu_seconds=1080, cost_usd=0.0)
    'cost: 480 calls made, 0 found, 11 min, 18 min of CPU time'
    >>> cost_line(called=5, found=10, seconds=20, cpu_seconds=1, cost_usd=None)
    'cost: 5 calls made, 10 found, 20 s, 1 s of CPU time, US dollars unknown'
    """
    facts = [
        f"{plural(called, 'call')} made",
        f"{whole(found)} found",
        duration(seconds),
        f"{duration(cpu_seconds)} of CPU time",
    ]
    if cost_usd is None:
        facts.append("US dollars unknown")
    elif cost_usd:
        facts.append(f"{dollars(cost_usd)} US dollars")
    return f"cost: {', '.join(facts)}"


def run_name(run: "Run") -> str:
    """Return the name by which commands find a run."""
    return run.name if run.path == Path("runs") / run.name else str(run.path)


_MOST_SUGGESTIONS: Final = 3


def next_commands(
    result: "RunResult", scored: "ScoredRun", file: Path, changes: Sequence[str], *, program: str
) -> list[tuple[str, str]]:
    """Suggest the next commands, each with a description, for a run of `file` with `changes` as `--set` options."""
    from skillmix.catalog.files import load_catalog
    from skillmix.experiment.experiment import load_experiment
    from skillmix.experiment.plan import first_combination
    from skillmix.experiment.steps import ReportStep

    run, name = result.run, run_name(result.run)
    experiment = load_experiment(file, changes=changes)
    report = ["report", name], "pages on which every number links to its texts"
    found: list[tuple[list[str], str]] = []
    if scored.scores:
        students = {score.student for score in scored.scores}
        plans = (plan for step in experiment.steps if isinstance(step, ReportStep) for plan in step.contrasts)
        plan = next((plan for plan in plans if {plan.student, plan.against} <= students), None)
        gain = max(scored.changes, key=lambda change: change.row.found, default=None)
        if plan:
            student, k = plan.student, plan.k
        elif gain is not None and gain.row.found > 0:
            student, k = gain.student, gain.row.k
        else:
            best = max(scored.scores, key=lambda s: (s.metric == "full_marks", s.value or 0.0, s.k))
            student, k = best.student, best.k
        chosen = ["--student", student, "--k", str(k)]
        found.append((["texts", name, "--n", "3", *chosen], f"the best texts of {student}"))
        found += [] if result.reports else [report]
        if plan and plan.against:
            words = ["compare", name, plan.against, plan.student, "--texts", "2"]
            found.append((words, "two texts for each of two requests, and all differences"))
        has_code = any(settings.asked is None for settings in experiment.graders.values())
        catalog = load_catalog(experiment.catalog, *experiment.other_catalogs)
        first = first_combination(experiment, catalog) if has_code else None
        if first is not None:
            named = ["--skills", "; ".join(first[1].skills), "--topic", first[1].topic]
            found.append((["grade-text", first[0], *named], "grade a sentence of your own by code"))
        rules, whose = ("default", "the default") if experiment.rules == "paper" else ("paper", "the paper's")
        found.append((["scores", name, "--rules", rules], f"the same texts, scored by {whose} rules"))
    if run.has_outcomes:
        found.append((["texts", name, "--n", "3"], "texts with their outcomes and the graders' comments"))
        found += [] if result.reports else [report]
    again = [*changes, f"name={experiment.name}-again", f"seed={experiment.seed + 1}"]
    options = [word for change in again for word in ("--set", change)]
    found.append((["run", str(file), *options, "--dry-run"], "the cost of a repetition with another seed"))
    found.append((["status", name], "finished, missing and failed calls"))
    found.append((["export", name, "--what", "calls"], "every call with its messages, in a file"))
    trust = ["--trust-code"] if run.catalog.code is not None else []
    before = {"grade-text": "echo 'Write a sentence of your own here.' | "}
    lines = ((f"{before.get(words[0], '')}{program} {join([*words, *trust])}", about) for words, about in found)
    return list(islice(lines, _MOST_SUGGESTIONS))


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
    """Print estimates as a table with notes, or as JSON, and warn about limits that are too low."""
    from skillmix.experiment.costs import NOTE
    from skillmix.steps.estimates import budget_warnings, estimate_notes, estimate_table

    if options.json:
        print_json([asdict(estimate) for estimate in estimates])
    else:
        print(estimate_table(estimates, wide=options.wide))
        has_hours = any(estimate.gpu_hours != 0 for estimate in estimates)
        for note in [*estimate_notes(estimates), *([NOTE] if has_hours else [])]:
            print(f"\n{wrapped(note)}")
        if not options.wide:
            print("\nMore: --wide for the tokens and the basis of the estimate; --json")
    sys.stdout.flush()
    for warning in budget_warnings(estimates, budget):
        LOG.warning(f"warning: {warning}")


@command(
    "train",
    EXPERIMENT,
    *CHANGES,
    STEP,
    flag("--show-mask", "print conversations token by token and mark the trained tokens"),
    option("--n", "number of conversations of --show-mask (default 1)", type=positive, default=1),
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
        return print_json([{**asdict(one), "folder": str(one.folder)} for one in trained])
    for one in trained:
        print(one.folder)
    return 0


def _show_mask(options: argparse.Namespace) -> int:
    """Print one line for each token of a conversation: its position, id, a mark if it is trained on, and its text."""
    from skillmix.training.job_run import shown_masks

    shown = list(shown_masks(options.experiment, changes=options.set, only=options.step, count=options.n))
    if options.json:
        return print_json(
            [{"step": s, "key": key, "tokens": [token._asdict() for token in tokens]} for s, key, tokens in shown]
        )
    pages = []
    for step, key, tokens in shown:
        trained = sum(token.is_trained for token in tokens)
        lines = [f"{step}: {key}: {len(tokens)} tokens, {trained} of them trained ({_MARK})"]
        for position, token in enumerate(tokens):
            # The text is quoted, so that blanks are visible and no character affects the terminal.
            text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in token.text)
            lines.append(f"{position:>6} {token.id:>7} {_MARK if token.is_trained else ' '} '{text}'")
        pages.append("\n".join(lines))
    print("\n\n".join(pages))
    return 0


_MARK: Final = "█"


@command(
    "merge",
    option("model", "such as local:PATH+ADAPTER", metavar="MODEL+ADAPTER"),
    option("--output", "a folder that does not exist yet", type=Path, required=True, metavar="DIR"),
    has_json=False,
)
def merge(options: argparse.Namespace) -> int:
    """Merge a model and its adapter into one checkpoint."""
    from skillmix.training.saving import merge_adapters

    print(merge_adapters(options.model, options.output))
    return 0
