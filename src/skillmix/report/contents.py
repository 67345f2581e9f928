"""The contents of a report: every table and figure that the runs allow, in the sections of the page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.figure import Figure

from skillmix.report.figures import scores as score_figures
from skillmix.report.figures import skills as skill_figures
from skillmix.report.figures.style import (
    FigureStyle,
    Region,
    alternative_text,
    as_pdf,
    as_png,
    as_svg,
    house_style,
    laid_out,
    panel_regions,
    size_on_page,
)
from skillmix.report.records import Report
from skillmix.report.registry import (
    SECTIONS,
    Drawing,
    FigureSpec,
    Position,
    ReportTable,
    SectionId,
    TableSpec,
    specs_in,
)
from skillmix.report.tables import data, graders, outcomes
from skillmix.report.tables import scores as score_tables

TABLES: Final = specs_in(TableSpec, score_tables, outcomes, graders, data)
FIGURES: Final = specs_in(FigureSpec, score_figures, skill_figures)


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """A drawn figure in both formats."""

    name: str
    title: str
    caption: str
    alternative: str
    """The numbers of the figure in words."""
    size: tuple[int, int]
    """Width and height on the page, in pixels."""
    svg: bytes
    png: bytes
    regions: tuple[Region, ...] = ()
    """The panels, which a narrow page stacks."""
    is_detail: bool = False


@dataclass(frozen=True, slots=True)
class PageSection:
    """Tables and figures under one heading."""

    id: SectionId
    title: str
    intro: str
    items: tuple[ReportTable | ReportFigure, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """The tables and figures of a report, and why other figures are missing."""

    sections: tuple[PageSection, ...]
    """Only those that have a table or a figure."""
    gaps: tuple[str, ...]

    @property
    def tables(self) -> list[ReportTable]:
        """Every table, in the order of the page."""
        return [item for section in self.sections for item in section.items if isinstance(item, ReportTable)]

    @property
    def figures(self) -> list[ReportFigure]:
        """Every figure, in the order of the page."""
        return [item for section in self.sections for item in section.items if isinstance(item, ReportFigure)]


_Placed = tuple[Position, ReportTable | ReportFigure]


def contents_of(report: Report, *, figures: bool = False) -> Contents:
    """Make every table of a report, and its figures if they are asked for."""
    made = ((spec.position, table) for spec in TABLES for table in spec.make(report))
    # A report of outcomes has no scores, so tables of scores would be empty.
    placed: list[_Placed] = [(place, table) for place, table in made if table.rows or not report.has_only_outcomes]
    gaps = ["Figures: not asked for."]
    if figures:
        drawn, gaps = _drawn_figures(report)
        placed += drawn
    return Contents(tuple(_sections(placed)), tuple(gaps))


def _sections(placed: Sequence[_Placed]) -> Iterator[PageSection]:
    for name, section in SECTIONS.items():
        here = sorted((p for p in placed if p[0].section == name), key=lambda p: p[0].order)
        if here:
            yield PageSection(name, section.title, section.intro, tuple(item for _, item in here))


def _drawn_figures(report: Report) -> tuple[list[_Placed], list[str]]:
    """The figures that can be drawn, and for each of the others why it cannot."""
    drawn: list[_Placed] = []
    gaps: list[str] = []
    with house_style():
        for drawing, figure in drawings(report):
            if figure is None:
                # Where graders name outcomes, nothing is missing from the figures of scores.
                if drawing.position.section == "safety" or not report.has_only_outcomes:
                    gaps.append(f"{drawing.title}: {drawing.why_not}")
                continue
            laid_out(figure)
            made = ReportFigure(
                drawing.name,
                drawing.title,
                drawing.caption,
                alternative=alternative_text(figure),
                size=size_on_page(figure),
                svg=as_svg(figure, about=drawing.caption),
                png=as_png(figure),
                regions=panel_regions(figure),
                is_detail=drawing.is_detail,
            )
            drawn.append((drawing.position, made))
    return drawn, gaps


def styled_figures(report: Report, style: FigureStyle) -> Iterator[tuple[str, bytes]]:
    """The name and the content of every figure in a style for a paper or a talk, as PDF and PNG."""
    with house_style(style):
        for drawing, figure in drawings(report):
            if figure is not None:
                laid_out(figure)
                yield f"{drawing.name}.pdf", as_pdf(figure)
                yield f"{drawing.name}.png", as_png(figure)


def drawings(report: Report) -> Iterator[tuple[Drawing, Figure | None]]:
    """Every figure that a report can have, in the order of the page, drawn where the runs allow it."""
    listed = [drawing for spec in FIGURES for drawing in spec.drawings(report)]
    for drawing in sorted(listed, key=lambda d: d.position.sort_key):
        yield drawing, drawing.draw(report)
