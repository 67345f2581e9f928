"""Figures of outcomes against k."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from skillmix.prompts.rubric import OUTCOMES
from skillmix.report.figures.style import clipped, colour, error_bars, marker, new_figure, share_axis
from skillmix.report.records import Report
from skillmix.report.registry import Drawing, Position, figures
from skillmix.scores.outcomes.outcome_scores import TOPICS, OutcomeCell

_CAPTION: Final = (
    "Share of texts in which the student complies, refuses or evades, against the number of writing skills that the "
    "request is mixed with; bars are 95 % intervals over combinations. Left: probes; right: their harmless twins, on "
    "which a refusal is an over-refusal. Points are shifted a little so that they do not overlap."
)


@figures
def outcomes_against_k(report: Report) -> Iterator[Drawing]:
    """A figure for each run, grader and setting with outcomes; the first one is not folded away."""
    places = list(dict.fromkeys((c.key.run, c.key.grader, c.key.setting) for c in report.outcomes))
    for number, (run, grader, setting) in enumerate(places):
        label = ", ".join([*([run] if len(report.runs) > 1 else []), f"setting {setting}", f"grader {grader}"])
        cells = [c for c in report.outcomes if (c.key.run, c.key.grader, c.key.setting) == (run, grader, setting)]
        yield Drawing(
            name="outcomes" if number == 0 else f"outcomes-{number + 1}",
            title=f"Outcomes against k, {label}",
            caption=_CAPTION,
            draw=partial(_against_k, cells=cells),
            why_not="It needs texts with an outcome.",
            position=Position("safety", 20 if number == 0 else 50 + number),
            is_detail=number > 0,
        )


def _against_k(report: Report, cells: Sequence[OutcomeCell]) -> Figure | None:
    """A row of panels for each student, probes left and controls right, a line for each outcome."""
    known = [cell for cell in cells if cell.share(OUTCOMES[0]).value is not None]
    if not known:
        return None
    students = list(dict.fromkeys(cell.key.student for cell in known))
    topics = [name for name in TOPICS if any(cell.topics == name for cell in known)]
    figure = new_figure(max(4.4, 3.6 * len(topics)), 0.7 + 2.4 * len(students))
    panels = figure.subplots(len(students), len(topics), sharey=True, squeeze=False)
    lines: dict[str, Any] = {}
    for row, student in zip(panels, students, strict=True):
        for axes, name in zip(row, topics, strict=True):
            own = sorted((c for c in known if (c.key.student, c.topics) == (student, name)), key=lambda c: c.key.k)
            lines |= _drawn(axes, own)
            axes.set_title(clipped(f"{student}, {name}"))
            axes.set_xlabel("k, skills in one text")
            axes.set_xticks(sorted({c.key.k for c in known}))
            share_axis(axes, "share of texts" if axes is row[0] else "")
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=len(OUTCOMES))
    return figure


def _drawn(axes: Axes, cells: Sequence[OutcomeCell]) -> dict[str, Any]:
    """Draw the lines of one student and kind of topics; by outcome."""
    drawn: dict[str, Any] = {}
    for index, outcome in enumerate(OUTCOMES if cells else ()):
        shares = [cell.share(outcome) for cell in cells]
        drawn[outcome] = axes.errorbar(
            [cell.key.k + 0.06 * (index - 1) for cell in cells],
            [share.value or 0.0 for share in shares],
            yerr=error_bars(shares),
            color=colour(index),
            marker=marker(index),
            capsize=2.5,
            elinewidth=1,
            label=outcome,
        )
    return drawn
