"""The figure of the first screen: full marks in the cell that the main sentence is about."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from skillmix.grading.points import FULL_MARKS
from skillmix.report.figures.style import COLOURS, clipped, colour, error_bars, marker, new_figure, share_axis
from skillmix.report.records import Report, StudentKey
from skillmix.report.registry import figure
from skillmix.scores.cells import Cell
from skillmix.scores.verdicts.main_result import MainResult

_Lines = list[tuple[int, StudentKey, list[Cell]]]
"""For each student: its index, its key, and its scored cells by k."""


@figure(
    "result",
    "Full marks",
    section="result",
    order=10,
    caption="Share of combinations with a text that earns full marks; bars are 95 % intervals.",
    why_not="It needs graded texts of two students, or of one student at two k.",
)
def result_figure(report: Report) -> Figure | None:
    """A line for each student against k or, with one k, a point for each student."""
    result = report.result
    lines = _lines(report, result)
    if sum(len(cells) for *_, cells in lines) < 2:
        return None
    ks = sorted({c.key.k for *_, cells in lines for c in cells})
    return _against_k(report, result, lines) if len(ks) > 1 else _at_one_k(report, result, lines, ks[0])


def _lines(report: Report, result: MainResult) -> _Lines:
    """All students of the result's run or, where colours would repeat, those of the sentence."""
    students = [key for key in report.students if key[0] == result.students[0][0]] if result.students else []
    shown = students if len(students) <= len(COLOURS) else result.students
    lines = []
    for index, key in enumerate(report.students):
        cells = report.cells_of(key, grader=result.grader, setting=result.setting)
        scored = sorted((c for c in cells if c.scores[FULL_MARKS].value is not None), key=lambda c: c.key.k)
        if key in shown and scored:
            lines.append((index, key, scored))
    return lines


def _against_k(report: Report, result: MainResult, lines: _Lines) -> Figure:
    figure = new_figure(5.4, 3.1)
    axes = figure.subplots()
    for number, (index, key, cells) in enumerate(lines):
        scores = [c.scores[FULL_MARKS] for c in cells]
        shift = 0.05 * (number - (len(lines) - 1) / 2)
        axes.errorbar(
            [c.key.k + shift for c in cells],
            [s.value or 0.0 for s in scores],
            yerr=error_bars(scores),
            color=colour(index),
            marker=marker(index),
            capsize=2.5,
            elinewidth=1,
            label=clipped(report.label(*key)),
        )
    axes.set_xlabel("k, skills in one text")
    axes.set_xticks(sorted({c.key.k for *_, cells in lines for c in cells}))
    _finish(axes, result)
    figure.legend(loc="outside lower center", ncols=min(4, len(lines)))
    share_axis(axes, "full marks")
    return figure


def _at_one_k(report: Report, result: MainResult, lines: _Lines, k: int) -> Figure:
    figure = new_figure(5.4, 1.2 + 0.42 * len(lines))
    axes = figure.subplots()
    for y, (index, _, cells) in enumerate(reversed(lines)):
        score = cells[0].scores[FULL_MARKS]
        axes.errorbar(
            [score.value or 0.0],
            [y],
            xerr=error_bars([score]),
            color=colour(index),
            marker=marker(index),
            ms=7,
            capsize=3,
            elinewidth=1.4,
        )
    axes.set_yticks(range(len(lines)), [clipped(report.label(*key)) for _, key, _ in reversed(lines)])
    axes.set_ylim(-0.6, len(lines) - 0.4)
    axes.set_xlim(-0.03, 1.03)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".50", ".75", "1"])
    axes.set_xlabel(f"full marks, k = {k}")
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    _finish(axes, result)
    return figure


def _finish(axes: Axes, result: MainResult) -> None:
    axes.set_title(f"Full marks, setting {result.setting}, grader {result.grader}", fontsize=10)
