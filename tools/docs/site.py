"""A Sphinx extension that makes the site's contents from the lists in docs/index.md, and pages from notebooks."""

import re
from typing import TYPE_CHECKING, Any, Final

from tools.docs.notebook_page import page_of_notebook

if TYPE_CHECKING:
    from sphinx.application import Sphinx

INDEX: Final = "index"
_SECTION: Final = re.compile(r"^## (.+)$", re.MULTILINE)
_ENTRY: Final = re.compile(r"^- \[([^\]]+)\]\(([\w./-]+)\.(?:md|ipynb)\)", re.MULTILINE)


def listed_pages(index: str) -> dict[str, dict[str, str]]:
    r"""Return titles by page for each section of an index, from the links at the start of list items.

    >>> listed_pages("# All\n## Tutorial\n- [First](first.md): short.\n## How to\n- [Run](run.md), [x](x.md)\n")
    {'Tutorial': {'first': 'First'}, 'How to': {'run': 'Run'}}
    """
    parts = _SECTION.split(index)
    listed = {
        title: {page: name.replace("`", "") for name, page in _ENTRY.findall(body)}
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {title: pages for title, pages in listed.items() if pages}


def with_contents(index: str) -> str:
    """Return the index with a hidden table of contents, from which Sphinx makes the side bar."""
    trees = (
        "\n".join(
            [
                "```{toctree}",
                ":hidden:",
                f":caption: {title}",
                "",
                *(f"{name} <{page}>" for page, name in pages.items()),
                "```",
            ]
        )
        for title, pages in listed_pages(index).items()
    )
    return "\n\n".join([index, *trees, ""])


_OUTSIDE: Final = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+\.md)(?:#[^)]*)?\)")


def with_downloads(page: str) -> str:
    """Turn the links of a page to Markdown files outside the site into downloads.

    >>> with_downloads("see [`bench`](../bench/README.md#speed)")
    'see {download}`bench <../bench/README.md>`'
    """
    return _OUTSIDE.sub(lambda link: f"{{download}}`{link[1].replace('`', '')} <{link[2]}>`", page)


def _read(app: "Sphinx", page: str, source: list[str]) -> None:
    if page == INDEX:
        source[0] = with_contents(source[0])
    elif str(app.env.doc2path(page)).endswith(".ipynb"):
        source[0] = page_of_notebook(source[0])
    source[0] = with_downloads(source[0])


def setup(app: "Sphinx") -> dict[str, Any]:
    """Register this extension with Sphinx."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
