"""How many texts give an interval of agreement that is narrow enough.

Agreement is the share of texts on which two graders give the same vote. Its 95 % Wilson interval over n texts has the
width w = 2 z √(n p (1 − p) + z² / 4) / (n + z²), with z = 1.96 and the agreement p. Solved for n, with q = p (1 − p):
n + z² = z² (2 q + √(4 q² + w² (1 − 4 q))) / w². At p = .5, where the interval is widest, n = z² (1 / w² − 1).
"""

from math import ceil, sqrt
from statistics import NormalDist
from typing import Final

from skillmix.errors import UserError
from skillmix.experiment.people_steps import NARROWEST
from skillmix.scores.statistics.intervals import CONFIDENCE, wilson_interval

_Z: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_ROUNDING: Final = 1e-9


def texts_for_width(width: float, *, agreement: float = 0.5) -> int:
    """The smallest number of texts whose 95 % interval of agreement is not wider than this.

    >>> texts_for_width(0.1), texts_for_width(0.1, agreement=0.9)
    (381, 141)
    """
    if not NARROWEST <= width < 1:
        raise UserError(
            f"{width} is not a width that an interval of agreement can have here.",
            hint=f"Use a number from {NARROWEST} to below 1.",
        )
    checked_agreement(agreement)
    q = agreement * (1 - agreement)
    square = _Z**2 * (2 * q + sqrt(4 * q**2 + width**2 * (1 - 4 * q))) / width**2
    return max(1, ceil(square - _Z**2 - _ROUNDING))


def checked_agreement(agreement: float) -> float:
    """The agreement itself if it is a share; otherwise an error."""
    if not 0 <= agreement <= 1:
        raise UserError(f"{agreement} is not an agreement.", hint="Use a number from 0 to 1.")
    return agreement


def width_of(texts: int, *, agreement: float = 0.5) -> float:
    """The width of the 95 % interval of agreement over some texts."""
    low, high = wilson_interval(agreement, texts)
    return high - low
