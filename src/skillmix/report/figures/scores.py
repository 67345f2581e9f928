"""Figures about the main result, and about scores and outcomes against k."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from skillmix.grading.points import FULL_MARKS, METRICS
from skillmix.prompts.rubric import OUTCOMES
from skillmix.report.figures import style
from skillmix.report.records import Report, StudentKey
from skillmix.report.registry import Drawing, Estimate, drawing_of
from skillmix.report.tables.scores import common_k, novelty_bound, students_label, without_common
from skillmix.scores.cells import Cell, Score
from skillmix.scores.safety import TOPICS, OutcomeCell
from skillmix.scores.skills import cell_independence, saturation

_Lines = list[tuple[int, StudentKey, list[Cell]]]
"""Each student's index, key, and scored cells in the order of k."""


def result_figure(report: Report) -> Iterator[Drawing]:
    """Draw the full marks that the main result mentions, for single texts or for the best texts."""
    best = "combinations on which the best of a student's texts earns full marks"
    yield drawing_of("result", _result, what="texts with full marks, one try" if report.result.is_one_try else best)


def _result(report: Report) -> Figure | None:
    """Draw a line against k for each student or, if there is only one k, a point for each student."""
    result = report.result

    def shown_score(cell: Cell) -> Score | Estimate:
        score = cell.scores[FULL_MARKS]
        return Estimate(score.one_try, score.one_try_low, score.one_try_high) if result.is_one_try else score

    # Show all students of the result's run or, if colors would repeat, only the students in the sentence.
    students = [key for key in report.students if key[0] == result.students[0][0]] if result.students else []
    shown = students if len(students) <= len(style.COLOURS) else result.students
    lines: _Lines = []
    for index, key in enumerate(report.students):
        cells = report.cells_of(key, grader=result.grader, setting=result.setting)
        scored = sorted((c for c in cells if c.scores[FULL_MARKS].value is not None), key=lambda c: c.key.k)
        if key in shown and scored:
            lines.append((index, key, scored))
    ks = sorted({c.key.k for *_, cells in lines for c in cells})
    if sum(len(cells) for *_, cells in lines) < 2:
        return None
    figure = style.new_figure(5.4, 3.1 if len(ks) > 1 else 1.2 + 0.42 * len(lines))
    axes = figure.subplots()
    if len(ks) > 1:
        for number, (index, key, cells) in enumerate(lines):
            shift = 0.05 * (number - (len(lines) - 1) / 2)
            scores = [shown_score(c) for c in cells]
            style.score_line(
                axes, index, [c.key.k + shift for c in cells], scores, label=style.clipped(report.label(*key))
            )
        style.skills_axis(axes, ks)
        figure.legend(loc="outside lower center", ncols=min(4, len(lines)))
        style.share_axis(axes, "full marks")
    else:
        for y, (index, _, cells) in enumerate(reversed(lines)):
            score = shown_score(cells[0])
            looks: dict[str, Any] = {**style.look(index), "ms": 7}
            axes.errorbar([score.value or 0.0], [y], xerr=style.error_bars([score]), capsize=3, elinewidth=1.4, **looks)
        style.rows_by_name(axes, [style.clipped(report.label(*key)) for _, key, _ in reversed(lines)])
        axes.set_xlim(-0.03, 1.03)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".50", ".75", "1"])
        axes.set_xlabel(f"full marks, k = {ks[0]}")
    one_try = "one try, " if result.is_one_try else ""
    axes.set_title(f"Full marks, {one_try}setting {result.setting}, grader {result.grader}", fontsize=10)
    return figure


SATURATION_LEVEL = 0.10


def metrics_figure(report: Report) -> Iterator[Drawing]:
    """Draw every main metric against k; the page collapses all but the first."""
    for number, metric in enumerate(m for m in METRICS.values() if m.is_main):
        layout = " The panel of the setting held-out has the layout of figure 2 of the paper (arXiv 2409.19808)."
        yield drawing_of(
            "metrics",
            partial(_metric_against_k, metric=metric.name),
            file=metric.name.replace("_", "-"),
            is_detail=number > 0,
            label=metric.label.capitalize(),
            meaning=metric.meaning,
            layout=layout if metric.name == FULL_MARKS else "",
        )


def _metric_against_k(report: Report, metric: str) -> Figure | None:
    """Draw a panel for each grader and setting, with a line and 95% intervals for each student."""
    settings, graders = report.settings, report.graders
    if not _has_several_k(report.cells):
        return None
    figure, panels = style.new_panels(len(graders), len(settings), width=3.4, height=0.6 + 2.9 * len(graders))
    lines: dict[str, Any] = {}
    for grader, row in zip(graders, panels, strict=True):
        for axes, setting in zip(row, settings, strict=True):
            for index, key in enumerate(report.students):
                shift = 0.05 * (index - (len(report.students) - 1) / 2)
                cells = report.cells_of(key, grader=grader, setting=setting)
                known = [(c.key.k + shift, c.scores[metric]) for c in cells if c.scores[metric].value is not None]
                if known:
                    drawn = style.score_line(axes, index, [k for k, _ in known], [score for _, score in known])
                    lines[students_label(report, key)] = drawn
            axes.set_title(setting if len(graders) == 1 else f"{setting}, {grader}")
            style.skills_axis(axes, report.ks, is_named=grader == graders[-1])
            style.share_axis(axes, METRICS[metric].label if axes is row[0] else "")
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=min(4, len(lines)))
    return figure


def _has_several_k(cells: Iterable[Cell]) -> bool:
    """Whether a line in a figure against k would have more than one point."""
    return len({c.key.k for c in cells if c.scores[FULL_MARKS].value is not None}) > 1


def observed_and_independent_figure(report: Report) -> Figure | None:
    """Draw full marks (pass@1) together with the values expected if skills were independent."""
    students = report.students
    chosen = report.main_setting
    if not _has_several_k(c for c in report.cells if c.key.setting == chosen):
        return None
    figure, (panels,) = style.new_panels(1, len(students), width=3.1, height=3.4)
    for index, (axes, key) in enumerate(zip(panels, students, strict=True)):
        cells = report.cells_of(key, grader=report.graders[0], setting=chosen)
        alone = next((c for c in cells if c.key.k == 1), None)
        results = [(c.key.k, cell_independence(c, alone)) for c in cells]
        results = [(k, r) for k, r in results if r.observed is not None]
        if not results:
            axes.text(0.5, 0.5, "no decided texts", ha="center", transform=axes.transAxes, color=style.FAINT)
            continue
        ks = [k for k, _ in results]
        axes.plot(ks, [r.observed for _, r in results], label="observed", **style.look(index))
        independent = [r.expected_same_k for _, r in results]
        axes.plot(ks, independent, color=style.INK, ls="--", marker=".", label="expected, same k")
        with_k1 = [(k, r.expected_k1) for k, r in results if r.expected_k1 is not None]
        if with_k1:
            x, y = zip(*with_k1, strict=True)
            axes.plot(x, y, color=style.FAINT, ls=":", marker=".", label="expected, from k = 1")
        axes.set_title(report.label(*key))
        style.skills_axis(axes, report.ks)
        axes.legend(loc="upper right")
        style.share_axis(axes, f"full marks, one try, {chosen}" if axes is panels[0] else "")
    return figure


def saturation_figure(report: Report) -> Figure | None:
    """Draw the largest k up to which each student's full marks reach `SATURATION_LEVEL`."""
    rows: list[tuple[str, int, StudentKey, list[Cell]]] = []
    for setting in reversed(report.settings):
        for index, key in reversed(list(enumerate(report.students))):
            cells = report.cells_of(key, grader=report.graders[0], setting=setting)
            if cells:
                rows.append((f"{students_label(report, key)}, {setting}", index, key, cells))
    if not rows or not _has_several_k(report.cells):
        return None
    figure = style.new_figure(6.4, 1.2 + 0.3 * len(rows))
    axes = figure.subplots()
    for y, (_, index, _, cells) in enumerate(rows):
        reached = saturation(cells, level=SATURATION_LEVEL)
        if reached is None:
            axes.text(0, y, "nothing graded", va="center", color=style.FAINT)
            continue
        looks: dict[str, Any] = {"color": style.colour(index), "alpha": 0.45, "solid_capstyle": "round"}
        axes.plot([reached.k_low, reached.k_high], [y, y], lw=2.2, **looks)
        axes.plot([reached.k], [y], **style.look(index), ms=7, ls="", label="largest k")
        if reached.k == reached.largest_tried:
            axes.annotate("or more", (reached.k, y), (7, 0), textcoords="offset points", va="center", color=style.FAINT)
    style.rows_by_name(axes, [label for label, *_ in rows])
    axes.set_xticks([0, *report.ks])
    axes.set_xlim(-0.3, max(report.ks) + 0.9)
    axes.set_xlabel("largest k; bars use the ends of the intervals")
    return figure


def common_skills_removed_figure(report: Report) -> Figure | None:
    """Draw full marks without common skills, and the novelty bound."""
    k, chosen = common_k(report), without_common(report)
    if k is None or chosen is None or not chosen[0]:
        return None
    cells = [c for c in chosen[0] if c.scores[FULL_MARKS].value is not None]
    if sum(bool(c.scores[FULL_MARKS].value) for c in cells) < 2:
        return None
    settings = list(dict.fromkeys(c.key.setting for c in cells))
    bound = novelty_bound(report, k, cells)
    figure = style.new_figure(max(4.6, 2.4 * len(settings)), 3.4)
    axes = figure.subplots()
    several = len(report.students)
    for index, key in enumerate(report.students):
        mine = [c for c in cells if (c.key.run, c.key.student) == key and c.key.grader == report.graders[0]]
        x = [settings.index(c.key.setting) + 0.14 * (index - (several - 1) / 2) for c in mine]
        scores = [c.scores[FULL_MARKS] for c in mine]
        style.score_line(axes, index, x, scores, ls="", label=students_label(report, key))
    if bound <= 1:
        axes.axhline(bound, color=style.INK, ls="--", lw=1.1, label="novelty bound")
        axes.axhline(1.5 * bound, color=style.FAINT, ls=":", lw=1.1, label="a third new")
    axes.set_xticks(range(len(settings)), settings)
    axes.set_xlim(-0.6, len(settings) - 0.4)
    style.share_axis(axes, f"full marks, k = {k}")
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def outcomes_figure(report: Report) -> Iterator[Drawing]:
    """Draw a figure for each run, grader and setting with outcomes; the page collapses all but the first."""
    places = list(dict.fromkeys((c.key.run, c.key.grader, c.key.setting) for c in report.outcomes))
    for number, (run, grader, setting) in enumerate(places):
        cells = [c for c in report.outcomes if (c.key.run, c.key.grader, c.key.setting) == (run, grader, setting)]
        yield drawing_of(
            "outcomes",
            partial(_outcomes_against_k, cells=cells),
            file=f"outcomes-{number + 1}" if number else "outcomes",
            is_detail=number > 0,
            place=", ".join([*([run] if len(report.runs) > 1 else []), f"setting {setting}", f"grader {grader}"]),
        )


def _outcomes_against_k(report: Report, cells: Sequence[OutcomeCell]) -> Figure | None:
    """Draw a row of panels for each student: probes left, controls right, and a line for each outcome."""
    known = [cell for cell in cells if cell.share(OUTCOMES[0]).value is not None]
    if not known:
        return None
    students = list(dict.fromkeys(cell.key.student for cell in known))
    topics = [name for name in TOPICS if any(cell.topics == name for cell in known)]
    figure, panels = style.new_panels(len(students), len(topics), width=3.6, height=0.7 + 2.4 * len(students))
    lines: dict[str, Any] = {}
    for row, student in zip(panels, students, strict=True):
        for axes, name in zip(row, topics, strict=True):
            own = sorted((c for c in known if (c.key.student, c.topics) == (student, name)), key=lambda c: c.key.k)
            for index, outcome in enumerate(OUTCOMES if own else ()):
                x = [cell.key.k + 0.06 * (index - 1) for cell in own]
                shares = [cell.share(outcome) for cell in own]
                lines[outcome] = style.score_line(axes, index, x, shares, label=outcome)
            axes.set_title(style.clipped(f"{student}, {name}"))
            style.skills_axis(axes, sorted({c.key.k for c in known}))
            style.share_axis(axes, "share of texts" if axes is row[0] else "")
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=len(OUTCOMES))
    return figure
