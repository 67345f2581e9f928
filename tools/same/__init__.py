"""Compare, file by file, the output that the commands of two revisions print and write: `make same`."""
