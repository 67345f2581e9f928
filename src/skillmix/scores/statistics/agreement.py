"""Measures of agreement between graders, and between the rounds of one grader."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

Ratings = Sequence[Sequence[float | None]]
"""For each unit (a criterion of a text), one value per grader or round; None where the value is unreadable."""


def krippendorff_alpha(units: Ratings, level: Literal["nominal", "interval"] = "nominal") -> float | None:
    """Krippendorff's alpha; None when no two values can be compared or nothing varies."""
    values = sorted({value for unit in units for value in unit if value is not None})
    column = {value: i for i, value in enumerate(values)}
    counts = np.zeros((len(units), len(values)))
    for row, unit in enumerate(units):
        for value in unit:
            if value is not None:
                counts[row, column[value]] += 1
    counts = counts[counts.sum(axis=1) >= 2]
    if len(counts) == 0:
        return None
    pairable = counts.sum(axis=1)
    weighted = counts / (pairable - 1)[:, None]
    coincidences = weighted.T @ counts - np.diag(weighted.sum(axis=0))
    margins = coincidences.sum(axis=1)
    scale = np.array(values)
    distance = (scale[:, None] - scale[None, :]) ** 2 if level == "interval" else 1 - np.eye(len(values))
    expected = ((np.outer(margins, margins) - np.diag(margins)) * distance).sum() / (margins.sum() - 1)
    if expected == 0:
        return None
    return float(1 - (coincidences * distance).sum() / expected)


def cohen_kappa(first: Sequence[float | None], second: Sequence[float | None]) -> float | None:
    """Cohen's kappa of two raters over the units that both rated; None when chance agreement is total."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n
    values = {value for pair in pairs for value in pair}
    chance = sum(sum(a == v for a, _ in pairs) * sum(b == v for _, b in pairs) for v in values) / n**2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def flip_rate(units: Ratings) -> float | None:
    """How often two rounds on the same unit differ: the share of differing pairs of readable values."""
    pairs = flips = 0
    for unit in units:
        readable = [value for value in unit if value is not None]
        for i, value in enumerate(readable):
            pairs += len(readable) - i - 1
            flips += sum(value != other for other in readable[i + 1 :])
    return flips / pairs if pairs else None
