"""The last lines of `skillmix run`: the cost, and commands to try next."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shlex import join

from skillmix.catalog.files import load_catalog
from skillmix.experiment.experiment import Experiment, load_experiment
from skillmix.experiment.plan import first_combination
from skillmix.experiment.steps import ReportStep
from skillmix.render import dollars, duration, plural, whole
from skillmix.runs.run import Run
from skillmix.scores.sentences import ScoredRun
from skillmix.steps.step_kind import RunResult


def run_cost(result: RunResult) -> str:
    """Compute the cost of a run that just ended, with the CPU time of its child processes."""
    found = result.found
    # Two steps that share a call count it twice. Within a step, calls are unique, and a run that was already finished
    # ends without reading its journal.
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
    """Format the calls, the time and the dollars of one command; no dollars if everything was free.

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


_COUNT = 3


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that just ended, and the command that started it."""

    run: Run
    file: Path
    """The experiment file."""
    changes: Sequence[str]
    """The values of `--set`."""
    scored: ScoredRun
    has_report: bool


def run_name(run: Run) -> str:
    """The name by which commands find a run."""
    return run.name if run.path == Path("runs") / run.name else str(run.path)


def next_commands(ended: Ended, *, program: str) -> list[tuple[str, str]]:
    """Suggest commands as a user types them, each with a description."""
    trust = " --trust-code" if ended.run.catalog.code is not None else ""
    return [(f"{line}{trust}", what) for line, what in islice(_all(ended, program), _COUNT)]


def _all(ended: Ended, program: str) -> Iterator[tuple[str, str]]:
    """Yield every command that fits the run, most useful first."""
    name = run_name(ended.run)
    experiment = load_experiment(ended.file, changes=ended.changes)
    if ended.scored.scores:
        students = {score.student for score in ended.scored.scores}
        plans = (plan for step in experiment.steps if isinstance(step, ReportStep) for plan in step.contrasts)
        plan = next((plan for plan in plans if {plan.student, plan.against} <= students), None)
        gain = max(ended.scored.changes, key=lambda change: change.row.found, default=None)
        if plan:
            student, k = plan.student, plan.k
        elif gain is not None and gain.row.found > 0:
            student, k = gain.student, gain.row.k
        else:
            best = max(ended.scored.scores, key=lambda s: (s.metric == "full_marks", s.value or 0.0, s.k))
            student, k = best.student, best.k
        chosen = ["--student", student, "--k", str(k)]
        yield f"{program} {join(['texts', name, '--n', '3', *chosen])}", f"the best texts of {student}"
        if not ended.has_report:
            yield f"{program} {join(['report', name])}", "pages on which every number links to its texts"
        if plan and plan.against:
            words = join(["compare", name, plan.against, plan.student, "--texts", "2"])
            yield f"{program} {words}", "two texts for each of two requests, and all differences"
        if own := _own_text(experiment):
            yield f"{_ECHO} | {program} {own}", "grade a sentence of your own by code"
        rules, whose = ("default", "the default") if experiment.rules == "paper" else ("paper", "the paper's")
        yield f"{program} {join(['scores', name, '--rules', rules])}", f"the same texts, scored by {whose} rules"
    if ended.run.has_outcomes:
        yield f"{program} {join(['texts', name, '--n', '3'])}", "texts with their outcomes and the graders' comments"
        if not ended.has_report:
            yield f"{program} {join(['report', name])}", "pages in which every number leads to its texts"
    changes = [*ended.changes, f"name={experiment.name}-again", f"seed={experiment.seed + 1}"]
    options = [word for change in changes for word in ("--set", change)]
    repeated = join(["run", str(ended.file), *options, "--dry-run"])
    yield f"{program} {repeated}", "the cost of a repetition with another seed"
    yield f"{program} {join(['status', name])}", "finished, missing and failed calls"
    yield f"{program} {join(['export', name, '--what', 'calls'])}", "every call with its messages, in a file"


_ECHO = "echo 'Write a sentence of your own here.'"


def _own_text(experiment: Experiment) -> str | None:
    """Suggest `grade-text` with skills and a topic of this experiment; None if no grader is code alone."""
    if not any(settings.asked is None for settings in experiment.graders.values()):
        return None
    catalog = load_catalog(experiment.catalog, *experiment.other_catalogs)
    found = first_combination(experiment, catalog)
    if found is None:
        return None
    name, first = found
    return join(["grade-text", name, "--skills", "; ".join(first.skills), "--topic", first.topic])
