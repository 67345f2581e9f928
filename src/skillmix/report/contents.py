"""The contents of a report: every table and figure for which the runs have data, in the sections of the page."""

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import isgeneratorfunction
from typing import Any, Final

from matplotlib.figure import Figure

from skillmix.report.figures import scores as score_figures
from skillmix.report.figures import skills as skill_figures
from skillmix.report.figures.style import FigureStyle, Print, alternative_text, as_pdf, house_style, printed
from skillmix.report.records import Report
from skillmix.report.registry import ITEMS, SECTIONS, Drawing, Item, ReportTable, drawing_of, table_of
from skillmix.report.tables import data, graders
from skillmix.report.tables import scores as score_tables

_TABLE_FUNCTIONS: Final = vars(score_tables) | vars(graders) | vars(data)
_FIGURE_FUNCTIONS: Final = vars(score_figures) | vars(skill_figures)
TABLES: Final[list[tuple[Item, Any]]] = [
    (item, _TABLE_FUNCTIONS[f"{item.table.replace('-', '_')}_table"]) for item in ITEMS if item.table and not item.by
]
FIGURES: Final[list[tuple[Item, Any]]] = [
    (item, _FIGURE_FUNCTIONS[f"{item.figure.replace('-', '_')}_figure"]) for item in ITEMS if item.figure
]


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """A figure drawn as SVG and PNG, with its caption and a description of its numbers."""

    drawing: Drawing
    print: Print
    alternative: str
    """The numbers in the figure, described in words."""

    @property
    def name(self) -> str:
        """Return the name of the figure's files."""
        return self.drawing.name

    @property
    def is_detail(self) -> bool:
        """Whether the page collapses the figure."""
        return self.drawing.is_detail


@dataclass(frozen=True, slots=True)
class Contents:
    """The tables and figures of a report by section, and the reasons for missing figures."""

    sections: dict[str, list[ReportTable | ReportFigure]]
    """The tables and figures of each section; sections without any are absent."""
    gaps: list[str]

    @property
    def tables(self) -> list[ReportTable]:
        """Return every table, in the order of the page."""
        return [item for items in self.sections.values() for item in items if isinstance(item, ReportTable)]

    @property
    def figures(self) -> list[ReportFigure]:
        """Return every figure, in the order of the page."""
        return [item for items in self.sections.values() for item in items if isinstance(item, ReportFigure)]


def contents_of(report: Report, *, figures: bool = False) -> Contents:
    """Make every table of a report and, if requested, every figure."""
    made: dict[Item, list[ReportTable | ReportFigure]] = {}
    for item, make in TABLES:
        found = list(make(report))
        is_made = bool(found) and isinstance(found[0], ReportTable)
        made[item] = [*(found if is_made else table_of(item.table, found))]
    gaps = [] if figures else ["Figures: not requested."]
    with house_style():
        for drawing, figure in drawings(report) if figures else ():
            if figure is not None:
                drawn = ReportFigure(drawing, printed(figure, about=drawing.caption), alternative_text(figure))
                made.setdefault(drawing.item, []).append(drawn)
            # if graders give outcomes, no figures of scores are expected
            elif drawing.item.section == "safety" or not report.has_only_outcomes:
                gaps.append(f"{drawing.title}: {drawing.why_not}")
    sections: dict[str, list[ReportTable | ReportFigure]] = {}
    for name, section in SECTIONS.items():
        placed = [one for item in section.items for one in made.get(item, ())]
        # collapsed figures come last
        placed.sort(key=lambda one: isinstance(one, ReportFigure) and one.is_detail)
        sections |= {name: placed} if placed else {}
    return Contents(sections, gaps)


def styled_figures(report: Report, style: FigureStyle) -> Iterator[tuple[str, bytes]]:
    """Yield the file name and content of every figure as PNG and PDF, in a style for papers or slides."""
    with house_style(style):
        for drawing, figure in drawings(report):
            if figure is not None:
                yield f"{drawing.name}.png", printed(figure).png
                yield f"{drawing.name}.pdf", as_pdf(figure)


def drawings(report: Report) -> Iterator[tuple[Drawing, Figure | None]]:
    """Yield every possible figure of a report in page order; the figure is None if the runs lack the data."""
    listed: list[Drawing] = []
    for item, make in FIGURES:
        listed += make(report) if isgeneratorfunction(make) else [drawing_of(item.figure, make)]
    for drawing in sorted(listed, key=lambda drawing: (list(SECTIONS).index(drawing.item.section), drawing.is_detail)):
        yield drawing, drawing.draw(report)
