"""What every figure draws, worked out a second time and held against the lines, bars and grids that were drawn."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import combinations as subsets
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.report.expected_graders import independence
from tests.report.expected_scores import Case
from tests.report.second_run import SecondRun, mean

Points = list[tuple[float, float]]


def label(run: SecondRun, student: str) -> str:
    return f"{student}, {run.trained_on(student)}" if student in run.models else student


NONE = (float("nan"), float("nan"))


def bars_with_ends(container: Any) -> list[tuple[float, float, float, float]]:
    """x, y and the ends of each interval that an errorbar shows."""
    line, _, (bars,) = container
    return [
        (float(x), float(y), float(segment[0][1]), float(segment[1][1]))
        if len(segment)
        else (float(x), float(y), *NONE)
        for (x, y), segment in zip(line.get_xydata(), bars.get_segments(), strict=True)
    ]


def assert_scores(container: Any, found: list[dict[str, float]], where: object) -> None:
    drawn = bars_with_ends(container)
    known = [f for f in found if "value" in f]
    assert len(drawn) == len(known), where
    for (_, y, low, high), wanted in zip(drawn, known, strict=True):
        ends = (wanted.get("low", NONE[0]), wanted.get("high", NONE[1]))
        assert (y, low, high) == pytest.approx((wanted["value"], *ends), abs=0.02, nan_ok=True), where
        assert y == pytest.approx(wanted["value"])


def metric_against_k(metric: str) -> Callable[[Figure, Case], None]:
    def check(figure: Figure, case: Case) -> None:
        run = case.run
        panels = iter(figure.axes)
        for grader in run.graders:
            for setting in run.settings:
                axes = next(panels)
                for container, student in zip(axes.containers, run.students, strict=True):
                    wanted = [run.summary((student, grader, setting, k), metric) for k in run.ks]
                    assert_scores(container, wanted, (grader, setting, student))
                    ks = [round(x) for x, *_ in bars_with_ends(container)]
                    assert ks == [k for k, w in zip(run.ks, wanted, strict=True) if "value" in w]

    return check


def result(figure: Figure, case: Case) -> None:
    """Full marks of every student in the cell that the title names."""
    run = case.run
    (axes,) = figure.axes
    (words,) = re.findall(r"setting (\S+), grader (\S+)$", axes.get_title(loc="left"))
    setting, grader = words
    labels = [text.get_text() for text in figure.legends[0].get_texts()] if figure.legends else []
    assert labels == run.students
    for container, student in zip(axes.containers, run.students, strict=True):
        wanted = [run.summary((student, grader, setting, k), "full marks") for k in run.ks]
        assert_scores(container, wanted, student)
        assert [round(x) for x, *_ in bars_with_ends(container)] == run.ks


def saturation(figure: Figure, case: Case) -> None:
    run = case.run
    (axes,) = figure.axes
    rows = [tick.get_text() for tick in axes.get_yticklabels()]
    assert len(rows) == len(run.students) * len(run.settings)
    for student in run.students:
        for setting in run.settings:
            y = rows.index(f"{label(run, student)}, {setting}")
            found = [run.summary((student, run.graders[0], setting, k), "full marks") for k in run.ks]
            known = [(k, f) for k, f in zip(run.ks, found, strict=True) if "value" in f]
            reached = {}
            for name in ("value", "low", "high"):
                below = [k for k, f in known if f[name] < 0.10]
                passed = [k for k, _ in known if not below or k < below[0]]
                reached[name] = max(passed, default=0)
            bar, point = (points for line in axes.lines if (points := drawn_points(line))[0][1] == y)
            assert [x for x, _ in bar] == [reached["low"], reached["high"]]
            assert [x for x, _ in point] == [reached["value"]]


def by_label(axes: Axes) -> dict[str, Points]:
    return {str(line.get_label()): drawn_points(line) for line in axes.lines}


def drawn_points(line: Any) -> Points:
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def assert_line(drawn: Points, wanted: Sequence[tuple[float, float]]) -> None:
    assert [p for point in drawn for p in point] == pytest.approx([p for point in wanted for p in point])


def observed_and_independent(figure: Figure, case: Case) -> None:
    run = case.run
    setting = "all" if "all" in run.settings else run.settings[0]
    for axes, student in zip(figure.axes, run.students, strict=True):
        found = [(k, independence(run, (student, run.graders[0], setting, k))) for k in run.ks]
        lines = by_label(axes)
        assert_line(lines["observed"], [(k, f["observed"]) for k, f in found])
        assert_line(lines["expected, same k"], [(k, f["expected, same k"]) for k, f in found])
        alone = [(k, f["expected, k = 1"]) for k, f in found if not np.isnan(f["expected, k = 1"])]
        assert_line(lines["expected, from k = 1"], alone)


def common_skills_removed(figure: Figure, case: Case) -> None:
    run = case.run
    (axes,) = figure.axes
    k = 5 if 5 in run.ks else max(run.ks)
    common = set(run.catalog.exclude["common"])
    settings = [tick.get_text() for tick in axes.get_xticklabels()]
    for container, student in zip(axes.containers, run.students, strict=True):
        places = [(student, run.graders[0], setting, k) for setting in settings]
        assert_scores(
            container, [run.summary(w, "full marks", lambda c: not common & set(c.skills)) for w in places], student
        )
    bound = 0.0144**k * 0.0022 * case.tokens * 5e10 / 1.2e12
    if bound <= 1:
        lines = by_label(axes)
        assert [y for _, y in lines["novelty bound"]] == pytest.approx([bound] * 2)
        assert [y for _, y in lines["a third new"]] == pytest.approx([1.5 * bound] * 2)


def data_efficiency(figure: Figure, case: Case) -> None:
    run = case.run
    setting = "all" if "all" in run.settings else run.settings[0]
    for axes, k in zip(figure.axes, [k for k in run.ks if k >= 2], strict=True):
        assert axes.get_title(loc="left") == f"k = {k}"
        for container in axes.containers:
            mine = [s for s in run.models if run.trained_on(s) == container.get_label()]
            mine.sort(key=run.rows_of)
            wanted = [run.summary((s, run.graders[0], setting, k), "full marks") for s in mine]
            assert_scores(container, wanted, (k, container.get_label()))
            sizes = [run.rows_of(s) for s, w in zip(mine, wanted, strict=True) if "value" in w]
            assert [x for x, *_ in bars_with_ends(container)] == sizes


def data_yield(figure: Figure, case: Case) -> None:
    (axes,) = figure.axes
    lines, counts = by_label(axes), []
    for name in case.run.datasets:
        found = case.run.yields(name)
        assert_line(lines[name], [(k, full / written) for _, k, written, full in found])
        counts += [f"{full:,}" for *_, full in found]
    assert [text.get_text() for text in axes.texts] == counts


def training_curves(figure: Figure, case: Case) -> None:
    (axes,) = figure.axes
    wanted = {}
    for file in case.run.path.glob("*/training.jsonl"):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        for loss in ("answers", "validation", "replay"):
            found = [(row["step"] + 1, row[loss]) for row in rows if row.get(loss) is not None]
            if found:
                wanted[f"{file.parent.name}, {loss}"] = found
    drawn = by_label(axes)
    assert drawn.keys() == wanted.keys() and wanted
    for name, points in wanted.items():
        assert_line(drawn[name], points)


def _texts(run: SecondRun, student: str) -> list[Any]:
    """Every text of the student's cells once, as the first grader decided it."""
    ids = {c.id for drawn in run.drawn.values() for c in drawn}
    rows = run.graded
    mine = rows[rows["student"].eq(student) & rows["grader"].eq(run.graders[0]) & rows["combination"].isin(ids)]
    return list(mine.itertuples())


def skills_before_and_after(figure: Figure, case: Case) -> None:
    run = case.run
    (axes,) = figure.axes
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    students = [next(s for s in run.students if label(run, s) == said) for said in labels]
    rates: list[dict[str, float]] = []
    for student in students:
        shown: dict[str, list[bool]] = {}
        for text in _texts(run, student):
            for skill, point in zip(text.skills, text.points, strict=False):
                if point is not None:
                    shown.setdefault(skill, []).append(point)
        rates.append({skill: mean(points) for skill, points in shown.items()})
    different = [s for s in rates[0].keys() & rates[1].keys() if rates[0][s] != rates[1][s]]
    most = sorted(different, key=lambda s: (-abs(rates[1][s] - rates[0][s]), s))[:24]
    both = sorted(most, key=lambda s: (rates[1][s] - rates[0][s], s))
    written = [tick.get_text() for tick in axes.get_yticklabels()]
    assert [name.rstrip("…") for name in written] == [
        s[: len(w.rstrip("…"))] for s, w in zip(both, written, strict=True)
    ]
    drawn = by_label(axes)
    for said, found in zip(labels, rates, strict=True):
        assert_line(drawn[said], [(found[s], y) for y, s in enumerate(both)])


def pairs(figure: Figure, case: Case, number: int) -> None:
    run = case.run
    axes: Any = figure.axes[0]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    categories = {skill.name: skill.category for skill in run.catalog.skills}
    asked = {s for c in run.drawn.values() for x in c for s in x.skills if len(x.skills) > 1}
    group = categories if len(asked) > 24 else {skill: skill for skill in asked}
    counts: dict[tuple[str, str], list[bool]] = {}
    for text in _texts(run, run.students[number - 1]):
        known = [(s, p) for s, p in zip(text.skills, text.points, strict=False) if p is not None]
        for (a, is_a), (b, is_b) in subsets(known, 2):
            one, other = sorted((group[a], group[b]))
            counts.setdefault((one, other), []).append(is_a and is_b)
    grid = np.full((len(names), len(names)), np.nan)
    for (a, b), both in counts.items():
        grid[names.index(b), names.index(a)] = mean(both)
    drawn = np.ma.filled(axes.collections[0].get_array().astype(float), np.nan)
    np.testing.assert_allclose(drawn, grid)
    said = {(int(y), int(x)): t.get_text() for t in axes.texts for x, y in [t.get_position()]}
    for (a, b), both in counts.items():
        value = f"{mean(both):.2f}".removeprefix("0")
        assert said[names.index(b), names.index(a)] == f"{value}\nn={len(both)}"


def requested_and_unrequested(figure: Figure, case: Case) -> None:
    """By the words that code finds, taken from the graders' function of the case."""
    run = case.run
    assert case.shown_by_code is not None
    for axes, student in zip(figure.axes, run.students, strict=True):
        texts = run.texts[run.texts["student"].eq(student) & run.texts["text"].ne("")]
        for container, which in zip(axes.containers, (0, 1), strict=True):
            for bar, k in zip(container, run.ks, strict=True):
                found = [len(case.shown_by_code(t)[which]) for t in texts[texts["k"].eq(k)].itertuples()]
                assert bar.get_height() == pytest.approx(mean(found)), (student, k, which)


FIGURES: dict[str, Callable[[Figure, Case], None]] = {
    "result": result,
    "full-marks": metric_against_k("full marks"),
    "skill-fraction": metric_against_k("skill fraction"),
    "saturation": saturation,
    "observed-and-independent": observed_and_independent,
    "common-skills-removed": common_skills_removed,
    "data-efficiency": data_efficiency,
    "yield": data_yield,
    "training-curves": training_curves,
    "requested-and-unrequested": requested_and_unrequested,
}


def check_figure(name: str, figure: Figure, case: Case) -> None:
    """Hold a figure against its second computation."""
    if name.startswith("pairs-"):
        pairs(figure, case, int(name.removeprefix("pairs-")))
    elif name.startswith("skills-before-and-after"):
        skills_before_and_after(figure, case)
    elif name in FIGURES:
        FIGURES[name](figure, case)
    else:
        raise AssertionError(f"nobody works out the figure {name} a second time")
