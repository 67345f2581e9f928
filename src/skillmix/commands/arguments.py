"""Numbers on the command line that must make sense."""

import argparse
from math import isfinite


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return number


def above_zero(text: str) -> float:
    """A number above 0."""
    number = float(text)
    if not (isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number
