"""Code that checks a skill; a checker of another package works with `Passage` and `Span`."""

from skillmix.checkers.passage import Passage, Span

__all__ = ["Passage", "Span"]
