"""Calls in a provider's batches: recorded, sent once, found again, read."""
