"""What runs spent: the table of calls, tokens and cost, and that of the time that each step took."""

from collections.abc import Sequence
from typing import Final

from skillmix.report.records import Report, RunFacts
from skillmix.report.registry import table
from skillmix.report.tables.table import Count, Dollars, Entry, Estimate, ReportTable, Seconds
from skillmix.runs.seconds.kept_seconds import StepSeconds, added
from skillmix.runs.seconds.step_clock import PARTS, Part


@table(section="runs", order=10)
def call_table(report: Report) -> ReportTable | None:
    """Calls, tokens and cost of every student and grader that is a model."""
    rows = [row for run in report.runs for row in _rows(report, run)]
    if not rows:
        return None
    return ReportTable(
        name="calls-and-cost",
        title="Calls, tokens and cost",
        note="A student takes one call for each turn; the reply to the last one is graded. A grader takes one call for "
        "each round, and another where a reply cannot be read. All: the sum over a run. All calls in the journals "
        "count, those that write data sets and repeated gradings included. – and unknown: the provider does not say "
        "how many tokens it counted, or the model has no known price. Code that grades makes no calls.",
        columns=("name", "role", "model", "calls", "input tokens", "output tokens", "US dollars"),
        rows=tuple(rows),
    )


def _rows(report: Report, run: RunFacts) -> list[tuple[Entry, ...]]:
    """The calls of a run by model, and their sum where there are several models."""
    calls = run.calls
    rows = [
        _row((report.label(run.name, c.name), c.role, c.model), c.calls, (c.input_tokens, c.output_tokens), c.cost_usd)
        for c in calls
    ]
    if len(rows) < 2:
        return rows
    tokens = _sum([c.input_tokens for c in calls]), _sum([c.output_tokens for c in calls])
    costs = [c.cost_usd for c in calls if c.cost_usd is not None]
    cost = sum(costs) if len(costs) == len(calls) else None
    return [*rows, _row((report.label(run.name, "all"), "–", "–"), sum(c.calls for c in calls), tokens, cost)]


def _row(
    names: tuple[str, str, str], calls: int, tokens: tuple[int | None, int | None], cost: float | None
) -> tuple[Entry, ...]:
    return *names, Count(calls), *map(Count, tokens), Dollars(cost)


def _sum(counts: Sequence[int | None]) -> int | None:
    """The sum; None if a count is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


@table(section="time", order=10)
def time_table(report: Report) -> ReportTable | None:
    """Wall seconds of each step by part, and the share of its device that it used."""
    if not report.step_seconds:
        return None
    every = added([seconds for _, _, seconds in report.step_seconds])
    parts = [part for part in PARTS if part in every.parts]
    rows = [_time_row(report.label(run, step), seconds, parts) for run, step, seconds in report.step_seconds]
    if len(rows) > 1:
        rows.append(_time_row("all", every, parts))
    return ReportTable(
        name="where-the-time-went",
        title="Where the time went",
        note=_TIME_NOTE,
        columns=("step", *parts, "sum", "device", "share"),
        rows=tuple(rows),
    )


_TIME_NOTE: Final = (
    "Wall seconds of each step, added up over all times that the step ran; at each moment a step is in one part. The "
    "share is the share of time in which the device worked: on a GPU as its driver counts it, on a CPU the CPU time "
    "divided by wall time and cores. A step whose models are served elsewhere has no device. Steps of which the run "
    "kept no figures, and reports, are not listed."
)


def _time_row(name: str, seconds: StepSeconds, parts: list[Part]) -> tuple[Entry, ...]:
    device = seconds.device
    return (
        name,
        *(Seconds(seconds.parts.get(part, 0.0)) for part in parts),
        Seconds(seconds.total),
        device.device if device else "–",
        Estimate(device.share if device else None),
    )
