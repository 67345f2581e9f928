"""Tables of data sets, lineages and the numbers of the paper."""

from collections.abc import Mapping

from skillmix.models.lineage import short_name
from skillmix.report.records import Report
from skillmix.report.registry import table, tables
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


@tables(section="published", order=10)
def paper_tables(report: Report) -> list[ReportTable]:
    """The numbers that the paper prints; it gives no intervals."""
    return [_paper_table(number, printed) for number, printed in report.published.items() if "rows" in printed]


def _paper_table(number: str, printed: Mapping[str, object]) -> ReportTable:
    metrics = [str(m).replace("_", " ") for m in _list(printed["metrics"])]
    above = [f"k = {k}" for k in _list(printed.get("k"))] or [str(s) for s in _list(printed.get("settings"))]
    heads = ["model", "setting", "grader", "trained on"]
    given = [h for h in heads if any(h.replace(" ", "_") in _dict(row) for row in _list(printed["rows"]))]
    rows: list[tuple[Entry, ...]] = []
    for row in map(_dict, _list(printed["rows"])):
        values = [Estimate(_float(v)) for group in _list(row["values"]) for v in _list(group)]
        rows.append((*(str(row.get(h.replace(" ", "_"), "–")) for h in given), *values))
    return ReportTable(
        name=f"paper-{number.replace('_', '-')}",
        title=f"Published: {number.replace('_', ' ')} of arXiv 2409.19808",
        note=str(printed["caption"]),
        columns=(*given, *(m for _ in above for m in metrics)),
        rows=tuple(rows),
        groups=(("", len(given)), *((o, len(metrics)) for o in above)),
        is_detail=True,
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
