"""Tables as the page shows them: one metric at a time where a table is wide, and related tables in one block."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from skillmix.report.contents import ReportFigure
from skillmix.report.tables.table import LONG, Count, Entry, Estimate, ReportTable, ScoreEntry, Seconds

PUBLISHED_BLOCK: Final = "published-and-ours"
"""The block of the paper's tables."""
SECONDS: Final = ", s"
"""The unit after the heading of a column of seconds; files have the heading alone."""
_WIDEST: Final = 12
"""A table with more columns shows one metric at a time."""


@dataclass(frozen=True, slots=True)
class TableBody:
    """Rows under one heading."""

    id: str
    heading: str
    rows: tuple[tuple[Entry, ...], ...]


@dataclass(frozen=True, slots=True)
class TableView:
    """One table of a block; a switch chooses between several."""

    label: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    groups: tuple[tuple[str, int], ...]
    bodies: tuple[TableBody, ...]
    heads: int = 1
    """Columns that head a row."""


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table, or several related ones, with a title, a note and files."""

    id: str
    title: str
    note: str
    views: tuple[TableView, ...]
    files: tuple[str, ...]
    is_detail: bool = False
    is_long: bool = False
    """Whether the page shows only the first rows until a reader asks for the rest."""


Block = TableBlock | ReportFigure


def blocks_of(items: Iterable[ReportTable | ReportFigure]) -> Iterator[Block]:
    """The blocks of a section; the tables of a family come where the first of them stands."""
    listed = list(items)
    families = dict.fromkeys(item.family for item in listed if isinstance(item, ReportTable) and item.family)
    for item in listed:
        if isinstance(item, ReportFigure):
            yield item
        elif not item.family:
            yield _single(item)
        elif item.family in families:
            del families[item.family]
            members = [t for t in listed if isinstance(t, ReportTable) and t.family == item.family]
            yield _FAMILIES[item.family](members)


def _single(table: ReportTable) -> TableBlock:
    is_wide = _is_by_metric(table)
    views = _metric_views([table], [TableBody("", "", ())]) if is_wide else [_plain_view(table, "")]
    is_long = not table.is_detail and len(table.rows) > LONG
    return TableBlock(table.name, table.title, _note(table), tuple(views), (table.name,), table.is_detail, is_long)


def _note(table: ReportTable) -> str:
    return table.note if table.page_note is None else table.page_note


def _scores(tables: Sequence[ReportTable]) -> TableBlock:
    """The scores of all settings, a body for each; the widest table of a setting has every metric."""
    parts = dict.fromkeys(table.part for table in tables)
    widest = [max((t for t in tables if t.part == part), key=lambda t: len(t.columns)) for part in parts]
    names = [next(t.name for t in tables if t.part == part) for part in parts]
    bodies = [TableBody(name, f"setting {part}", ()) for name, part in zip(names, parts, strict=True)]
    notes = dict.fromkeys(_note(t) for t in widest)
    views = _metric_views(widest, bodies)
    return TableBlock("scores-by-k", "Scores by k", " ".join(notes), tuple(views), tuple(t.name for t in tables))


def _published(tables: Sequence[ReportTable]) -> TableBlock:
    """The tables of the paper, chosen by number."""
    views = [_plain_view(table, table.part) for table in tables]
    note = "The paper gives no intervals. A row of these runs has its 95 % interval below each value."
    return TableBlock(
        PUBLISHED_BLOCK, "Published figures beside these runs", note, tuple(views), tuple(t.name for t in tables)
    )


_FAMILIES: Final = {"scores": _scores, "published": _published}


def _plain_view(table: ReportTable, label: str) -> TableView:
    heading = table.note if label else ""
    body = TableBody("", heading, table.rows)
    columns = tuple(f"{name}{SECONDS}" if table.form(c) is Seconds else name for c, name in enumerate(table.columns))
    return TableView(label, columns, tuple(table.numeric), table.groups, (body,))


def _is_by_metric(table: ReportTable) -> bool:
    """Whether a table is too wide, and repeats its metrics under several groups."""
    return len(table.columns) > _WIDEST and len(_grouped(table)) > 1


def _grouped(table: ReportTable) -> dict[str, dict[str, int]]:
    """The column of each heading, by group; columns without a group head the rows."""
    grouped: dict[str, dict[str, int]] = {}
    column = 0
    for heading, width in table.groups:
        if heading:
            grouped[heading] = {table.columns[c]: c for c in range(column, column + width)}
        column += width
    return grouped


def _metric_views(tables: Sequence[ReportTable], bodies: Sequence[TableBody]) -> list[TableView]:
    """A view for each metric with a column for each group, or one view if there is one group.

    Metrics that no row knows are left out.
    """
    grouped = [_grouped(table) for table in tables]
    groups = sorted({group for columns in grouped for group in columns}, key=_group_rank)
    labels = list(dict.fromkeys(label for columns in grouped for group in columns.values() for label in group))
    views = [
        view
        for label in labels
        for view in [_view(tables, bodies, label, [(group, group, label) for group in groups])]
        if any(_is_known(entry) for body in view.bodies for row in body.rows for entry in row[view.heads :])
    ]
    if len(groups) > 1 or not views:
        return views
    known = [view.label for view in views]
    one = _view(tables, bodies, "", [(label, groups[0], label) for label in known])
    return [replace(one, groups=(("", one.heads), (groups[0], len(known))))]


def _view(
    tables: Sequence[ReportTable], bodies: Sequence[TableBody], name: str, chosen: Sequence[tuple[str, str, str]]
) -> TableView:
    """The columns that are chosen by heading, group and metric, after the columns that head the rows."""
    first = tables[0]
    heads = 0 if first.groups[0][0] else first.groups[0][1]
    made = []
    for table, body in zip(tables, bodies, strict=True):
        columns = [_grouped(table).get(group, {}).get(label) for _, group, label in chosen]
        rows = tuple((*row[:heads], *("–" if c is None else row[c] for c in columns)) for row in table.rows)
        made.append(replace(body, rows=rows))
    names = (*first.columns[:heads], *(heading for heading, *_ in chosen))
    numeric = (*first.numeric[:heads], *(True for _ in chosen))
    return TableView(name, names, numeric, (), tuple(made), heads)


def _group_rank(group: str) -> tuple[int, str]:
    """By number where a group has one, such as k = 10."""
    number = group.removeprefix("k = ")
    return (int(number) if number.isdecimal() else 0), group


def _is_known(entry: Entry) -> bool:
    if isinstance(entry, ScoreEntry):
        return entry.score.value is not None
    if isinstance(entry, Estimate | Count):
        return entry.value is not None
    return entry != "–"
