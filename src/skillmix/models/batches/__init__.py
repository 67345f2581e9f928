"""Batches of calls at half the price: the interfaces of the providers."""
