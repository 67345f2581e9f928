"""Verdicts on differences between students, and the sentences that state them."""
