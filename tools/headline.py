"""The figure and the tables of scores at the top of the README."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from skillmix.grading.points import FULL_MARKS, METRICS
from skillmix.render.markdown import markdown_table
from skillmix.render.numbers import share_with_interval, whole
from skillmix.report.figures.style import colour, error_bars, marker, new_figure, share_axis
from skillmix.scores.cells import CellScore


def headline_table(scores: Sequence[CellScore]) -> str:
    """Full marks: a row for each setting and student, a column for each k."""
    return _by_k(scores, lambda s: share_with_interval(s.value, s.low, s.high))


def valid_table(scores: Sequence[CellScore]) -> str | None:
    """Full marks among texts with a valid format, and the number of these; None if the scores do not have them."""
    if not any(score.valid_texts for score in scores):
        return None
    return _by_k(scores, _among_valid)


def _among_valid(score: CellScore) -> str:
    among_valid = share_with_interval(score.among_valid, score.among_valid_low, score.among_valid_high)
    return f"{among_valid} of {whole(score.valid_texts)}"


def _by_k(scores: Sequence[CellScore], entry: Callable[[CellScore], str]) -> str:
    chosen = [score for score in scores if score.metric == FULL_MARKS]
    ks = sorted({score.k for score in chosen})
    entries = {(s.setting, s.student, s.k): entry(s) for s in chosen}
    rows = [
        [setting, student, *(entries.get((setting, student, k), "–") for k in ks)]
        for setting, student in dict.fromkeys((s.setting, s.student) for s in chosen)
    ]
    return markdown_table(["setting", "student", *(f"k = {k}" for k in ks)], sorted(rows, key=lambda r: _rank(r[0])))


def format_line(scores: Sequence[CellScore]) -> str:
    """The format failures of each student: the fewest and the most in a cell."""
    failures: dict[str, list[CellScore]] = {}
    for score in scores:
        if score.metric == FULL_MARKS:
            failures.setdefault(score.student, []).append(score)
    return "; ".join(f"{student} {_fewest_and_most(cells)}" for student, cells in failures.items())


def _fewest_and_most(cells: Sequence[CellScore]) -> str:
    counts = sorted(cell.format_failures for cell in cells)
    written = {cell.written for cell in cells if cell.written}
    of = f" of {whole(written.pop())}" if len(written) == 1 else ""
    return f"{whole(counts[0])}{of}" if counts[0] == counts[-1] else f"{whole(counts[0])} to {whole(counts[-1])}{of}"


def _rank(setting: str) -> int:
    return ("train", "held-out", "all", setting).index(setting)


def headline_figure(scores: Sequence[CellScore]) -> Figure:
    """The same scores as lines, with a panel for each setting; hollow markers are among texts with a valid format."""
    chosen = [s for s in scores if s.metric == FULL_MARKS and s.value is not None]
    settings = sorted({s.setting for s in chosen}, key=_rank)
    students = list(dict.fromkeys(s.student for s in chosen))
    figure = new_figure(3.1 * len(settings), 2.9)
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for axes, setting in zip(panels, settings, strict=True):
        for index, student in enumerate(students):
            line = sorted((s for s in chosen if (s.setting, s.student) == (setting, student)), key=lambda s: s.k)
            look = {"color": colour(index), "marker": marker(index)}
            ks, y = [s.k for s in line], [s.value or 0.0 for s in line]
            axes.errorbar(ks, y, yerr=error_bars(line), label=student, capsize=2.5, elinewidth=1, **look)
            _add_among_valid(axes, line, look)
        axes.set_title(setting)
        axes.set_xlabel("k, skills in one text")
        axes.set_xticks(sorted({s.k for s in chosen}))
        share_axis(axes, METRICS[FULL_MARKS].label if axes is panels[0] else "")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _add_among_valid(axes: Axes, line: Sequence[CellScore], look: dict[str, Any]) -> None:
    known = [(score.k, score.among_valid) for score in line if score.among_valid is not None]
    if known:
        x, y = zip(*known, strict=True)
        axes.plot(x, y, ls=":", lw=1, mfc="white", **look)
