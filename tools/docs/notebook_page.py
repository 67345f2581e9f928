"""Turn a notebook into a Markdown page with its texts, its code and its stored output."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_LONGEST_FENCE: Final = re.compile(r"^`{3,}", re.MULTILINE)


def page_of_notebook(notebook: str) -> str:
    """Return the page for a notebook, which is given as JSON."""
    cells = json.loads(notebook)["cells"]
    return "\n\n".join(part for cell in cells for part in _parts(cell)) + "\n"


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = _joined(cell["source"]).strip()
    if cell["cell_type"] == "markdown":
        yield source
    elif source:
        yield fenced(source, "python")
        for output in cell.get("outputs", ()):
            yield _shown(output)


def _shown(output: Mapping[str, Any]) -> str:
    """Return the best form of an output: a picture, a Markdown table, or plain text."""
    if output["output_type"] == "stream":
        return fenced(_joined(output["text"]).rstrip(), "text")
    data = output["data"]
    if "image/png" in data:
        return f"![The plot of the cell above](data:image/png;base64,{_joined(data['image/png']).replace(chr(10), '')})"
    if "text/markdown" in data:
        return _joined(data["text/markdown"]).strip()
    return fenced(_joined(data["text/plain"]), "text")


def fenced(text: str, language: str) -> str:
    """Return a block of code with a fence longer than any fence in the text."""
    fence = max(["``", *_LONGEST_FENCE.findall(text)], key=len) + "`"
    return f"{fence}{language}\n{text}\n{fence}"


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
