"""The contents of a report: every table and figure that the runs allow, in the sections of the page."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from matplotlib.figure import Figure

from skillmix.report.figures import scores as score_figures
from skillmix.report.figures import skills as skill_figures
from skillmix.report.figures.style import FigureStyle, Print, alternative_text, as_pdf, house_style, printed
from skillmix.report.records import Report
from skillmix.report.registry import SECTIONS, Drawing, FigureSpec, ReportTable, SectionId, TableSpec, specs_in
from skillmix.report.tables import data, graders
from skillmix.report.tables import scores as score_tables

TABLES: Final = specs_in(TableSpec, score_tables, graders, data)
FIGURES: Final = specs_in(FigureSpec, score_figures, skill_figures)


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """A figure with its print in both formats."""

    drawing: Drawing
    print: Print
    alternative: str
    """The numbers of the figure in words."""

    @property
    def name(self) -> str:
        """The name of its files."""
        return self.drawing.name

    @property
    def is_detail(self) -> bool:
        """Whether the page folds the figure away."""
        return self.drawing.is_detail


@dataclass(frozen=True, slots=True)
class Contents:
    """The tables and figures of a report by section, and why other figures are missing."""

    sections: dict[SectionId, list[ReportTable | ReportFigure]]
    """Only those that have a table or a figure."""
    gaps: list[str]

    @property
    def tables(self) -> list[ReportTable]:
        """Every table, in the order of the page."""
        return [item for items in self.sections.values() for item in items if isinstance(item, ReportTable)]

    @property
    def figures(self) -> list[ReportFigure]:
        """Every figure, in the order of the page."""
        return [item for items in self.sections.values() for item in items if isinstance(item, ReportFigure)]


def contents_of(report: Report, *, figures: bool = False) -> Contents:
    """Make every table of a report, and its figures if they are asked for."""
    placed: list[tuple[SectionId, int, ReportTable | ReportFigure]] = []
    for spec in TABLES:
        made = spec.make(report)
        for table in [made] if isinstance(made, ReportTable) else made or ():
            if table.rows:
                placed.append((spec.section, spec.order, table))
    gaps = [] if figures else ["Figures: not asked for."]
    with house_style():
        for drawing, figure in drawings(report) if figures else ():
            if figure is not None:
                item = ReportFigure(drawing, printed(figure, about=drawing.caption), alternative_text(figure))
                placed.append((drawing.section, drawing.order, item))
            # Where graders name outcomes, nothing is missing from the figures of scores.
            elif drawing.section == "safety" or not report.has_only_outcomes:
                gaps.append(f"{drawing.title}: {drawing.why_not}")
    placed.sort(key=lambda one: one[1])
    sections = {name: [item for section, _, item in placed if section == name] for name in SECTIONS}
    return Contents({name: items for name, items in sections.items() if items}, gaps)


def styled_figures(report: Report, style: FigureStyle) -> Iterator[tuple[str, bytes]]:
    """The name and the content of every figure in a style for a paper or a talk, as PDF and PNG."""
    with house_style(style):
        for drawing, figure in drawings(report):
            if figure is not None:
                yield f"{drawing.name}.png", printed(figure).png
                yield f"{drawing.name}.pdf", as_pdf(figure)


def drawings(report: Report) -> Iterator[tuple[Drawing, Figure | None]]:
    """Every figure that a report can have, in the order of the page, drawn where the runs allow it."""
    listed = [drawing for spec in FIGURES for drawing in spec.drawings(report)]
    for drawing in sorted(listed, key=lambda d: (list(SECTIONS).index(d.section), d.order)):
        yield drawing, drawing.draw(report)
