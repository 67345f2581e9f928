"""The losses of a training run as an SVG picture, which any browser shows."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final

Point = tuple[int, float]
"""An optimiser step, counted from 1, and a loss."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 360, 64, 44, 16, 120
_COLOURS: Final = {"answers": "#0b62a4", "replay": "#b35c00", "validation": "#1a7f37"}


def loss_curve(curves: Mapping[str, Sequence[Point]]) -> str:
    """Draw loss by step, with a line for each name."""
    points = [point for curve in curves.values() for point in curve]
    last = max((step for step, _ in points), default=1)
    ticks = _ticks(max((loss for _, loss in points), default=1.0))
    parts = [_axes(last, ticks)]
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS.get(name, "#555")
        corners = " ".join(f"{_x(step, last):.1f},{_y(loss, ticks[-1]):.1f}" for step, loss in curve)
        dashes = ' stroke-dasharray="5 3"' if name == "validation" else ""
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="1.6"{dashes}/>')
        y = _TOP + 16 + 20 * number
        parts.append(f'<text x="{_WIDTH - _RIGHT + 12}" y="{y}" fill="{colour}">{escape(name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="13">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _axes(last: int, ticks: Sequence[float]) -> str:
    lines = []
    for tick in ticks:
        y = _y(tick, ticks[-1])
        lines.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    base = _HEIGHT - _BOTTOM
    lines += [
        f'<text x="{_x(step, last):.1f}" y="{base + 18}" text-anchor="middle">{step}</text>'
        for step in sorted({1, (1 + last) // 2, last})
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">optimiser step</text>')
    lines.append(
        f'<text transform="translate(16 {base / 2}) rotate(-90)" text-anchor="middle">loss (nats a token)</text>'
    )
    return "\n".join(lines)


def _ticks(highest: float) -> list[float]:
    highest = highest if highest > 0 else 1.0
    unit = 10.0 ** floor(log10(highest / 4))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit * 5 >= highest)
    return [round(step * number, 10) for number in range(ceil(highest / step) + 1)]


def _x(step: int, last: int) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * (step - 1) / max(1, last - 1)


def _y(loss: float, highest: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * loss / highest
