"""The providers' interfaces for batches of calls, which cost half the price."""
