"""The numbers of figures in words."""

import numpy as np

from skillmix.report.figures.style import alternative_text, new_figure


def test_lines_with_error_bars_are_read_by_k() -> None:
    figure = new_figure(3, 2)
    axes = figure.subplots()
    axes.errorbar([0.97, 1.97], [0.8, 0.25], yerr=[[0.1, 0.1], [0.1, 0.1]], label="weak")
    axes.set_xticks([1, 2])
    axes.set_xlabel("k, skills in one text")
    axes.set_title("all", loc="left")

    assert alternative_text(figure) == "all: weak: .80 at k = 1, .25 at k = 2."


def test_points_beside_names_and_maps_are_read_by_name() -> None:
    figure = new_figure(3, 2)
    first, second = figure.subplots(1, 2)
    first.plot([0.5, 0.75], [0, 1], label="student")
    first.set_yticks([0, 1], ["irony", "metaphor"])
    second.pcolormesh([0, 1], [0, 1], np.array([[np.nan, np.nan], [0.4, np.nan]]), shading="nearest")
    second.set_xticks([0, 1], ["irony", "metaphor"])
    second.set_yticks([0, 1], ["irony", "metaphor"])

    assert alternative_text(figure) == "student: .50 at irony, .75 at metaphor. .40 at metaphor and irony."


def test_many_numbers_are_told_by_their_range() -> None:
    figure = new_figure(3, 2)
    axes = figure.subplots()
    axes.plot(range(100), [n / 100 for n in range(100)], label="loss")

    assert "from .00 (0) to .99 (" in alternative_text(figure) and "100 values" in alternative_text(figure)
