"""What a report can show: each table and figure is a function that carries its section and its order on the page.

    @table(section="graders", order=40)
    def agreement_table(report: Report) -> ReportTable | None:

Decorating a function makes a `TableSpec` or a `FigureSpec` of it. `report.contents` collects the specs and builds the
page from them, so that a new table or figure is one function in a module of `report/tables/` or `report/figures/`; a
new module is added to the list in `report.contents`. The section and not the module decides where a table stands.
Orders leave gaps of ten for new tables; no two tables or figures of a section have the same order.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

from matplotlib.figure import Figure

from skillmix.report.records import Report
from skillmix.report.sections import SECTIONS, SectionId
from skillmix.report.tables.table import ReportTable


@dataclass(frozen=True, slots=True)
class Position:
    """Where a table or a figure stands on the page."""

    section: SectionId
    order: int
    """Within the section; tables and figures share the numbers."""

    def __post_init__(self) -> None:
        if self.section not in SECTIONS:
            raise ValueError(f"the page has no section {self.section!r}")

    @property
    def sort_key(self) -> tuple[int, int]:
        """The section's number, then the order within the section."""
        return list(SECTIONS).index(self.section), self.order


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A function that makes the tables of one kind; none if the runs do not allow any."""

    position: Position
    make: Callable[[Report], Iterable[ReportTable]]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure before it is drawn."""

    name: str
    title: str
    caption: str
    draw: Callable[[Report], Figure | None]
    why_not: str
    """Why the figure is missing, if `draw` returns None."""
    position: Position
    is_detail: bool = False
    """Whether the page folds the figure away."""


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """A function that lists the figures of one kind."""

    drawings: Callable[[Report], Iterable[Drawing]]


def table(*, section: SectionId, order: int) -> Callable[[Callable[[Report], ReportTable | None]], TableSpec]:
    """Register a function that makes one table, or None if the runs do not allow it."""
    position = Position(section, order)

    def register(make: Callable[[Report], ReportTable | None]) -> TableSpec:
        def tables_of(report: Report) -> Iterator[ReportTable]:
            made = make(report)
            if made is not None:
                yield made

        return TableSpec(position, tables_of)

    return register


def tables(*, section: SectionId, order: int) -> Callable[[Callable[[Report], Iterable[ReportTable]]], TableSpec]:
    """Register a function that makes several tables of one kind."""
    position = Position(section, order)
    return lambda make: TableSpec(position, make)


def figure(
    name: str, title: str, *, section: SectionId, order: int, caption: str, why_not: str
) -> Callable[[Callable[[Report], Figure | None]], FigureSpec]:
    """Register a function that draws one figure, or None if the runs do not allow it."""
    position = Position(section, order)
    return lambda draw: FigureSpec(lambda _: [Drawing(name, title, caption, draw, why_not, position)])


def figures(list_drawings: Callable[[Report], Iterable[Drawing]]) -> FigureSpec:
    """Register a function that lists several figures of one kind."""
    return FigureSpec(list_drawings)


_Spec = TypeVar("_Spec", TableSpec, FigureSpec)


def specs_in(kind: type[_Spec], *modules: ModuleType) -> list[_Spec]:
    """The specs that modules define, in the order of the code."""
    return [value for module in modules for value in vars(module).values() if isinstance(value, kind)]
