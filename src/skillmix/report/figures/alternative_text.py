"""The numbers of a drawn figure in words, for readers who cannot see it."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from skillmix.render.numbers import share

_MOST_NUMBERS: Final = 60
"""A figure with more numbers is described by its range; its table has every number."""
_Series = tuple[str, list[tuple[str, float]]]
"""A name, and its values by what they belong to."""


def alternative_text(figure: Figure) -> str:
    """Every panel with the numbers of its lines and bars, or their range where there are too many."""
    panels = [(axes, _series(axes)) for axes in figure.axes if axes.get_label() != "<colorbar>"]
    is_long = sum(len(values) for _, series in panels for _, values in series) > _MOST_NUMBERS
    sentences = [_panel(axes, series, is_long=is_long) for axes, series in panels if series]
    return " ".join(sentence for sentence in sentences if sentence)


def _panel(axes: Axes, series: Sequence[_Series], *, is_long: bool) -> str:
    title = axes.get_title(loc="left").replace(r"\$", "$")
    parts = [f"{name}: {_range(values) if is_long else _listed(values)}".removeprefix(": ") for name, values in series]
    return f"{title + ': ' if title else ''}{'; '.join(parts)}."


def _listed(values: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{_number(value)} at {name}" for name, value in values)


def _range(values: Sequence[tuple[str, float]]) -> str:
    low, high = (chosen(values, key=lambda pair: pair[1]) for chosen in (min, max))
    return f"from {_number(low[1])} ({low[0]}) to {_number(high[1])} ({high[0]}), {len(values)} values"


def _number(value: float) -> str:
    return share(value) if 0 <= value <= 1 else f"{value:.3g}"


def _series(axes: Axes) -> list[_Series]:
    found = [*_images(axes), *_bars(axes), *_error_bars(axes), *_lines(axes)]
    return [(name.replace(r"\$", "$"), values) for name, values in found if values]


def _images(axes: Axes) -> Iterator[_Series]:
    rows, columns = ([tick.get_text() for tick in ticks] for ticks in (axes.get_yticklabels(), axes.get_xticklabels()))
    for image in axes.images:
        grid: Any = np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan)
        cells = [(f"{rows[i]} and {columns[j]}", float(grid[i, j])) for i, j in np.ndindex(grid.shape)]
        yield "", [(name, value) for name, value in cells if not np.isnan(value)]


def _bars(axes: Axes) -> Iterator[_Series]:
    for bars in axes.containers:
        if isinstance(bars, BarContainer):
            places = [_label(axes, "x", bar.get_x() + bar.get_width() / 2) for bar in bars]
            yield str(bars.get_label()), list(zip(places, (float(bar.get_height()) for bar in bars), strict=True))


def _error_bars(axes: Axes) -> Iterator[_Series]:
    for bars in axes.containers:
        if isinstance(bars, ErrorbarContainer):
            yield _points(axes, str(bars.get_label()), bars.lines[0])


def _lines(axes: Axes) -> Iterator[_Series]:
    of_bars = {id(bars.lines[0]) for bars in axes.containers if isinstance(bars, ErrorbarContainer)}
    for line in axes.lines:
        if id(line) not in of_bars and not str(line.get_label()).startswith("_"):
            yield _points(axes, str(line.get_label()), line)


def _points(axes: Axes, label: str, line: Any) -> _Series:
    x, y = (np.asarray(data, dtype=float) for data in line.get_data())
    name = "" if label.startswith("_") else label
    if _is_by_name(axes):
        return name, [(_label(axes, "y", b), float(a)) for a, b in zip(x, y, strict=True)]
    return name, [(_label(axes, "x", a), float(b)) for a, b in zip(x, y, strict=True)]


def _is_by_name(axes: Axes) -> bool:
    """Whether the vertical axis names things, so that the horizontal one has the numbers."""
    return any(c.isalpha() for tick in axes.get_yticklabels() for c in tick.get_text())


def _label(axes: Axes, axis: str, position: float) -> str:
    """The label of the nearest tick; a position between ticks that are far from it is its own label."""
    ticks, labels = (
        (axes.get_xticks(), axes.get_xticklabels()) if axis == "x" else (axes.get_yticks(), axes.get_yticklabels())
    )
    gap = min((abs(b - a) for a, b in pairwise(ticks)), default=1.0)
    distance, label = min(
        ((abs(t - position), text.get_text()) for t, text in zip(ticks, labels, strict=True)), default=(gap, "")
    )
    if not label or distance > gap / 2:
        return f"{position:g}"
    return f"k = {label}" if axes.get_xlabel().startswith("k, ") and axis == "x" else label
