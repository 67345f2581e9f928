"""The last lines of `skillmix run`: the cost, and commands to try next."""

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from shlex import join
from typing import Final

from skillmix.catalog.files import load_catalog
from skillmix.experiment.experiment import load_experiment
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


def run_name(run: Run) -> str:
    """The name by which commands find a run."""
    return run.name if run.path == Path("runs") / run.name else str(run.path)


_MOST_SUGGESTIONS: Final = 3


def next_commands(
    result: RunResult, scored: ScoredRun, file: Path, changes: Sequence[str], *, program: str
) -> list[tuple[str, str]]:
    """Suggest commands as a user types them, each with a description, for a run of `file` with `--set` of `changes`."""
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
