"""`make same`: what the commands of two revisions print and write, compared file by file."""
