"""The ends of an interval that a test expects to be there."""

from typing import Protocol


class _HasInterval(Protocol):
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def ends(estimate: _HasInterval) -> tuple[float, float]:
    """Both ends; an estimate without an interval fails the test."""
    assert estimate.low is not None and estimate.high is not None
    return estimate.low, estimate.high
