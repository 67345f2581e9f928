"""Draw the figure at the top of the README: scores against k by setting, and the effect of examples of a new figure."""

from collections.abc import Mapping, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from skillmix.report.figures.style import new_figure, score_line, share_axis

SETTINGS = ("train", "random-cells", "new-figures")


def headline_figure(
    result: Mapping[str, Any], lines: Mapping[str, str] = {}, others: Sequence[tuple[str, Mapping[str, Any]]] = ()
) -> Figure:
    """Draw one-try scores: a panel for each setting, and a panel of scores by texts per new figure.

    `lines` maps students to labels; if it is empty, the students of the first comparison are drawn. `others` are
    labeled results, each of which adds the first student of its first comparison.
    """
    first = result["comparisons"][0]
    shown = [(result, student, label) for student, label in lines.items()] or [
        (result, student, student) for student in dict.fromkeys((first["student"], first["against"]["student"]))
    ]
    shown += [(other, other["comparisons"][0]["student"], label) for label, other in others]
    panels = len(SETTINGS) + bool(result["doses"])
    figure = new_figure(2.6 * panels + 0.4, 2.9)
    axes = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
    for panel, setting in zip(axes, SETTINGS, strict=False):
        for index, (source, student, label) in enumerate(shown):
            line = [
                (row["k"], row["one_try"])
                for row in source["scores"]
                if (row["run"], row["student"], row["setting"]) == (source["runs"][0]["name"], student, setting)
            ]
            _line(panel, line, label, index)
        panel.set_title(setting.replace("-", " "))
        panel.set_xlabel("k, skills in one text")
        panel.set_xticks(sorted({row["k"] for row in result["scores"]}))
        share_axis(panel, "full marks, one try" if panel is axes[0] else "")
    axes[-2 if result["doses"] else -1].legend(loc="upper right", fontsize="small")
    if result["doses"]:
        _doses(axes[-1], result["doses"])
    return figure


def _line(axes: Axes, points: Sequence[tuple[float, Mapping[str, float]]], label: str, index: int) -> None:
    known = sorted(points, key=lambda point: point[0])
    x, scores = [k for k, _ in known], [SimpleNamespace(**score) for _, score in known]
    score_line(axes, index, x, scores, label=label)


def _doses(axes: Axes, doses: Sequence[Mapping[str, Any]]) -> None:
    steps = sorted({dose["examples"] for dose in doses})
    for index, (is_random, others) in enumerate(product((False, True), ("with", "without"))):
        line = [
            (steps.index(dose["examples"]), {name: dose[name] for name in ("value", "low", "high")})
            for dose in doses
            if (dose["student"].startswith("random-"), dose["others"]) == (is_random, others)
        ]
        if line:
            _line(axes, line, f"random, {others}" if is_random else f"{others} other texts", index + 2)
    axes.set_title("new figures, k = 2")
    axes.set_xlabel("texts per new figure")
    axes.set_xticks(range(len(steps)), [str(step) for step in steps])
    axes.legend(loc="upper left", fontsize="small")
    share_axis(axes, "")
