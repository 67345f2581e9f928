"""Calls that are sent in a provider's batches: they are recorded, sent once, found again and read."""
