"""The documentation: pages that are written from the code, and the parts of the site that Sphinx does not have."""
