"""The table of calls, tokens and cost."""

from collections.abc import Sequence

from skillmix.report.records import Report, RunFacts
from skillmix.report.registry import table
from skillmix.report.tables.table import Count, Dollars, Entry, ReportTable


@table(section="runs", order=10)
def call_table(report: Report) -> ReportTable | None:
    """Calls, tokens and cost of every student and grader that is a model."""
    rows = [row for run in report.runs for row in _rows(report, run)]
    if not rows:
        return None
    return ReportTable(
        name="calls-and-cost",
        title="Calls, tokens and cost",
        note="A student takes two calls for each text, one for each of its two turns: a first answer and a second one, "
        "which is graded. A grader takes one call for each round, and another where a reply cannot be read. All: the "
        "sum over a run. All calls in the journals count, those that write data sets and repeated gradings included. "
        "– and unknown: the provider does not say how many tokens it counted, or the model has no known price. Code "
        "that grades makes no calls.",
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
