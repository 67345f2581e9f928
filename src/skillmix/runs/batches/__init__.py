"""Make calls in a provider's batches: record and send each batch once, find it after a crash, and read its results."""
