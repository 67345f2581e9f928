"""Sphinx's settings for this folder; `make docs` builds the pages into build/docs."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import skillmix  # noqa: E402 - of this checkout

project = "skillmix"
version = release = skillmix.__version__
author = "the authors of skillmix"
copyright = "the authors of skillmix, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "tools.docs.site"]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}  # tools.docs.site turns a notebook into Markdown
root_doc = "index"
exclude_patterns = ["figures", "cards"]

myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
suppress_warnings: list[str] = []  # `make docs` turns every warning into an error
smartquotes = False  # "--" in a sentence is an option

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
default_role = "code"  # docstrings write `name`, as Markdown does

html_theme = "furo"
html_title = f"skillmix {release}"
html_static_path: list[str] = []
html_show_sphinx = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
