"""Figures about single skills, pairs of skills, data sets and training."""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from skillmix.grading.points import FULL_MARKS
from skillmix.models.lineage import short_name
from skillmix.render import share
from skillmix.report.figures import style
from skillmix.report.records import Report, StudentKey
from skillmix.report.registry import Drawing, drawing_of
from skillmix.report.tables.scores import students_label
from skillmix.scores.skills import Rate, pair_rates

_MOST_SKILLS_BY_NAME = 24
_FEWEST_TEXTS = 5
"""The map of pairs is drawn only if some pair has this many texts; with fewer, it would mostly show chance."""


def skills_before_and_after_figure(report: Report) -> Iterator[Drawing]:
    """Draw skill rates of each base and its student tuned on the largest k, or else of the first two students."""
    kind, title = "skills-before-and-after", "Skills before and after"
    if len(report.students) < 2:
        yield drawing_of(kind, lambda _: None, title=title, most=_MOST_SKILLS_BY_NAME, why_not="It needs two students.")
    for number, (before, after) in enumerate(report.pairs_to_compare()):
        yield drawing_of(
            kind,
            partial(_skills_before_and_after, before=before, after=after),
            file=f"{kind}-{number + 1}" if number else kind,
            is_detail=True,
            title=f"Skill by skill: {students_label(report, before)} and {students_label(report, after)}",
            most=_MOST_SKILLS_BY_NAME,
            why_not="It needs a skill that the two students show with different frequency.",
        )


def _skills_before_and_after(report: Report, before: StudentKey, after: StudentKey) -> Figure | None:
    """Draw how often each of two students shows each requested skill."""
    first, second = report.skill_rates[before], report.skill_rates[after]
    gains = {name: second[name].value - first[name].value for name in first.keys() & second.keys()}
    most = sorted((name for name in gains if gains[name]), key=lambda n: (-abs(gains[n]), n))[:_MOST_SKILLS_BY_NAME]
    names = sorted(most, key=lambda n: (gains[n], n))
    if not names:
        return None
    figure = style.new_figure(7.2, 1.3 + 0.21 * len(names))
    axes = figure.subplots()
    values = [[rates[name].value for name in names] for rates in (first, second)]
    axes.hlines(range(len(names)), values[0], values[1], color="#cfd6de", lw=2.4, zorder=1)
    for x, key in zip(values, (before, after), strict=True):
        index = report.students.index(key)
        looks: dict[str, Any] = {**style.look(index), "ls": "", "ms": 5}
        axes.plot(x, range(len(names)), label=students_label(report, key), zorder=2, **looks)
    style.rows_by_name(axes, [style.clipped(name) for name in names])
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel("share of texts that show the requested skill, all k and settings")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def pairs_figure(report: Report) -> Iterator[Drawing]:
    """Draw a map of pairs of skills for each student."""
    for number, key in enumerate(report.students):
        yield drawing_of(
            "pairs",
            partial(_pair_heat_map, key=key),
            file=f"pairs-{number + 1}",
            is_detail=True,
            student=students_label(report, key),
            fewest=_FEWEST_TEXTS,
        )


def _pair_heat_map(report: Report, key: StudentKey) -> Figure | None:
    """Draw how often two skills are both shown; group skills by category if there are too many for labels."""
    pairs = pair_rates(report.cells_of(key, grader=report.graders[0]))
    if not pairs:
        return None
    names = sorted({name for pair in pairs for name in pair})
    by_category = len(names) > _MOST_SKILLS_BY_NAME and bool(report.categories)
    if by_category:
        pairs = _by_category(pairs, report)
        names = sorted({name for pair in pairs for name in pair})
    if max(rate.asked for rate in pairs.values()) < _FEWEST_TEXTS or len({r.value for r in pairs.values()}) < 2:
        return None
    grid = np.full((len(names), len(names)), np.nan)
    places = {pair: sorted(map(names.index, pair), reverse=True) for pair in pairs}
    for pair, (row, column) in places.items():
        grid[row, column] = pairs[pair].value
    is_small = len(names) <= _MOST_SKILLS_BY_NAME
    size = 2.6 + (0.5 if is_small else 0.16) * len(names)
    figure = style.new_figure(min(11, size + 1.4), min(10, size))
    axes = figure.subplots()
    centres = range(len(names))
    blocks = colormaps["cividis"].resampled(20)
    mesh = axes.pcolormesh(centres, centres, grid, cmap=blocks, vmin=0, vmax=1, shading="nearest")
    axes.invert_yaxis()
    axes.set_aspect("equal")
    for pair, (row, column) in places.items() if is_small else ():
        rate = pairs[pair]
        looks: dict[str, Any] = {"color": style.ON_DARK if rate.value < 0.55 else style.ON_LIGHT, "fontsize": 7}
        axes.text(column, row, f"{share(rate.value)}\nn={rate.asked}", ha="center", va="center", **looks)
    labels = [style.clipped(name) for name in names]
    axes.set_xticks(centres, labels, rotation=45, ha="right", fontsize=8 if is_small else 5)
    axes.set_yticks(centres, labels, fontsize=8 if is_small else 5)
    axes.grid(visible=False)
    axes.set_title(f"{students_label(report, key)}" + (", skills by category" if by_category else ""))
    if not is_small:  # in a small map, the cells contain numbers instead
        figure.colorbar(mesh, ax=axes, shrink=0.7, label="share of texts showing both, where both are requested")
    return figure


def _by_category(pairs: dict[tuple[str, str], Rate], report: Report) -> dict[tuple[str, str], Rate]:
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for pair, rate in pairs.items():
        a, b = sorted(report.categories.get(name, "other") for name in pair)
        counts[a, b][0] += rate.shown
        counts[a, b][1] += rate.asked
    return {pair: Rate(*count) for pair, count in counts.items()}


def requested_and_unrequested_figure(report: Report) -> Figure | None:
    """Draw how many requested and unrequested skills code finds in a text."""
    if len(report.shown) < 2:
        return None
    students = list(dict.fromkeys((s.run, s.student) for s in report.shown))
    figure, (panels,) = style.new_panels(1, len(students), width=3.1, height=3.3)
    for axes, key in zip(panels, students, strict=True):
        counts = sorted((s for s in report.shown if (s.run, s.student) == key), key=lambda s: s.k)
        ks = [s.k for s in counts]
        requested = [s.requested / s.texts for s in counts]
        unrequested = [s.unrequested / s.texts for s in counts]
        axes.bar([k - 0.2 for k in ks], requested, width=0.36, color=style.COLOURS[0], label="requested")
        looks: dict[str, Any] = {"color": style.COLOURS[4], "hatch": "//", "edgecolor": "white"}
        axes.bar([k + 0.2 for k in ks], unrequested, width=0.36, label="not requested", **looks)
        axes.plot(ks, ks, color=style.FAINT, ls=":", marker="_", ms=14, lw=1, label="all requested skills")
        style.skills_axis(axes, ks)
        axes.set_title(report.label(*key))
        axes.set_ylabel("skills shown in a text, mean" if axes is panels[0] else "")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def data_efficiency_figure(report: Report) -> Figure | None:
    """Plot full marks against the number of training conversations."""
    setting = report.main_setting
    sized = [k for k in report.students if k in report.lineages and report.lineages[k].rows is not None]
    if len(sized) < 2:
        return None
    ks = [k for k in report.ks if k >= 2] or report.ks
    figure, (panels,) = style.new_panels(1, len(ks), width=2.7, height=3.3)
    richness = sorted({report.lineages[key].k for key in sized})
    for axes, k in zip(panels, ks, strict=True):
        for index, trained in enumerate(richness):
            points = []
            for key in sized:
                cells = report.cells_of(key, grader=report.graders[0], setting=setting)
                cell = next((c for c in cells if c.key.k == k), None)
                if cell and report.lineages[key].k == trained and cell.scores[FULL_MARKS].value is not None:
                    points.append((report.lineages[key].rows or 0, cell.scores[FULL_MARKS]))
            points.sort(key=lambda p: p[0])
            style.score_line(axes, index, [x for x, _ in points], [s for _, s in points], label=short_name(trained))
        axes.set_title(f"k = {k}")
        axes.set_xlabel("training conversations")
        axes.ticklabel_format(axis="x", style="plain")
        axes.tick_params(axis="x", labelrotation=30)
        style.share_axis(axes, f"full marks, {setting}" if axes is panels[0] else "")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def yield_figure(report: Report) -> Figure | None:
    """Draw the share of the conversations generated for each data set that have full marks."""
    datasets = [(run, facts) for run, facts in report.datasets if facts.yields]
    if sum(len(facts.yields) for _, facts in datasets) < 2:
        return None
    figure = style.new_figure(5.4, 3.3)
    axes = figure.subplots()
    for index, (run, facts) in enumerate(datasets):
        ks = list(facts.yields)
        rates = [y.full_marks / y.written if y.written else 0.0 for y in facts.yields.values()]
        label = report.label(run, str(facts.name))
        axes.plot(ks, rates, **style.look(index), label=label)
        for k, rate, y in zip(ks, rates, facts.yields.values(), strict=True):
            axes.annotate(f"{y.full_marks:,}", (k, rate), (0, 6), textcoords="offset points", ha="center", fontsize=8)
    style.skills_axis(axes, sorted({k for _, facts in datasets for k in facts.yields}))
    style.share_axis(axes, "full marks, of those written")
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def training_curves_figure(report: Report) -> Figure | None:
    """Plot the loss of every trained model against the training step."""
    if not any(len(series) > 1 for _, curve in report.curves for series in curve.series.values()):
        return None
    figure = style.new_figure(6.6, 3.5)
    axes = figure.subplots()
    styles = {"answers": "-", "validation": "--", "replay": ":"}
    for index, (run, curve) in enumerate(report.curves):
        label = report.label(run, curve.name)
        for name, series in curve.series.items():
            axes.plot(*zip(*series, strict=True), color=style.colour(index), ls=styles[name], label=f"{label}, {name}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    figure.legend(loc="outside lower center", ncols=3)
    return figure
