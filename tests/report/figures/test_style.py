"""The style of figures."""

from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from skillmix.report.figures.style import as_png, as_svg, house_style, laid_out


def drawn() -> tuple[bytes, bytes]:
    with house_style():
        figure = Figure(figsize=(2, 1.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.plot([1, 2], [2, 1], marker="o")
        axes.set_title("title")
        laid_out(figure)
        return as_svg(figure), as_png(figure)


def test_settings_that_a_user_has_changed_do_not_change_a_figure() -> None:
    expected = drawn()
    changed: dict[Any, Any] = {
        "lines.markeredgewidth": 4,
        "axes.titlepad": 20,
        "figure.constrained_layout.use": True,
        "interactive": True,
    }

    with matplotlib.rc_context(changed):
        before = dict(matplotlib.rcParams)
        assert drawn() == expected
        assert dict(matplotlib.rcParams) == before
