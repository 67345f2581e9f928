"""Student's t distribution, from scipy.

scipy is imported inside the functions: it takes longer to load than most commands take to run.
"""

from typing import Any


def t_quantile(probability: float, degrees: Any) -> Any:
    """A quantile of Student's t; `degrees` is a number or an array, and need not be whole.

    >>> round(t_quantile(0.975, 29), 3)
    2.045
    """
    from scipy.special import stdtrit

    quantile = stdtrit(degrees, probability)
    return quantile if getattr(quantile, "ndim", 0) else float(quantile)


def two_sided_p(ratio: float, degrees: float) -> float:
    """The two-sided p-value of an estimate divided by its standard error.

    >>> round(two_sided_p(2.045, 29), 3)
    0.05
    """
    from scipy.special import stdtr

    return min(1.0, 2 * float(stdtr(degrees, -abs(ratio))))
