"""Checkers: code that decides whether a text shows a skill.

A checker of another package takes a `Passage` and returns a `Span` or None.
"""

from skillmix.checkers.passage import Passage, Span

__all__ = ["Passage", "Span"]
