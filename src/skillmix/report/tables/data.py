"""Tables about data sets, lineages, templates, calls and costs, and tables that compare published numbers with runs."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

from skillmix.catalog.catalog import SETTINGS
from skillmix.models.lineage import short_name
from skillmix.render import dollars, known_sum
from skillmix.report.records import Report
from skillmix.report.registry import Entry, Estimate, PlainNumber, ReportTable, Row, cell_heads, count, table_of
from skillmix.report.tables.scores import common_k, without_common
from skillmix.scores.cells import Cell


def yield_table(report: Report) -> Iterator[Row]:
    """Make the table with the share of generated conversations that have full marks."""
    for run, facts in report.datasets:
        for k, y in facts.yields.items():
            yield {
                "data set": report.label(run, str(facts.name)),
                "writer": ", ".join(dict.fromkeys(facts.writers or ())) or "–",
                "k": str(k),
                "written": count(y.written),
                "full marks": count(y.full_marks),
                "share": Estimate(_share(y.full_marks, y.written)),
            }


def lineage_table(report: Report) -> Iterator[Row]:
    """Make the table with the base and the training data of every tuned student."""
    for key, x in report.lineages.items():
        data = []
        for address in x.datasets:
            # show the step that made a data set, preferably a step of the student's own run; if no step did, show the
            # hash of the data set
            makers = [(run, str(facts.name)) for run, facts in report.datasets if facts.hash == address]
            makers.sort(key=lambda maker: maker[0] != key[0])
            data.append(report.label(*makers[0]) if makers else address)
        yield {
            "student": report.label(*key),
            "base": x.base,
            "data": ", ".join(data) or "–",
            "trained on": short_name(x.k),
            "conversations": count(x.rows),
            "combinations": count(len(x.combinations)),
            "steps": count(x.steps),
            "partition": x.partition or "–",
            "seed": "–" if x.seed is None else str(x.seed),
            "weights": "adapter" if x.is_adapter else "all weights",
        }


def template_baseline_table(report: Report) -> Iterator[Row]:
    """Make the table with the template student's scores on the same combinations."""
    for b in report.baselines:
        yield {
            "student": report.label(b.run, "template baseline"),
            "setting": b.setting,
            "k": str(b.k),
            "combinations": count(b.combinations),
            ("topic named once", "full marks"): Estimate(b.full_marks["fixed"]),
            ("topic named once", "woven full marks"): Estimate(b.woven["fixed"]),
            ("topic named in every clause", "full marks"): Estimate(b.full_marks["slot"]),
            ("topic named in every clause", "woven full marks"): Estimate(b.woven["slot"]),
        }


def templates_table(report: Report) -> Iterator[Row]:
    """Make the table that shows to what extent each cell's texts with full marks reuse a template."""
    for t in report.cell_texts:
        yield {
            **cell_heads(report, t.key),
            "full marks": count(t.full_marks),
            "same words": Estimate(_share(t.repeated, t.full_marks)),
            "distinct-4": Estimate(t.distinct_4),
            "follow an example": Estimate(_share(t.full_marks_following, t.full_marks)),
        }


def _share(count: int | None, texts: int) -> float | None:
    return None if count is None or not texts else count / texts


PAPER: Final = "paper"
"""The source label of a published row."""
_ORDER: Final = {1: "table_10", 3: "table_11", 4: "table_4", 5: "table_5", 6: "table_6", 10: "table_10", 11: "table_11"}
"""The stored table for each table number in the paper; tables 1 and 3 show two of the metrics in tables 10 and 11."""
_TWO_METRICS: Final = (1, 3)
_DROPPED: Final = "all_skills"
_HEADS: Final = ("model", "source", "trained on", "setting", "grader")
_Row = tuple[tuple[str, ...], list[Estimate]]
"""The identifying entries of a row, and its numbers."""


def paper_table_table(report: Report) -> Iterator[ReportTable]:
    """Make each of the paper's tables, with additional rows for these runs; the paper gives no intervals."""
    for number, name in _ORDER.items():
        if name in report.published:
            yield from _paper_table(report, number, report.published[name])


def _paper_table(report: Report, number: int, printed: Mapping[str, Any]) -> list[ReportTable]:
    metrics = [m for m in printed["metrics"] if not (m == _DROPPED and number in _TWO_METRICS)]
    chosen = [printed["metrics"].index(m) for m in metrics]
    ks = list(printed.get("k", ()))
    rows: list[_Row] = []
    for row in printed["rows"]:
        model, trained_on, setting, grader = (row.get(h, "–") for h in ("model", "trained_on", "setting", "grader"))
        values = [Estimate(group[m]) for group in row["values"] for m in chosen]
        rows.append(((model, PAPER, trained_on, setting, grader), values))
    # In each setting, the paper's rows come before the rows of these runs.
    rows += _own_rows(report, number, metrics, ks)
    rows.sort(key=lambda row: (*SETTINGS, row[0][3]).index(row[0][3]))
    shown = [i for i in range(len(_HEADS)) if any(heads[i] != "–" for heads, _ in rows)]
    groups = [f"k = {k}" for k in ks] or list(printed.get("settings", ()))
    columns = [(group, m.replace("_", " ")) for group in groups for m in metrics]
    lines = []
    for heads, values in rows:
        line: dict[Any, Entry] = {_HEADS[i]: heads[i] for i in shown}
        lines.append(line | dict(zip(columns, values, strict=True)))
    # Show the paper's caption, and name the grader of these runs' rows.
    caption = f"{printed['caption'].rstrip('.')}."
    caption += f" Rows of these runs: grader {report.graders[0]}." if report.graders else ""
    file, part = f"paper-table-{number}", f"table {number}"
    return table_of("paper-table", lines, file=file, part=part, number=number, caption=caption)


def _own_rows(report: Report, number: int, metrics: Sequence[str], ks: Sequence[int]) -> Iterator[_Row]:
    """Yield the rows of these runs in the layout of one of the paper's tables."""
    without = without_common(report) if number == 6 and common_k(report) == 5 else None
    for key in report.students:
        student, run = key[1], key[0]
        trained = short_name(report.training_of(key)) if key in report.lineages else "–"
        if number == 6:  # the paper prints k = 5; a draw without some skills has a separate label
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


def calls_and_cost_table(report: Report) -> Iterator[Row]:
    """Make the table of calls, tokens and cost for every student and grader that is a model, with sums over runs."""
    for run in report.runs:
        listed: list[list[Any]] = [
            [c.name, c.role, c.model, c.calls, c.input_tokens, c.output_tokens, c.cost_usd] for c in run.calls
        ]
        if len(listed) > 1:
            # a sum is unknown if one of its numbers is unknown
            listed.append(["all", "–", "–", *map(known_sum, zip(*(numbers[3:] for numbers in listed), strict=True))])
        for name, role, model, calls, input_tokens, output_tokens, cost in listed:
            yield {
                "name": report.label(run.name, name),
                "role": role,
                "model": model,
                "calls": count(calls),
                "input tokens": count(input_tokens),
                "output tokens": count(output_tokens),
                "US dollars": PlainNumber(cost, dollars(cost)),
            }


def where_the_time_went_table(report: Report) -> Iterator[Row]:
    """Make the table with the wall time of each step in seconds."""
    rows = [(report.label(run, step), seconds) for run, step, seconds in report.step_seconds]
    if len(rows) > 1:
        rows.append(("all", sum(seconds for _, seconds in rows)))
    for step, seconds in rows:
        yield {"step": step, "wall time": PlainNumber(seconds, f"{seconds:,.1f} s")}
