"""The checkers of the package by family; each module registers its checkers with `shows`."""

from skillmix.checkers.passage import ENTERED, REPEATING
from skillmix.checkers.skills import (
    argument,
    interruption,
    place,
    quantity,
    relations,
    repetition,
    series,
    social,
    time,
    worked_examples,
)

__all__ = [
    "ENTERED",
    "REPEATING",
    "argument",
    "interruption",
    "place",
    "quantity",
    "relations",
    "repetition",
    "series",
    "social",
    "time",
    "worked_examples",
]
