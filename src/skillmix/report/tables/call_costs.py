"""The table of calls, tokens and cost."""

from skillmix.report.records import Report
from skillmix.report.registry import table
from skillmix.report.tables.table import Count, Dollars, Entry, ReportTable


@table(section="runs", order=10)
def call_table(report: Report) -> ReportTable | None:
    """Calls, tokens and cost of every student and grader that is a model."""
    rows: list[tuple[Entry, ...]] = [
        (
            report.label(run.name, total.name),
            total.role,
            total.model,
            Count(total.calls),
            Count(total.input_tokens),
            Count(total.output_tokens),
            Dollars(total.cost_usd),
        )
        for run in report.runs
        for total in run.calls
    ]
    if not rows:
        return None
    return ReportTable(
        name="calls-and-cost",
        title="Calls, tokens and cost",
        note="All calls in the journals, those that write data sets and repeated gradings included. – and unknown: the "
        "provider does not say how many tokens it counted, or the model has no known price. Code that grades makes no "
        "calls.",
        columns=("name", "role", "model", "calls", "input tokens", "output tokens", "US dollars"),
        rows=tuple(rows),
    )
