"""Tables of data sets and lineages."""

from skillmix.models.lineage import short_name
from skillmix.report.records import Report
from skillmix.report.registry import table
from skillmix.report.tables.table import Count, Entry, Estimate, ReportTable


@table(section="data", order=20)
def yield_table(report: Report) -> ReportTable | None:
    """How many generated conversations had full marks."""
    rows: list[tuple[Entry, ...]] = []
    for run, facts in report.datasets:
        name = facts.name if len(report.runs) == 1 else f"{run}: {facts.name}"
        for k, y in facts.yields.items():
            rate = Estimate(y.full_marks / y.written if y.written else None)
            rows.append((name, ", ".join(facts.writers) or "–", str(k), Count(y.written), Count(y.full_marks), rate))
    if not rows:
        return None
    return ReportTable(
        name="yield",
        title="Yield: conversations with full marks",
        note="Conversations written for a data set, and how many had full marks; the set may take fewer of them.",
        columns=("data set", "writer", "k", "written", "full marks", "share"),
        rows=tuple(rows),
    )


@table(section="data", order=10)
def lineage_table(report: Report) -> ReportTable | None:
    """The base and the training data of every tuned student."""
    if not report.lineages:
        return None
    rows: list[tuple[Entry, ...]] = [
        (
            report.label(*key),
            x.base,
            ", ".join(_data_name(report, key[0], address) for address in x.datasets) or "–",
            short_name(x.k),
            Count(x.rows),
            Count(len(x.combinations)),
            Count(x.steps),
            x.partition or "–",
            "–" if x.seed is None else str(x.seed),
            "adapter" if x.is_adapter else "all weights",
        )
        for key, x in report.lineages.items()
    ]
    return ReportTable(
        name="lineage",
        title="Where the tuned students come from",
        note="From the lineage files of the models; a data set of another run is named by its hash.",
        columns=(
            "student",
            "base",
            "data",
            "trained on",
            "conversations",
            "combinations",
            "steps",
            "partition",
            "seed",
            "weights",
        ),
        rows=tuple(rows),
    )


def _data_name(report: Report, run: str, address: str) -> str:
    """The name of the step that made a data set, in the student's own run or in another; else its hash."""
    makers = [(r, facts.name) for r, facts in report.datasets if facts.hash == address]
    if not makers:
        return address
    where, name = next((maker for maker in makers if maker[0] == run), makers[0])
    return name if len(report.runs) == 1 else f"{where}: {name}"
