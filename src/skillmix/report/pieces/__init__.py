"""Pieces of a run, read on all cores for a report."""
