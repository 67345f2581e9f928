"""The style of figures."""

import io
from typing import Any

import matplotlib
import numpy as np
from PIL import Image

from skillmix.report.figures.style import Print, house_style, new_figure, printed


def drawn() -> Print:
    with house_style():
        figure = new_figure(2, 1.5)
        axes = figure.subplots()
        axes.plot([1, 2], [2, 1], marker="o")
        axes.set_title("title")
        return printed(figure)


def test_both_formats_show_the_same_drawing() -> None:
    pixels = np.asarray(Image.open(io.BytesIO(drawn().png)).convert("L"))

    assert pixels.shape == (240, 320)  # 160 dots per inch
    assert drawn().svg.count(b"<use") >= 2  # the markers
    # The line falls from the upper left to the lower right.
    dark = np.argwhere(pixels[40:180, 60:300] < 200)
    assert np.corrcoef(dark[:, 0], dark[:, 1]).min() > 0.5


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
