"""The tables that the paper prints, in its order, with the rows of these runs beside them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from skillmix.catalog.catalog import SETTINGS
from skillmix.models.lineage import short_name
from skillmix.report.records import Report, StudentKey
from skillmix.report.registry import tables
from skillmix.report.tables.scores import common_k, without_common
from skillmix.report.tables.table import Estimate, ReportTable
from skillmix.scores.cells import Cell

PAPER: Final = "paper"
"""The source of a published row."""
_ORDER: Final = {1: "table_10", 3: "table_11", 4: "table_4", 5: "table_5", 6: "table_6", 10: "table_10", 11: "table_11"}
"""The paper's tables by number, and where their numbers are; tables 1 and 3 print two metrics of tables 10 and 11."""
_TWO_METRICS: Final = (1, 3)
_DROPPED: Final = "all_skills"


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the paper or of these runs; a value for each group of columns and each metric."""

    source: str
    model: str
    trained_on: str
    setting: str
    grader: str
    values: tuple[tuple[Estimate, ...], ...]


@tables(section="published", order=10)
def paper_tables(report: Report) -> Iterator[ReportTable]:
    """Each table of the paper with the rows of these runs that have its layout; the paper gives no intervals."""
    for number, name in _ORDER.items():
        if name in report.published:
            yield _paper_table(report, number, report.published[name])


def _paper_table(report: Report, number: int, printed: Mapping[str, object]) -> ReportTable:
    metrics = [str(m) for m in _list(printed["metrics"]) if not (m == _DROPPED and number in _TWO_METRICS)]
    chosen = [_list(printed["metrics"]).index(m) for m in metrics]
    ks = [k for k in _list(printed.get("k")) if isinstance(k, int)]
    groups = [f"k = {k}" for k in ks] or [str(s) for s in _list(printed.get("settings"))]
    rows = [_printed_row(row, chosen) for row in map(_dict, _list(printed["rows"]))]
    rows = _in_order([*rows, *_own_rows(report, number, metrics, ks)])
    heads = [
        h for h in ("model", "source", "trained_on", "setting", "grader") if any(getattr(r, h) != "–" for r in rows)
    ]
    return ReportTable(
        name=f"paper-table-{number}",
        title=f"Table {number} of arXiv 2409.19808, and these runs",
        note=_note(report, printed),
        columns=(*(h.replace("_", " ") for h in heads), *(m.replace("_", " ") for _ in groups for m in metrics)),
        rows=tuple((*(str(getattr(r, h)) for h in heads), *(v for group in r.values for v in group)) for r in rows),
        groups=(("", len(heads)), *((group, len(metrics)) for group in groups)),
        is_detail=True,
        family="published",
        part=f"table {number}",
    )


def _note(report: Report, printed: Mapping[str, object]) -> str:
    """The paper's caption, and who graded the rows of these runs."""
    caption = str(printed["caption"]).rstrip(".")
    return f"{caption}. Rows of these runs: grader {report.graders[0]}." if report.graders else f"{caption}."


def _printed_row(row: Mapping[str, object], metrics: Sequence[int]) -> _Row:
    values = tuple(tuple(Estimate(_float(_list(group)[m])) for m in metrics) for group in _list(row["values"]))
    model, trained_on, setting, grader = (
        str(row.get(head, "–")) for head in ("model", "trained_on", "setting", "grader")
    )
    return _Row(PAPER, model, trained_on, setting, grader, values)


def _in_order(rows: Sequence[_Row]) -> list[_Row]:
    """By setting, the paper's rows before those of these runs."""
    return sorted(rows, key=lambda row: (*SETTINGS, row.setting).index(row.setting))


def _own_rows(report: Report, number: int, metrics: Sequence[str], ks: Sequence[int]) -> Iterator[_Row]:
    """The rows of these runs in the layout of a table of the paper."""
    if number == 6:
        yield from _without_common_rows(report, metrics)
        return
    settings = SETTINGS if number in (1, 3, 10, 11) else ("all",)
    graders = report.graders if number == 5 else report.graders[:1]
    for key in report.students:
        for setting in settings if number != 4 or key in report.lineages else ():
            for grader in graders:
                cells = {c.key.k: c for c in report.cells_of(key, grader=grader, setting=setting)}
                if cells.keys() & set(ks):
                    values = tuple(_values(cells.get(k), metrics) for k in ks)
                    yield _own_row(report, key, setting, grader if number == 5 else "–", values)


def _without_common_rows(report: Report, metrics: Sequence[str]) -> Iterator[_Row]:
    """The rows of the table without common skills, which the paper prints for k = 5."""
    chosen = without_common(report) if common_k(report) == 5 else None
    for key in report.students if chosen else ():
        mine = [c for c in (chosen or ((), ""))[0] if (c.key.run, c.key.student) == key]
        # A draw without some skills has a label of its own, such as `train-without-common`.
        cells = {c.key.setting.partition("-without-")[0]: c for c in mine if c.key.grader == report.graders[0]}
        if cells:
            yield _own_row(report, key, "–", "–", tuple(_values(cells.get(s), metrics) for s in SETTINGS))


def _own_row(
    report: Report, key: StudentKey, setting: str, grader: str, values: tuple[tuple[Estimate, ...], ...]
) -> _Row:
    trained = short_name(report.training_of(key)) if key in report.lineages else "–"
    return _Row(key[0], key[1], trained, setting, grader, values)


def _values(cell: Cell | None, metrics: Sequence[str]) -> tuple[Estimate, ...]:
    if cell is None:
        return tuple(Estimate(None) for _ in metrics)
    scores = [cell.scores[metric] for metric in metrics]
    return tuple(Estimate(score.value, score.low, score.high) for score in scores)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
