"""Lists that are too long for memory."""
