"""Calls in a provider's batches, which are recorded, sent once, found again after a crash, and read."""
