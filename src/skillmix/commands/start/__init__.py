"""Commands for the first minutes: `init` and `completion`."""
