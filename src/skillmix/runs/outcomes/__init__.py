"""Outcomes of calls on their way into the journal."""
