"""Commands that write what other tools read."""
