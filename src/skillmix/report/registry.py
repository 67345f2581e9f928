"""Define what a report can show: the sections of the page with their tables and figures, and the parts of a table.

`files/contents.yaml` lists the sections in the order of the page, and their tables and figures with all texts. For
example, the table `graders-agreement` is made by the following function in a module of `report/tables/`:

    def graders_agreement_table(report: Report) -> Iterator[Row]:

The function yields rows or, if tables need their own words, whole tables. A figure is drawn by a function such as
`yield_figure` in a module of `report/figures/`, which returns the figure or yields several drawings. A new table or
figure therefore needs an entry in the file and a function. A new module must be added to the list in `report.contents`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from skillmix.catalog.novelty import ASSUMPTIONS
from skillmix.files import read_yaml
from skillmix.grading.points import METRICS
from skillmix.render import p_value, plural, share, share_with_interval, signed, signed_with_interval, whole
from skillmix.report.records import Report
from skillmix.scores.cells import Cell, CellKey, Score
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS

FILES: Final = Path(__file__).with_name("files")
"""The folder that contains the pages' templates, styles, scripts and texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A table or a figure that a section can contain. Braces in its texts are filled with words from its function."""

    section: str
    title: str
    table: str = ""
    """The name of the table; empty for a figure."""
    figure: str = ""
    """The name of the figure; empty for a table."""
    note: str = ""
    caption: str = ""
    why_not: str = ""
    """The explanation shown if the figure is missing."""
    folds: str = ""
    """When the page collapses the table: `always`, `long` (only if it is long), or never if empty."""
    family: str = ""
    by: str = ""
    """The table whose function also makes this table."""


@dataclass(frozen=True, slots=True)
class PageSection:
    """A heading of the page, the sentence under the heading, and the possible contents of the section."""

    title: str
    intro: str
    items: tuple[Item, ...]


_DOCUMENT: Final[Any] = read_yaml(FILES / "contents.yaml")
_FEWEST: Final = {"fewest_combinations": str(FEWEST_COMBINATIONS)}
PHRASES: Final[dict[str, str]] = {n: phrase.format(**_FEWEST) for n, phrase in _DOCUMENT["phrases"].items()} | _FEWEST
SECTIONS: Final = {
    name: PageSection(own["title"], own["intro"], tuple(Item(section=name, **item) for item in own["items"]))
    for name, own in _DOCUMENT["sections"].items()
}
"""The sections in the order of the page."""
ITEMS: Final = tuple(item for section in SECTIONS.values() for item in section.items)
_TABLES: Final = {item.table: item for item in ITEMS}
_FIGURES: Final = {item.figure: item for item in ITEMS}


def glossary() -> dict[str, str]:
    """Return the terms used in the tables, with their meanings."""
    terms: dict[str, str] = {}
    for name, meaning in _DOCUMENT["glossary"].items():
        if name == "metrics":
            terms |= {m.label: meaning.format(meaning=m.meaning[0].upper() + m.meaning[1:]) for m in METRICS.values()}
        else:
            terms[name] = meaning.format(**_FEWEST, assumptions="; that ".join(ASSUMPTIONS))
    return terms


@dataclass(frozen=True, slots=True)
class ScoreEntry:
    """The score of a cell, with a link to the texts behind it."""

    score: Score
    link: str | None = None

    @property
    def text(self) -> str:
        """Return the value and its interval."""
        return share_with_interval(self.score.value, self.score.low, self.score.high)

    @property
    def one_try_text(self) -> str:
        """Return the value and the interval for single texts."""
        return share_with_interval(self.score.one_try, self.score.one_try_low, self.score.one_try_high)

    @property
    def gaps(self) -> tuple[str, ...]:
        """List incomplete combinations and ungraded texts."""
        score = self.score
        gaps = [f"{score.complete}/{score.combinations} complete"] if score.complete < score.combinations else []
        return (*gaps, *([f"{score.ungraded} ungraded"] if score.ungraded else []))

    @property
    def warnings(self) -> tuple[str, ...]:
        """List gaps, format failures and truncated replies.

        The page has separate columns for format failures and truncated replies.
        """
        failures, cut = self.score.format_failures, self.score.cut
        invalid = [plural(failures, "format failure")] if failures else []
        return (*self.gaps, *invalid, *([f"{cut} cut"] if cut else []))

    @property
    def shade(self) -> int:
        """Return how strongly the page shades the entry, from 0 to 10."""
        return round(10 * (self.score.value or 0))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, with or without an interval."""

    value: float | None
    low: float | None = None
    high: float | None = None
    is_signed: bool = False
    is_too_few: bool = False
    """Whether the interval is missing because there are too few combinations."""
    link: str | None = None
    """The link to the texts behind the number."""

    @property
    def text(self) -> str:
        """Return the printed form."""
        if self.value is None:
            return "–"
        if self.low is None and not self.is_too_few:
            return signed(self.value) if self.is_signed else share(self.value)
        with_interval = signed_with_interval if self.is_signed else share_with_interval
        return with_interval(self.value, self.low, self.high)


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """A number without an interval, with its printed form, such as a count, an amount or a p-value."""

    value: float | None
    text: str


def count(value: int | None) -> PlainNumber:
    """Make the table entry for a count; None stands for an unknown count."""
    return PlainNumber(value, "–" if value is None else whole(value))


def estimate(
    value: float | None, interval: tuple[float | None, float | None] | None = None, *, is_signed: bool = False
) -> Estimate:
    """Make an estimate for a column with intervals; a missing interval means that there are too few combinations."""
    low, high = interval or (None, None)
    return Estimate(value, low, high, is_signed=is_signed, is_too_few=low is None)


def p_entry(value: float) -> PlainNumber:
    """Make the table entry for a p-value."""
    return PlainNumber(value, p_value(value))


LONG: Final = 16
"""The page collapses a table with more rows than this, or shows its first rows until a reader requests the rest."""
Entry = str | ScoreEntry | Estimate | PlainNumber


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table, with a name for its files and a title and a note for its readers."""

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    is_detail: bool = False
    """Whether the page collapses the table."""
    groups: tuple[tuple[str, int], ...] = ()
    """Headings that span several columns, each with its number of columns."""
    family: str = ""
    """The family of the table; tables of the same family share a block of the page."""
    part: str = ""
    """The name of the table within its family."""

    def form(self, column: int) -> type:
        """Return the type of the entries in a column; str only if every entry is a str."""
        return next((type(row[column]) for row in self.rows if not isinstance(row[column], str)), str)

    @property
    def numeric(self) -> list[bool]:
        """Return, for each column, whether it contains plain numbers, which are aligned to the right."""
        return [self.form(column) not in (str, ScoreEntry) for column in range(len(self.columns))]

    @property
    def full_columns(self) -> list[str]:
        """Return each column's heading, combined with the heading of its group."""
        if not self.groups:
            return list(self.columns)
        above = [heading for heading, width in self.groups for _ in range(width)]
        return [f"{g}, {c}" if g and c else g or c for g, c in zip(above, self.columns, strict=True)]


def score_entry(cell: Cell | None, metric: str, *, link: str | None = None) -> Entry:
    """Make the table entry for a scored cell."""
    if cell is None or not cell.combinations:
        return "–"
    return ScoreEntry(cell.scores[metric], link)


Row = Mapping[Any, Entry]
"""Entries by heading, or by the headings of a group and a column."""


def table_of(
    name: str, rows: Iterable[Row], *, file: str | None = None, part: str = "", **words: object
) -> list[ReportTable]:
    """Make the table that `contents.yaml` lists under this name; return an empty list without rows.

    `file` replaces the name of the table's files; `part` and `words` are inserted into its title and note.
    """
    item, listed = _TABLES[name], list(rows)
    if not listed:
        return []
    words = {**PHRASES, **words, "part": part}
    title, note = (text.format(**words) for text in (item.title, item.note))
    return [rows_as_table(file or name, title, note, listed, folds=item.folds, family=item.family, part=part)]


def rows_as_table(
    name: str, title: str, note: str, rows: list[Row], *, folds: str = "", family: str = "", part: str = ""
) -> ReportTable:
    """Make a table from one or more rows, each of which maps headings to entries."""
    headings = [heading if isinstance(heading, tuple) else ("", heading) for heading in rows[0]]
    groups = tuple((group, len(list(columns))) for group, columns in groupby(group for group, _ in headings))
    return ReportTable(
        name,
        title,
        note,
        tuple(column for _, column in headings),
        tuple(tuple(row.values()) for row in rows),
        is_detail=folds == "always" or (folds == "long" and len(rows) > LONG),
        groups=groups if len(groups) > 1 else (),
        family=family,
        part=part,
    )


def cell_heads(report: Report, key: CellKey) -> dict[Any, Entry]:
    """Return the entries that identify a cell."""
    names = {"student": report.label(key.run, key.student), "grader": key.grader, "setting": key.setting}
    return {**names, "k": str(key.k)}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure before it is drawn."""

    item: Item
    name: str
    title: str
    caption: str
    why_not: str
    draw: Callable[[Report], Figure | None]
    is_detail: bool = False
    """Whether the page collapses the figure."""


def drawing_of(
    kind: str,
    draw: Callable[[Report], Figure | None],
    *,
    file: str | None = None,
    is_detail: bool = False,
    **words: object,
) -> Drawing:
    """Make the drawing for a figure that `contents.yaml` lists under this name.

    `file` replaces the name of the figure's files, and the words are inserted into title and caption.
    """
    item, words = _FIGURES[kind], {**PHRASES, **words}
    title, caption, why_not = (text.format(**words) for text in (item.title, item.caption, item.why_not))
    return Drawing(item, file or kind, title, caption, why_not, draw, is_detail)
