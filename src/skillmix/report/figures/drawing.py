"""All figures of a report, with their titles and what they say in words."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from matplotlib.figure import Figure

from skillmix.grading.points import METRICS
from skillmix.report.figures import scores, skills
from skillmix.report.figures.style import as_png, as_svg, house_style, laid_out
from skillmix.report.records import Report
from skillmix.report.tables.scores import students_label


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """A drawn figure in both forms."""

    name: str
    title: str
    caption: str
    svg: bytes
    png: bytes
    is_detail: bool = False


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """A figure that may be drawn."""

    name: str
    title: str
    caption: str
    draw: Callable[[Report], Figure | None]
    why_not: str
    """Said where it cannot be drawn."""
    is_detail: bool = False


_FIXED: Final = (
    FigureSpec(
        "saturation",
        "How many skills a student can combine",
        "The largest k up to which full marks stay at or above .10.",
        scores.saturation_points,
        "No cell has a graded combination.",
    ),
    FigureSpec(
        "observed-and-independent",
        "Observed, and expected of independent skills",
        "One try. Above the dashed line skills help each other, below it they are in each other's way.",
        scores.observed_and_independent,
        "No text is fully decided.",
    ),
    FigureSpec(
        "common-skills-removed",
        "Common skills removed, and the novelty bound",
        "Above the bound not all texts can stand in a training corpus of that size, if skills are independent there.",
        scores.common_removed,
        "The catalogue has no list of common skills, or no combination drawn is without them.",
    ),
    FigureSpec(
        "requested-and-unrequested",
        "Skills shown, asked for and not",
        "Found by code in each text.",
        skills.requested_and_unrequested,
        "Skills that were not asked for are known only where code grades (`rules:`).",
    ),
    FigureSpec(
        "data-efficiency",
        "Full marks against the amount of data",
        "One point for each tuned student, one line for each richness of data.",
        skills.data_efficiency,
        "No student has a lineage that says how many conversations it was trained on.",
    ),
    FigureSpec(
        "yield",
        "Yield per k",
        "Of the conversations written for a data set, those with full marks; the numbers count them.",
        skills.yield_per_k,
        "The runs made no data set.",
    ),
    FigureSpec(
        "training-curves",
        "Training curves",
        "Solid: loss on answers; dashed: on data held back; dotted: on replayed text.",
        skills.training_curves,
        "The runs trained nothing.",
    ),
)


def figures(report: Report) -> tuple[list[ReportFigure], list[str]]:
    """What can be drawn, and why the rest cannot."""
    drawn: list[ReportFigure] = []
    gaps: list[str] = []
    with house_style():
        for plan, figure in drawings(report):
            if figure is None:
                gaps.append(f"{plan.title}: {plan.why_not}")
            else:
                laid_out(figure)
                files = as_svg(figure, about=plan.caption), as_png(figure)
                drawn.append(ReportFigure(plan.name, plan.title, plan.caption, *files, is_detail=plan.is_detail))
    if len(report.students) < 2:
        gaps.append("Skills before and after: there is one student only.")
    return drawn, gaps


def drawings(report: Report) -> Iterator[tuple[FigureSpec, Figure | None]]:
    """Every figure that a report may have, drawn where the runs allow it."""
    for plan in (*_of_metrics(), *_FIXED, *_of_students(report)):
        yield plan, plan.draw(report)


def _of_metrics() -> Iterator[FigureSpec]:
    for metric in METRICS.values():
        if metric.is_main:
            yield FigureSpec(
                metric.name.replace("_", "-"),
                f"{metric.label.capitalize()} against k",
                f"{metric.label.capitalize()}: {metric.meaning}. Best of the generations, mean over combinations, 95 % "
                "intervals; points are shifted a little so that they do not overlap.",
                lambda r, name=metric.name: scores.metric_against_k(r, name),  # type: ignore[misc]
                "No cell has a graded combination.",
            )


def _of_students(report: Report) -> Iterator[FigureSpec]:
    for number, (before, after) in enumerate(report.pairs_to_compare()):
        yield FigureSpec(
            "skills-before-and-after" + (f"-{number + 1}" if number else ""),
            f"Skill by skill: {students_label(report, before)} and {students_label(report, after)}",
            "Sorted by the difference between the two; all k and settings together.",
            lambda r, b=before, a=after: skills.skills_before_and_after(r, b, a),  # type: ignore[misc]
            "The two students share no graded skill.",
            is_detail=True,
        )
    for number, key in enumerate(report.students):
        yield FigureSpec(
            f"pairs-{number + 1}",
            f"Pairs of skills: {students_label(report, key)}",
            "How often two skills are both shown in texts that were to show both.",
            lambda r, k=key: skills.pair_heat_map(r, k),  # type: ignore[misc]
            "No text was to show two skills.",
            is_detail=True,
        )
