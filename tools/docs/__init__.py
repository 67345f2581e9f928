"""Generate documentation pages from the code, and extend Sphinx for the site."""
