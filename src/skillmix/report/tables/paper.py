"""Files for a paper: one LaTeX table for each metric, and all scores as tidy rows.

A tidy row is one number: run, student, setting, k, grader and metric, with its value, its interval and its n.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final

from skillmix.grading.points import FULL_MARKS, METRICS
from skillmix.models.lineage import short_name
from skillmix.report.records import Report
from skillmix.report.tables.latex import Marks, as_latex
from skillmix.report.tables.table import Entry, ReportTable, score_entry
from skillmix.scores.cells import Cell, CellKey


def paper_files(report: Report) -> Iterator[tuple[str, bytes]]:
    """The name and the content of every file for a paper."""
    marks = significance_marks(report)
    for table in _metric_tables(report):
        yield f"{table.name.removeprefix('metric-')}.tex", as_latex(table, marks).encode("ascii")
    rows = list(tidy_rows(report))
    yield "scores.csv", tidy_csv(rows).encode()
    parquet = tidy_parquet(rows)
    if parquet is not None:
        yield "scores.parquet", parquet


def significance_marks(report: Report) -> Marks:
    """A star for each tuned student whose full marks differ from those of its base."""
    cells = {cell.key: cell for cell in report.cells}
    signs = {}
    for change in report.changes:
        row = change.row
        cell = cells.get(CellKey(change.run, change.student, row.grader, row.setting, row.k))
        if cell is not None and row.found:
            signs[id(cell.scores[FULL_MARKS])] = "\\ensuremath{^{*}}"
    return Marks(signs, _STAR_NOTE)


_STAR_NOTE: Final = (
    "A star: full marks differ from those of the base on the same combinations (p < .05, permutation test, corrected "
    "by Holm over the settings and k of the two students)."
)


def _metric_tables(report: Report) -> Iterator[ReportTable]:
    """For each metric a table of all settings, with one row for each student and grader and one column for each k."""
    for metric in METRICS.values():
        rows = list(_metric_rows(report, metric.name))
        if not rows:
            return
        names = _names(report)
        yield ReportTable(
            name=f"metric-{metric.name.replace('_', '-')}",
            title=f"{metric.label.capitalize()} by k",
            note=f"{metric.label.capitalize()}: {metric.meaning}. Best of the generations, mean over combinations, "
            "with 95 % intervals.",
            columns=(*names, *(f"k = {k}" for k in report.ks)),
            rows=tuple(rows),
        )


def _names(report: Report) -> tuple[str, ...]:
    return (
        *(("setting",) if len(report.settings) > 1 else ()),
        *(("grader",) if len(report.graders) > 1 else ()),
        "student",
        *(("trained on",) if report.lineages else ()),
    )


def _metric_rows(report: Report, metric: str) -> Iterator[tuple[Entry, ...]]:
    cells = {cell.key: cell for cell in report.cells}
    columns = _names(report)
    for setting in report.settings:
        for grader in report.graders:
            for run, student in report.students:
                own = [cells.get(CellKey(run, student, grader, setting, k)) for k in report.ks]
                if any(own):
                    names = {
                        "setting": setting,
                        "grader": grader,
                        "student": report.label(run, student),
                        "trained on": short_name(report.training_of((run, student))),
                    }
                    yield (*(names[column] for column in columns), *(score_entry(cell, metric) for cell in own))


@dataclass(frozen=True, slots=True)
class TidyRow:
    """One number of a report."""

    run: str
    student: str
    setting: str
    k: int
    grader: str
    metric: str
    value: float | None
    low: float | None
    """The ends of the 95 % interval; None if there are too few combinations for one."""
    high: float | None
    n: int
    """Combinations or texts behind the value, as `unit` says."""
    unit: str


def tidy_rows(report: Report) -> Iterator[TidyRow]:
    """Every score of every cell, as one row each."""
    for cell in report.cells:
        for metric, value, interval, n, unit in _numbers(cell):
            run, student, grader, setting, k = cell.key
            yield TidyRow(run, student, setting, k, grader, metric, value, *interval, n, unit)


_Ends = tuple[float | None, float | None]


def _numbers(cell: Cell) -> Iterator[tuple[str, float | None, _Ends, int, str]]:
    """Metric, value, interval, n and unit of every number of a cell."""
    for name, score in cell.scores.items():
        yield name, score.value, (score.low, score.high), score.complete, "combinations"
        one_try = (score.one_try_low, score.one_try_high)
        yield f"{name}_one_try", score.one_try, one_try, score.complete, "combinations"
        valid = (score.among_valid_low, score.among_valid_high)
        yield f"{name}_among_valid", score.among_valid, valid, score.valid_texts, "texts"
    full = cell.scores[FULL_MARKS]
    if full.woven is not None:
        yield "woven_full_marks", full.woven, (full.woven_low, full.woven_high), full.complete, "combinations"
    yield "format_valid", cell.format_valid, (None, None), cell.written, "texts"
    if cell.cut is not None:
        yield "cut", cell.cut / cell.written if cell.written else None, (None, None), cell.written, "texts"


def tidy_csv(rows: Sequence[TidyRow]) -> str:
    """The rows in CSV, with numbers in full precision; an unknown number is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in fields(TidyRow)])
    writer.writerows(["" if value is None else value for value in asdict(row).values()] for row in rows)
    return out.getvalue()


def tidy_parquet(rows: Sequence[TidyRow]) -> bytes | None:
    """The rows in Parquet; None if pyarrow is not installed or there are no rows."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return None
    if not rows:
        return None
    types = {"str": pyarrow.string(), "int": pyarrow.int64(), "float | None": pyarrow.float64()}
    schema = pyarrow.schema([(field.name, types[_type_name(field.type)]) for field in fields(TidyRow)])
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([asdict(row) for row in rows], schema=schema), out)
    return out.getvalue()


def _type_name(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
