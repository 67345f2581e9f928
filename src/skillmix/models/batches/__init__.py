"""Batches of calls at half the price: what each provider's interface for them looks like."""
