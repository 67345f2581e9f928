"""Convert the README to the page of a package index, where relative links and pictures would have no target.

This is a build hook, which hatchling calls for the metadata of the wheel and the sdist. If `[project.urls]` contains
`Repository`, links lead to this version's files in the repository. Otherwise a link to a file becomes the name of the
file and a picture becomes its description, because plain text is better than dead links.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<picture>!?)\[(?P<words>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_CODE = re.compile(r"(```.*?```)", re.DOTALL)
REPOSITORY = "Repository"


def index_page(readme: str, *, repository: str | None, version: str) -> str:
    """Return the README with links that work anywhere, and without comments.

    >>> index_page("Read [this](docs/a.md#b).", repository=None, version="1.0.0")
    'Read this (docs/a.md).'
    >>> index_page("Read [this](docs/a.md#b).", repository="https://example.org/x/", version="1.0.0")
    'Read [this](https://example.org/x/blob/v1.0.0/docs/a.md#b).'
    """
    address = repository.rstrip("/") if repository else None

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        if address is not None:
            kind = "raw" if match["picture"] else "blob"
            return f"{match['picture']}[{match['words']}]({address}/{kind}/v{version}/{target})"
        file = target.partition("#")[0]
        return f"*{match['words']}* ({file})" if match["picture"] else f"{match['words']} ({file})"

    parts = _CODE.split(_COMMENT.sub("", readme))
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


class IndexPage(MetadataHookInterface):
    """The build hook that sets the metadata field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Use the converted README in the metadata."""
        root = Path(self.root)
        package = (root / "src/skillmix/__init__.py").read_text(encoding="utf-8")
        (version,) = re.findall(r'^__version__ = "(.+)"$', package, re.MULTILINE)
        page = index_page(
            (root / "README.md").read_text(encoding="utf-8"),
            repository=metadata.get("urls", {}).get(REPOSITORY),
            version=version,
        )
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
