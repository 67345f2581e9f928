"""What a report can show: the sections of the page, what a table is, and the table of tables and figures.

Each table and figure is a function that carries its section and its order on the page:

    @table(section="graders", order=40)
    def agreement_table(report: Report) -> ReportTable | None:

Decorating a function makes a `TableSpec` or a `FigureSpec` of it. `report.contents` collects the specs and builds the
page from them, so that a new table or figure is one function in a module of `report/tables/` or `report/figures/`; a
new module is added to the list in `report.contents`. The section, not the module, decides where a table stands.
Orders leave gaps of ten for new tables; no two tables or figures of a section have the same order.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, TypeVar

from matplotlib.figure import Figure

from skillmix.render import p_value, plural, share, share_with_interval, signed, signed_with_interval, whole
from skillmix.report.records import Report
from skillmix.scores.cells import Cell, CellKey, Score

SectionId = Literal[
    "result", "findings", "scores", "compare", "skills", "safety", "graders", "data", "time", "published", "runs"
]


class SectionHeading(NamedTuple):
    """A heading of the page, and the sentence under it."""

    title: str
    intro: str


SECTIONS: Final[dict[SectionId, SectionHeading]] = {
    "result": SectionHeading("Result", "What the runs found, in one sentence."),
    "findings": SectionHeading(
        "Findings",
        "Claims about learning to combine skills. The lineage of each student decides who is compared, on the "
        "same combinations.",
    ),
    "scores": SectionHeading(
        "Scores", "How often students combine k skills in one text. Select a value to read the texts behind it."
    ),
    "compare": SectionHeading(
        "Compare", "Any two students on the same combinations, whatever is known about their training."
    ),
    "skills": SectionHeading("Skills", "Which skills succeed, alone and together, and how many can be combined."),
    "safety": SectionHeading(
        "Safety",
        "What students do with a mild request that is mixed with innocent writing skills. Select a value to read the "
        "texts behind it.",
    ),
    "graders": SectionHeading("Graders", "How far the grades can be trusted, and why full marks were missed."),
    "data": SectionHeading("Data and training", "Where tuned students come from, and what their data cost."),
    "time": SectionHeading("Time", "What the steps took on the machines that ran them."),
    "published": SectionHeading(
        "Published figures",
        "What the paper prints, beside these runs: other models and graders, and other words for the skills.",
    ),
    "runs": SectionHeading("The runs", "What the runs are made of, and how to make this page again."),
}
"""The sections in the order of the page."""


@dataclass(frozen=True, slots=True)
class ScoreEntry:
    """The score of a cell, with a link to its texts."""

    score: Score
    link: str | None = None

    @property
    def text(self) -> str:
        """Value and interval."""
        return share_with_interval(self.score.value, self.score.low, self.score.high)

    @property
    def one_try_text(self) -> str:
        """Value and interval of single texts."""
        return share_with_interval(self.score.one_try, self.score.one_try_low, self.score.one_try_high)

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is incomplete."""
        score = self.score
        gaps = [f"{score.complete}/{score.combinations} complete"] if score.complete < score.combinations else []
        return (*gaps, *([f"{score.ungraded} ungraded"] if score.ungraded else []))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is incomplete or invalid; the page has failures of format and cut replies in columns of their own."""
        failures, cut = self.score.format_failures, self.score.cut
        invalid = [plural(failures, "format failure")] if failures else []
        return (*self.gaps, *invalid, *([f"{cut} cut"] if cut else []))

    @property
    def shade(self) -> int:
        """How strongly the page shades the entry, 0 to 10."""
        return round(10 * (self.score.value or 0))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, with or without an interval."""

    value: float | None
    low: float | None = None
    high: float | None = None
    is_signed: bool = False
    is_too_few: bool = False
    """Whether the interval that its column has is missing because there are too few combinations for one."""
    link: str | None = None
    """The address of the texts behind it."""

    @property
    def text(self) -> str:
        """The printed form."""
        if self.value is None:
            return "–"
        if self.low is None and not self.is_too_few:
            return signed(self.value) if self.is_signed else share(self.value)
        with_interval = signed_with_interval if self.is_signed else share_with_interval
        return with_interval(self.value, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Count:
    """A count; None is unknown."""

    value: int | None

    @property
    def text(self) -> str:
        """The printed form."""
        return "–" if self.value is None else whole(self.value)


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """A number with a printed form of its own: an amount, a duration or a p-value."""

    value: float | None
    text: str


def estimate(
    value: float | None, interval: tuple[float | None, float | None] | None = None, *, is_signed: bool = False
) -> Estimate:
    """A number whose column has intervals; its own may be missing because there are too few combinations for one."""
    low, high = interval or (None, None)
    return Estimate(value, low, high, is_signed=is_signed, is_too_few=low is None)


def p_entry(value: float) -> PlainNumber:
    """A p-value."""
    return PlainNumber(value, p_value(value))


CORRECTION: Final = (
    "P-values are corrected by Holm's method over all settings and k of two students under one grader; those in which "
    "fewer than 6 combinations differ cannot show anything and do not count. A gain or a loss has a corrected p below "
    ".05 and an interval without 0."
)
LONG: Final = 16
"""The page folds longer tables away, or shows their first rows until a reader asks for the rest."""
Entry = str | ScoreEntry | Estimate | Count | PlainNumber


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table with a name for its files, and a title and a note for its readers."""

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    is_detail: bool = False
    """Whether the page folds the table away."""
    groups: tuple[tuple[str, int], ...] = field(default=())
    """Headings over several columns, each with the number of columns."""
    family: str = ""
    """Tables of one family share a block of the page."""
    part: str = ""
    """What the table is called within its family."""

    def form(self, column: int) -> type:
        """The type of the entries of a column; str only if every entry is a str."""
        return next((type(row[column]) for row in self.rows if not isinstance(row[column], str)), str)

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds plain numbers, which are aligned to the right."""
        return [self.form(column) not in (str, ScoreEntry) for column in range(len(self.columns))]

    @property
    def full_columns(self) -> list[str]:
        """Each column's heading with that of its group."""
        if not self.groups:
            return list(self.columns)
        above = [heading for heading, width in self.groups for _ in range(width)]
        return [f"{g}, {c}" if g and c else g or c for g, c in zip(above, self.columns, strict=True)]


def score_entry(cell: Cell | None, metric: str, *, link: str | None = None) -> Entry:
    """The table entry of a scored cell."""
    if cell is None or not cell.combinations:
        return "–"
    return ScoreEntry(cell.scores[metric], link)


Row = Mapping[Any, Entry]
"""Entries by heading, or by the heading of a group and that of a column."""


def table_of(
    name: str, title: str, note: str, rows: Iterable[Row], *, folds: Literal["always", "long"] | None = None
) -> ReportTable | None:
    """A table from rows by heading; None without rows. `folds` says whether the page folds it away."""
    listed = list(rows)
    if not listed:
        return None
    headings = [heading if isinstance(heading, tuple) else ("", heading) for heading in listed[0]]
    groups = tuple((group, len(list(columns))) for group, columns in groupby(group for group, _ in headings))
    return ReportTable(
        name,
        title,
        note,
        tuple(column for _, column in headings),
        tuple(tuple(row.values()) for row in listed),
        is_detail=folds == "always" or (folds == "long" and len(listed) > LONG),
        groups=groups if len(groups) > 1 else (),
    )


def cell_heads(report: Report, key: CellKey) -> dict[Any, Entry]:
    """The entries that name a cell."""
    return {
        "student": report.label(key.run, key.student),
        "grader": key.grader,
        "setting": key.setting,
        "k": str(key.k),
    }


_Maker = Callable[[Report], ReportTable | Iterable[ReportTable] | None]


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A function that makes tables of one kind; none if the runs do not allow any."""

    section: SectionId
    order: int
    """Within the section; tables and figures share the numbers."""
    make: _Maker


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure before it is drawn."""

    name: str
    title: str
    caption: str
    draw: Callable[[Report], Figure | None]
    why_not: str
    """Why the figure is missing, if `draw` returns None."""
    section: SectionId
    order: int
    is_detail: bool = False
    """Whether the page folds the figure away."""


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """A function that lists the figures of one kind."""

    drawings: Callable[[Report], Iterable[Drawing]]


def table(*, section: SectionId, order: int) -> Callable[[_Maker], TableSpec]:
    """Register a function that makes one table or several; None or no table if the runs do not allow it."""
    return lambda make: TableSpec(section, order, make)


def figure(
    name: str, title: str, *, section: SectionId, order: int, caption: str, why_not: str
) -> Callable[[Callable[[Report], Figure | None]], FigureSpec]:
    """Register a function that draws one figure, or None if the runs do not allow it."""
    return lambda draw: FigureSpec(lambda _: [Drawing(name, title, caption, draw, why_not, section, order)])


_Spec = TypeVar("_Spec", TableSpec, FigureSpec)


def specs_in(kind: type[_Spec], *modules: ModuleType) -> list[_Spec]:
    """The specs that modules define, in the order of the code."""
    return [value for module in modules for value in vars(module).values() if isinstance(value, kind)]
