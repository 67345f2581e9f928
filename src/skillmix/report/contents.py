"""Which table and which figure stands where."""

from collections.abc import Mapping, Sequence

from skillmix.grading.points import METRICS
from skillmix.report.figures.drawing import ReportFigure
from skillmix.report.page import PageSection
from skillmix.report.records import Report
from skillmix.report.tables.data import Published, lineage_table, paper_tables, yield_table
from skillmix.report.tables.graders import (
    agreement_table,
    criteria_table,
    disagreement_table,
    independence_table,
    loss_table,
    readability_table,
    rounds_table,
)
from skillmix.report.tables.scores import Link, score_tables
from skillmix.report.tables.table import ReportTable


def tables_of(report: Report, *, link: Link, published: Mapping[str, Published]) -> list[ReportTable]:
    """Every table that the runs allow, but that of the findings."""
    others = (
        criteria_table(report),
        loss_table(report),
        independence_table(report),
        rounds_table(report),
        agreement_table(report),
        disagreement_table(report),
        readability_table(report),
        lineage_table(report),
        yield_table(report),
        *paper_tables(published),
    )
    return [*score_tables(report, link), *(table for table in others if table is not None)]


def sections_of(tables: Sequence[ReportTable], figures: Sequence[ReportFigure]) -> list[PageSection]:
    """Tables and figures by what they are about; every one has its place, and a section without any is left out."""
    items: dict[str, ReportTable | ReportFigure] = {f"figure:{figure.name}": figure for figure in figures}
    items |= {table.name: table for table in tables}

    def some(*names: str) -> tuple[ReportTable | ReportFigure, ...]:
        return tuple(items[name] for name in names if name in items)

    main = [metric.name.replace("_", "-") for metric in METRICS.values() if metric.is_main]
    settings = [t.name for t in tables if t.name.startswith("scores-")]
    plan = (
        (
            "scores",
            "Scores",
            "How often students combine k skills in one text. Click a value to read the texts behind it.",
            some(
                *(f"figure:{name}" for name in main[:1]),
                *settings,
                "before-and-after",
                "seen-and-reserved",
                "data-efficiency",
                "graders-side-by-side",
                "common-skills-removed",
                "rules-side-by-side",
                *(f"figure:{name}" for name in main[1:]),
            ),
        ),
        (
            "skills",
            "Skills",
            "Which skills succeed, alone and together, and how many can be combined.",
            some(
                "figure:saturation",
                "figure:observed-and-independent",
                "observed-and-independent",
                "figure:common-skills-removed",
                "figure:requested-and-unrequested",
                *_names(figures, "skills-before-and-after", "pairs-"),
            ),
        ),
        (
            "graders",
            "Graders",
            "How far the grades can be trusted, and why full marks were missed.",
            some(
                "points-by-criterion",
                "why-full-marks-were-missed",
                "rounds",
                "graders-agreement",
                "graders-disagree-on",
                "unreadable",
            ),
        ),
        (
            "data",
            "Data and training",
            "Where tuned students come from, and what their data cost.",
            some("lineage", "yield", "figure:yield", "figure:data-efficiency", "figure:training-curves"),
        ),
        (
            "published",
            "Published figures",
            "What the paper prints for its own models and graders: other models, and other words for the skills.",
            some(*(t.name for t in tables if t.name.startswith("paper-"))),
        ),
    )
    sections = [PageSection(*parts) for parts in plan if parts[3]]
    shown = {id(item) for section in sections for item in section.items}
    left_off = [table.name for table in tables if id(table) not in shown]
    left_off += [figure.name for figure in figures if id(figure) not in shown]
    assert not left_off, f"no section of the page lists {', '.join(left_off)}"
    return sections


def _names(figures: Sequence[ReportFigure], *prefixes: str) -> list[str]:
    """Figures whose names start so, as `figure:NAME`."""
    return [f"figure:{figure.name}" for figure in figures if figure.name.startswith(prefixes)]
