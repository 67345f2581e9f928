"""The common style of all figures, which are safe for color-blind readers, legible in print, and byte-reproducible.

`alternative_text` describes the numbers in a figure, for readers who cannot see it.
"""

# Matplotlib's renderers have no type annotations.
# mypy: allow-untyped-calls

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from math import nan
from typing import Any, Final, NamedTuple, Protocol

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase, RendererBase
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.collections import QuadMesh
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D, TransformedBbox, TransformedPath
from PIL import Image

from skillmix.render import share
from skillmix.report.registry import FILES

# Okabe and Ito's colors except yellow, which is invisible on paper; marker shapes can be told apart without color.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
INK: Final = "#1d2733"
FAINT: Final = "#66717d"
ON_DARK: Final = "#fdfdfd"
ON_LIGHT: Final = "#1c2632"
"""The text color on the colored cells of a map; these cells keep their colors on a dark screen."""

GRID: Final = "#e3e7ec"
_DARK: Final = {
    "#ffffff": "#171d24",
    INK: "#e7ebef",
    FAINT: "#9aa5b0",
    GRID: "#2d3742",
    "#cfd6de": "#4b5866",
    "#0072B2": "#56a8e0",
    "#D55E00": "#f0853d",
    "#009E73": "#35c79b",
    "#CC79A7": "#dd98be",
    "#E69F00": "#f0b53d",
    "#56B4E9": "#8fd0f5",
    "#4D4D4D": "#b3b3b3",
}
"""The replacement colors in dark mode; figures follow the reader's preference on pages and when downloaded."""


class FigureStyle(NamedTuple):
    """The sizes of figures and of their text for one medium, such as a paper."""

    name: str
    widths: tuple[float, ...] = ()
    """Widths in inches, smallest first; a figure uses the first sufficient one. If empty, figures keep their widths."""
    letters: float = 9.5
    """The font size in points."""
    shrink: float = 1.0
    """The scale, relative to the house style, below which a figure uses the next larger width."""

    def size(self, width: float, height: float) -> tuple[float, float]:
        """Scale the size of a figure that was designed for the house style."""
        if not self.widths:
            return width, height
        chosen = next((w for w in self.widths if width * self.shrink <= w), self.widths[-1])
        return chosen, height * chosen / width


HOUSE: Final = FigureStyle("house")
STYLES: Final = {
    # The widths of a column and of a page in a two-column article on letter paper.
    "paper": FigureStyle("paper", widths=(3.35, 6.9), letters=7, shrink=0.68),
    # The width of a 13.3-inch slide with a margin.
    "slide": FigureStyle("slide", widths=(12.3,), letters=15),
}
_style: ContextVar[FigureStyle] = ContextVar("style", default=HOUSE)


_SIZES: Final = (
    *("axes.labelsize", "axes.linewidth", "axes.titlesize", "font.size", "grid.linewidth", "legend.fontsize"),
    *("lines.linewidth", "lines.markersize"),
)


@contextmanager
def house_style(style: FigureStyle = HOUSE) -> Iterator[None]:
    """Set the style of all figures, which must be drawn and saved inside this context.

    Matplotlib settings that the user has changed in this process are ignored, so that a figure drawn by a worker has
    the same bytes.
    """
    # Use Matplotlib's defaults, but keep the user's GUI backend.
    windows = ("backend", "interactive")
    own = matplotlib.rc_params_from_file(FILES / "figures.mplstyle")
    settings: dict[Any, Any] = {name: value for name, value in own.items() if not name.startswith(windows)}
    settings |= {name: settings[name] * style.letters / HOUSE.letters for name in _SIZES}
    before = _style.set(style)
    try:
        with matplotlib.rc_context(settings):
            yield
    finally:
        _style.reset(before)


class _Estimated(Protocol):
    """A value that may have an interval."""

    @property
    def value(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def error_bars(scores: Sequence[_Estimated]) -> list[list[float]]:
    """Return the lengths of the bars below and above scores that have a value.

    A length is NaN, which draws no bar, if a score has no interval.
    """
    values = [(score.value or 0.0, score.low, score.high) for score in scores]
    below = [nan if low is None else max(0.0, value - low) for value, low, _ in values]
    above = [nan if high is None else max(0.0, high - value) for value, _, high in values]
    return [below, above]


def score_line(
    axes: Axes, index: int, x: Sequence[float], scores: Sequence[_Estimated], **looks: Any
) -> ErrorbarContainer:
    """Draw scores with their intervals, with the color and marker for this index."""
    y = [score.value or 0.0 for score in scores]
    looks = {**look(index), "capsize": 2.5, "elinewidth": 1, **looks}
    return axes.errorbar(x, y, yerr=error_bars(scores), **looks)


def rows_by_name(axes: Axes, names: Sequence[str], **looks: Any) -> None:
    """Label the vertical axis with a row for each name, and draw the grid for the horizontal axis only."""
    axes.set_yticks(range(len(names)), names, **looks)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure with a size in inches, scaled to the current style; its layout prevents overlaps."""
    return Figure(figsize=_style.get().size(width, height), dpi=_SVG_DPI, layout="constrained")


def new_panels(rows: int, columns: int, *, width: float, height: float) -> tuple[Figure, Any]:
    """Make a figure whose panels share the vertical axis, from the width of one panel and the height of the figure."""
    figure = new_figure(max(4.4, width * columns), height)
    return figure, figure.subplots(rows, columns, sharey=True, squeeze=False)


def skills_axis(axes: Axes, ks: Sequence[int], *, is_named: bool = True) -> None:
    """Set up a horizontal axis for the number of skills."""
    axes.set_xlabel("k, skills in one text" if is_named else "")
    axes.set_xticks(ks)


def colour(index: int) -> str:
    """Return the color of a student by its index."""
    return COLOURS[index % len(COLOURS)]


def look(index: int) -> dict[str, Any]:
    """Return the color and the marker of a student by its index."""
    return {"color": colour(index), "marker": MARKERS[index % len(MARKERS)]}


def clipped(name: str, longest: int = 34) -> str:
    """Shorten a name for a label, without characters that a figure cannot draw or would interpret."""
    printable = "".join(c if c.isprintable() else " " for c in name).replace("$", r"\$")
    return printable if len(printable) <= longest else printable[: longest - 1] + "…"


def share_axis(axes: Axes, label: str) -> None:
    """Set up a vertical axis for shares from 0 to 1."""
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_yticklabels(["0", ".25", ".50", ".75", "1"])
    axes.set_ylabel(label)
    # Label every panel, because a narrow page separates and stacks the panels.
    axes.tick_params(labelleft=True)


Region = tuple[float, float, float, float]
"""A part of a figure as left, top, width and height in SVG units."""


def panel_regions(figure: Figure, pen: RendererBase) -> tuple[Region, ...]:
    """Return the regions of the panels and the legend, which a narrow page stacks.

    Return no regions if the figure has only one panel or a color bar.
    """
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    if len(panels) < 2 or len(panels) < len(figure.axes):
        return ()
    boxes = [axes.get_tightbbox(pen) for axes in panels]
    boxes += [legend.get_window_extent(pen) for legend in figure.legends]
    height = 72 * figure.get_size_inches()[1]
    edges = ((box.x0 - 2, height - box.y1 - 2, box.width + 4, box.height + 4) for box in boxes if box is not None)
    return tuple((round(left, 1), round(top, 1), round(w, 1), round(h, 1)) for left, top, w, h in edges)


_SVG_DPI: Final = 72
"""SVG units per inch."""
_SHARPNESS: Final = 160 / 72
"""PNG dots per SVG unit."""


class _Pen(RendererSVG):
    """Draws an SVG and a raster in one pass, because traversing a figure takes longer than drawing it."""

    def __init__(self, figure: Figure, about: str) -> None:
        self._written = io.StringIO()
        width, height = (_SVG_DPI * float(inches) for inches in figure.get_size_inches())
        metadata = {"Date": None, "Creator": None, "Description": about or None}
        super().__init__(width, height, self._written, image_dpi=_SVG_DPI, metadata=metadata)
        self._raster = RendererAgg(round(_SHARPNESS * width), round(_SHARPNESS * height), _SHARPNESS * _SVG_DPI)
        self._enlarged = Affine2D().scale(_SHARPNESS)

    def _sharp(self, gc: Any) -> Any:
        """Return a graphics context with clipping that fits the raster."""
        sharp: Any = self._raster.new_gc()
        sharp.copy_properties(gc)
        box: Any = gc.get_clip_rectangle()
        path, transform = gc.get_clip_path()
        sharp.set_clip_rectangle(box and TransformedBbox(box, self._enlarged))
        sharp.set_clip_path(path and TransformedPath(path, transform + self._enlarged))
        return sharp

    def draw_path(self, gc: Any, path: Any, transform: Any, rgbFace: Any = None) -> None:
        super().draw_path(gc, path, transform, rgbFace)
        self._raster.draw_path(self._sharp(gc), path, transform + self._enlarged, rgbFace)

    def draw_markers(self, gc: Any, marker: Any, size: Any, path: Any, transform: Any, rgbFace: Any = None) -> None:
        super().draw_markers(gc, marker, size, path, transform, rgbFace)
        enlarged = (marker, size + self._enlarged, path, transform + self._enlarged)
        self._raster.draw_markers(self._sharp(gc), *enlarged, rgbFace)

    def draw_path_collection(self, *args: Any, **kwargs: Any) -> None:
        RendererBase.draw_path_collection(self, *args, **kwargs)  # path by path, so that both outputs get each path

    def draw_text(self, gc: Any, x: float, y: float, s: str, *args: Any, **kwargs: Any) -> None:
        super().draw_text(gc, x, y, s, *args, **kwargs)
        self._raster.draw_text(self._sharp(gc), _SHARPNESS * x, _SHARPNESS * y, s, *args, **kwargs)

    def svg(self) -> bytes:
        self.finalize()
        # Matplotlib leaves trailing spaces on some lines.
        lines = (line.rstrip() for line in self._written.getvalue().split("\n"))
        # Add the rules that replace every color with its dark counterpart on screens; on paper, figures stay white.
        rules = [
            f'[style*="{name}: {light.lower()}"] {{ {name}: {dark} !important }}'
            for light, dark in _DARK.items()
            for name in ("fill", "stroke")
        ]
        style = f" <style>@media screen and (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>\n"
        return "\n".join(lines).replace("</metadata>\n", "</metadata>\n" + style, 1).encode()

    def png(self) -> bytes:
        out = io.BytesIO()
        pixels = self._raster.buffer_rgba()
        # "RGBX" skips the opaque alpha channel.
        size = pixels.shape[1], pixels.shape[0]
        Image.frombytes("RGB", size, pixels, "raw", "RGBX").save(out, format="png", dpi=(160, 160), compress_level=4)
        return out.getvalue()


class _Canvas(FigureCanvasBase):
    """A canvas that measures text with the same pen that draws it."""

    pen: _Pen

    def get_renderer(self) -> _Pen:
        return self.pen


@dataclass(frozen=True, slots=True)
class Print:
    """A figure drawn as SVG and PNG."""

    svg: bytes
    png: bytes
    size: tuple[int, int]
    """The width and height in CSS pixels (96 per inch)."""
    regions: tuple[Region, ...]
    """The panels, which a narrow page stacks."""


def printed(figure: Figure, *, about: str = "") -> Print:
    """Lay out a figure, and draw it once for both SVG and PNG; the files contain no date."""
    canvas = _Canvas(figure)
    canvas.pen = _Pen(figure, about)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if not axis.label.get_text():
            axis.set_label_coords(0, 0)  # Matplotlib would measure all tick labels to place the empty label
    figure.draw(canvas.pen)
    figure.set_layout_engine(None)
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return Print(canvas.pen.svg(), canvas.pen.png(), (width, height), panel_regions(figure, canvas.pen))


def as_pdf(figure: Figure) -> bytes:
    """Return a figure that is already laid out as a PDF without a date."""
    out = io.BytesIO()
    figure.savefig(out, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return out.getvalue()


_MOST_NUMBERS: Final = 60
"""The maximum number of values that an alternative text lists; beyond it, ranges suffice, because tables list all."""
_Series = tuple[str, list[tuple[str, float]]]
"""The name of a series, and its values by label."""


def alternative_text(figure: Figure) -> str:
    """Describe every panel by the numbers of its lines and bars, or by their ranges if there are too many numbers."""
    panels = [(axes, list(_series(axes))) for axes in figure.axes if axes.get_label() != "<colorbar>"]
    is_long = sum(len(values) for _, series in panels for _, values in series) > _MOST_NUMBERS
    sentences = []
    for axes, series in panels:
        parts = []
        for name, values in series:
            words = ", ".join(f"{_number(value)} at {place}" for place, value in values)
            if is_long:
                low, high = (chosen(values, key=lambda pair: pair[1]) for chosen in (min, max))
                words = f"from {_number(low[1])} ({low[0]}) to {_number(high[1])} ({high[0]}), {len(values)} values"
            parts.append(f"{name}: {words}".removeprefix(": "))
        title = axes.get_title(loc="left").replace(r"\$", "$")
        sentences += [f"{title + ': ' if title else ''}{'; '.join(parts)}."] if parts else []
    return " ".join(sentences)


def _number(value: float) -> str:
    return share(value) if 0 <= value <= 1 else f"{value:.3g}"


def _series(axes: Axes) -> Iterator[_Series]:
    """Yield every named image, bar, error bar and line that has values."""
    x_labels = [tick.get_text() for tick in axes.get_xticklabels()]
    y_labels = [tick.get_text() for tick in axes.get_yticklabels()]
    x_ticks, y_ticks = list(axes.get_xticks()), list(axes.get_yticks())
    before = "k = " if axes.get_xlabel().startswith("k, ") else ""
    found: list[_Series] = []
    for mesh in axes.collections:
        if not isinstance(mesh, QuadMesh):
            continue
        grid: Any = np.ma.filled(np.ma.asarray(mesh.get_array(), dtype=float), np.nan)
        cells = [(f"{y_labels[i]} and {x_labels[j]}", float(grid[i, j])) for i, j in np.ndindex(grid.shape)]
        found.append(("", [(name, value) for name, value in cells if not np.isnan(value)]))
    for bars in axes.containers:
        if isinstance(bars, BarContainer):
            places = [_label(x_ticks, x_labels, bar.get_x() + bar.get_width() / 2, before) for bar in bars]
            heights = (float(bar.get_height()) for bar in bars)
            found.append((str(bars.get_label()), list(zip(places, heights, strict=True))))
    with_bars = [bars for bars in axes.containers if isinstance(bars, ErrorbarContainer)]
    of_bars = [(str(bars.get_label()), bars.lines[0]) for bars in with_bars]
    drawn = {id(line) for _, line in of_bars}
    others = [(str(line.get_label()), line) for line in axes.lines if id(line) not in drawn]
    # If the vertical axis has names, the horizontal axis has the numbers.
    is_by_name = any(c.isalpha() for label in y_labels for c in label)
    for label, line in [*of_bars, *(one for one in others if not one[0].startswith("_"))]:
        xs, ys = (np.asarray(data, dtype=float).tolist() for data in line.get_data())
        points = list(zip(xs, ys, strict=True))
        by_name = ((_label(y_ticks, y_labels, y, ""), x) for x, y in points)
        by_place = ((_label(x_ticks, x_labels, x, before), y) for x, y in points)
        found.append(("" if label.startswith("_") else label, list(by_name if is_by_name else by_place)))
    return ((name.replace(r"\$", "$"), values) for name, values in found if values)


def _label(ticks: Sequence[float], labels: Sequence[str], position: float, before: str) -> str:
    """Return the label of the nearest tick, or the position itself if no tick is near."""
    gap = min((abs(b - a) for a, b in pairwise(ticks)), default=1.0)
    named = ((abs(tick - position), label) for tick, label in zip(ticks, labels, strict=True))
    distance, label = min(named, default=(gap, ""))
    return before + label if label and distance <= gap / 2 else f"{position:g}"
