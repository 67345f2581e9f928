"""Tables of data sets, lineages, templates, calls and their costs, and the published figures beside these runs."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, TypeVar

from skillmix.catalog.catalog import SETTINGS
from skillmix.models.lineage import short_name
from skillmix.render import dollars
from skillmix.report.records import Report
from skillmix.report.registry import Count, Estimate, PlainNumber, ReportTable, Row, cell_heads, table, table_of
from skillmix.report.tables.scores import common_k, without_common
from skillmix.scores.cells import Cell


@table(section="data", order=20)
def yield_table(report: Report) -> ReportTable | None:
    """How many generated conversations had full marks."""
    return table_of(
        "yield",
        "Yield: conversations with full marks",
        "Conversations written for a data set, and how many had full marks; the set may take fewer of them.",
        (
            {
                "data set": str(facts.name) if len(report.runs) == 1 else f"{run}: {facts.name}",
                "writer": ", ".join(dict.fromkeys(facts.writers or ())) or "–",
                "k": str(k),
                "written": Count(y.written),
                "full marks": Count(y.full_marks),
                "share": Estimate(_share(y.full_marks, y.written)),
            }
            for run, facts in report.datasets
            for k, y in facts.yields.items()
        ),
    )


@table(section="data", order=10)
def lineage_table(report: Report) -> ReportTable | None:
    """The base and the training data of every tuned student."""
    return table_of(
        "lineage",
        "Where the tuned students come from",
        "From the lineage files of the models; a data set of another run is named by its hash.",
        (
            {
                "student": report.label(*key),
                "base": x.base,
                "data": ", ".join(_data_name(report, key[0], address) for address in x.datasets) or "–",
                "trained on": short_name(x.k),
                "conversations": Count(x.rows),
                "combinations": Count(len(x.combinations)),
                "steps": Count(x.steps),
                "partition": x.partition or "–",
                "seed": "–" if x.seed is None else str(x.seed),
                "weights": "adapter" if x.is_adapter else "all weights",
            }
            for key, x in report.lineages.items()
        ),
    )


def _data_name(report: Report, run: str, address: str) -> str:
    """The name of the step that made a data set, in the student's own run or in another; else its hash."""
    makers = [(r, str(facts.name)) for r, facts in report.datasets if facts.hash == address]
    if not makers:
        return address
    where, name = next((maker for maker in makers if maker[0] == run), makers[0])
    return name if len(report.runs) == 1 else f"{where}: {name}"


@table(section="scores", order=25)
def baseline_table(report: Report) -> ReportTable | None:
    """What a student that joins fixed clauses earns on the same combinations."""
    return table_of(
        "template-baseline",
        "Template baseline: what fixed clauses earn",
        "No model wrote these texts. Code joins one fixed clause for each skill and the topic's name, on the "
        "combinations of the run, at most 200 for each setting and k; the first clauses that earn full marks by code "
        "count. Named once: the topic's name comes once, before the clauses. Named in every clause: each clause has a "
        "slot for it. Full marks near these values say little about a student; woven full marks say more.",
        (
            {
                "student": report.label(b.run, "template baseline"),
                "setting": b.setting,
                "k": str(b.k),
                "combinations": Count(b.combinations),
                ("topic named once", "full marks"): Estimate(b.full_marks["fixed"]),
                ("topic named once", "woven full marks"): Estimate(b.woven["fixed"]),
                ("topic named in every clause", "full marks"): Estimate(b.full_marks["slot"]),
                ("topic named in every clause", "woven full marks"): Estimate(b.woven["slot"]),
            }
            for b in report.baselines
        ),
        folds="always",
    )


@table(section="graders", order=26)
def template_table(report: Report) -> ReportTable | None:
    """How far the texts with full marks of each cell are templates."""
    return table_of(
        "templates",
        "How far texts with full marks are templates",
        "Same words: the share of texts with full marks that show each skill in the same words as a text on "
        "another combination of the cell, with the topic's words masked; – where no code checked the skills. "
        "Distinct-4: distinct four-word runs by all four-word runs of these texts. Follow an example: the share with "
        "half or more of the three-word runs of an example in the prompts.",
        (
            {
                **cell_heads(report, t.key),
                "full marks": Count(t.full_marks),
                "same words": Estimate(_share(t.repeated, t.full_marks)),
                "distinct-4": Estimate(t.distinct_4),
                "follow an example": Estimate(_share(t.full_marks_following, t.full_marks)),
            }
            for t in report.cell_texts
        ),
        folds="long",
    )


def _share(count: int | None, texts: int) -> float | None:
    return None if count is None or not texts else count / texts


PAPER: Final = "paper"
"""The source of a published row."""
_ORDER: Final = {1: "table_10", 3: "table_11", 4: "table_4", 5: "table_5", 6: "table_6", 10: "table_10", 11: "table_11"}
"""The paper's tables by number, and where their numbers are; tables 1 and 3 print two metrics of tables 10 and 11."""
_TWO_METRICS: Final = (1, 3)
_DROPPED: Final = "all_skills"


_Heads = tuple[str, str, str, str, str]
"""Model, source, trained on, setting and grader."""
_Row = tuple[_Heads, list[Estimate]]


@table(section="published", order=10)
def paper_tables(report: Report) -> Iterator[ReportTable]:
    """Each table of the paper with the rows of these runs that have its layout; the paper gives no intervals."""
    for number, name in _ORDER.items():
        if name in report.published:
            yield _paper_table(report, number, report.published[name])


def _paper_table(report: Report, number: int, printed: Mapping[str, Any]) -> ReportTable:
    metrics = [m for m in printed["metrics"] if not (m == _DROPPED and number in _TWO_METRICS)]
    chosen = [printed["metrics"].index(m) for m in metrics]
    ks = list(printed.get("k", ()))
    groups = [f"k = {k}" for k in ks] or list(printed.get("settings", ()))
    rows: list[_Row] = []
    for row in printed["rows"]:
        model, trained_on, setting, grader = (row.get(h, "–") for h in ("model", "trained_on", "setting", "grader"))
        values = [Estimate(group[m]) for group in row["values"] for m in chosen]
        rows.append(((model, PAPER, trained_on, setting, grader), values))
    # By setting, the paper's rows before those of these runs.
    rows += _own_rows(report, number, metrics, ks)
    rows.sort(key=lambda row: (*SETTINGS, row[0][3]).index(row[0][3]))
    names = ("model", "source", "trained on", "setting", "grader")
    shown = [i for i in range(len(names)) if any(heads[i] != "–" for heads, _ in rows)]
    # The paper's caption, and who graded the rows of these runs.
    caption = printed["caption"].rstrip(".")
    return ReportTable(
        name=f"paper-table-{number}",
        title=f"Table {number} of arXiv 2409.19808, and these runs",
        note=f"{caption}. Rows of these runs: grader {report.graders[0]}." if report.graders else f"{caption}.",
        columns=(*(names[i] for i in shown), *(m.replace("_", " ") for _ in groups for m in metrics)),
        rows=tuple((*(heads[i] for i in shown), *values) for heads, values in rows),
        groups=(("", len(shown)), *((group, len(metrics)) for group in groups)),
        is_detail=True,
        family="published",
        part=f"table {number}",
    )


def _own_rows(report: Report, number: int, metrics: Sequence[str], ks: Sequence[int]) -> Iterator[_Row]:
    """The rows of these runs in the layout of a table of the paper."""
    without = without_common(report) if number == 6 and common_k(report) == 5 else None
    for key in report.students:
        student, run = key[1], key[0]
        trained = short_name(report.training_of(key)) if key in report.lineages else "–"
        if number == 6:  # the paper prints k = 5; a draw without some skills has a label of its own
            mine = [c for c in (without[0] if without else ()) if (c.key.run, c.key.student) == key]
            cells = {c.key.setting.partition("-without-")[0]: c for c in mine if c.key.grader == report.graders[0]}
            if cells:
                yield (student, run, trained, "–", "–"), _values([cells.get(s) for s in SETTINGS], metrics)
            continue
        settings = SETTINGS if number in (1, 3, 10, 11) else ("all",)
        graders = report.graders if number == 5 else report.graders[:1]
        for setting, grader in product(settings if number != 4 or key in report.lineages else (), graders):
            by_k = {c.key.k: c for c in report.cells_of(key, grader=grader, setting=setting)}
            if by_k.keys() & set(ks):
                heads = (student, run, trained, setting, grader if number == 5 else "–")
                yield heads, _values([by_k.get(k) for k in ks], metrics)


def _values(cells: Sequence[Cell | None], metrics: Sequence[str]) -> list[Estimate]:
    scores = [cell.scores[metric] if cell else None for cell in cells for metric in metrics]
    return [Estimate(score.value, score.low, score.high) if score else Estimate(None) for score in scores]


@table(section="runs", order=10)
def call_table(report: Report) -> ReportTable | None:
    """Calls, tokens and cost of every student and grader that is a model, and their sums over runs."""
    rows: list[Row] = []
    for run in report.runs:
        listed: list[tuple[str, str, str, int, int | None, int | None, float | None]] = []
        listed += [(c.name, c.role, c.model, c.calls, c.input_tokens, c.output_tokens, c.cost_usd) for c in run.calls]
        if len(listed) > 1:
            sums = _sum([c.input_tokens for c in run.calls]), _sum([c.output_tokens for c in run.calls])
            calls, cost_usd = sum(c.calls for c in run.calls), _sum([c.cost_usd for c in run.calls])
            listed.append(("all", "–", "–", calls, *sums, cost_usd))
        for name, role, model, count, input_tokens, output_tokens, cost in listed:
            rows.append(
                {
                    "name": report.label(run.name, name),
                    "role": role,
                    "model": model,
                    "calls": Count(count),
                    "input tokens": Count(input_tokens),
                    "output tokens": Count(output_tokens),
                    "US dollars": PlainNumber(cost, dollars(cost)),
                }
            )
    return table_of(
        "calls-and-cost",
        "Calls, tokens and cost",
        "A student takes one call for each turn; the reply to the last one is graded. A grader takes one call for "
        "each round, and another where a reply cannot be read. All: the sum over a run. All calls in the journals "
        "count, those that write data sets and repeated gradings included. – and unknown: the provider does not say "
        "how many tokens it counted, or the model has no known price. Code that grades makes no calls.",
        rows,
    )


_Number = TypeVar("_Number", int, float)


def _sum(values: Sequence[_Number | None]) -> _Number | None:
    """The sum; None if a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


@table(section="time", order=10)
def time_table(report: Report) -> ReportTable | None:
    """Wall seconds of each step."""
    rows = [(report.label(run, step), seconds) for run, step, seconds in report.step_seconds]
    if len(rows) > 1:
        rows.append(("all", sum(seconds for _, seconds in rows)))
    return table_of(
        "where-the-time-went",
        "Where the time went",
        "Wall seconds of each step, added up over all times that the step ran to its end. A run that was stopped "
        "before the end of a step does not count. Steps without a known time, and reports, are not listed.",
        ({"step": step, "wall time": PlainNumber(seconds, f"{seconds:,.1f} s")} for step, seconds in rows),
    )
