"""The links that people open: a port and a secret for each person, kept with the run.

A page that is open when the server dies finds the server again under the same address, and nobody needs a new link.
The file can be read by its owner only. Whoever has a link can answer in the name of its person, on this machine.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_urlsafe
from typing import Final

from skillmix.runs.run import Run

_FILE: Final = "annotate.json"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,100}")


@dataclass(frozen=True, slots=True)
class Link:
    """Where one person answers: a port, 0 for any free one, and a secret."""

    port: int
    token: str


def links_of(run: Run, raters: Sequence[str], *, new: bool = False) -> dict[str, Link]:
    """The links of people: those that were used before, or new ones with the port of before."""
    known = _read(run.path / _FILE)
    if new:
        known = {rater: Link(link.port, token_urlsafe(32)) for rater, link in known.items()}
    return {rater: known.get(rater) or Link(0, token_urlsafe(32)) for rater in raters}


def keep_links(run: Run, links: Mapping[str, Link]) -> None:
    """Store links beside those of other people of the run."""
    file = run.path / _FILE
    content = {rater: asdict(link) for rater, link in {**_read(file), **links}.items()}
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(json.dumps(content, indent=1) + "\n")
    partial.replace(file)


def _read(file: Path) -> dict[str, Link]:
    """The stored links; none if the file is missing or damaged."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        links = {rater: Link(one["port"], one["token"]) for rater, one in stored.items()}
        is_whole = all(
            type(x.port) is int and 0 <= x.port < 65536 and _TOKEN.fullmatch(x.token) for x in links.values()
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return links if is_whole else {}
