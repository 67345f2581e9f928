"""Calls that travel in a provider's batches: noted, sent once, found again, read."""
