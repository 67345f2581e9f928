"""The figure and the table of scores at the top of the README."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from skillmix.grading.points import FULL_MARKS, METRICS
from skillmix.render.markdown import markdown_table
from skillmix.render.numbers import share_with_interval
from skillmix.report.figures.style import colour, marker, new_figure, share_axis
from skillmix.scores.cells import CellScore


def headline_table(scores: Sequence[CellScore]) -> str:
    """Full marks: a row for each setting and student, a column for each k."""
    chosen = [score for score in scores if score.metric == FULL_MARKS]
    ks = sorted({score.k for score in chosen})
    values = {(s.setting, s.student, s.k): share_with_interval(s.value, s.low, s.high) for s in chosen}
    rows = [
        [setting, student, *(values.get((setting, student, k), "–") for k in ks)]
        for setting, student in dict.fromkeys((s.setting, s.student) for s in chosen)
    ]
    return markdown_table(["setting", "student", *(f"k = {k}" for k in ks)], sorted(rows, key=lambda r: _rank(r[0])))


def _rank(setting: str) -> int:
    return ("train", "held-out", "all", setting).index(setting)


def headline_figure(scores: Sequence[CellScore]) -> Figure:
    """The same scores as lines, with a panel for each setting."""
    chosen = [s for s in scores if s.metric == FULL_MARKS and s.value is not None]
    settings = sorted({s.setting for s in chosen}, key=_rank)
    students = list(dict.fromkeys(s.student for s in chosen))
    figure = new_figure(3.1 * len(settings), 2.9)
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for axes, setting in zip(panels, settings, strict=True):
        for index, student in enumerate(students):
            line = sorted((s for s in chosen if (s.setting, s.student) == (setting, student)), key=lambda s: s.k)
            y = [s.value or 0.0 for s in line]
            low = [v - (s.low or 0.0) for v, s in zip(y, line, strict=True)]
            high = [(s.high or 0.0) - v for v, s in zip(y, line, strict=True)]
            look = {"color": colour(index), "marker": marker(index), "capsize": 2.5, "elinewidth": 1}
            axes.errorbar([s.k for s in line], y, yerr=[low, high], label=student, **look)
        axes.set_title(setting)
        axes.set_xlabel("k, skills in one text")
        axes.set_xticks(sorted({s.k for s in chosen}))
        share_axis(axes, METRICS[FULL_MARKS].label if axes is panels[0] else "")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure
