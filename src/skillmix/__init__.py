"""Measure whether a chat model can combine language skills, and teach it to."""

__version__ = "0.1.0"
