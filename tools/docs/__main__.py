"""Write the parts of pages that come from the code: `make docs` calls `python -m tools.docs` before Sphinx."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.docs import command_options, experiment_keys, modules
from tools.docs.markdown import WRITTEN

DOCS: Final = Path(__file__).parents[2] / "docs"
PARTS: Final[dict[str, Callable[[], str]]] = {
    "experiments.md": experiment_keys.part,
    "commands.md": command_options.part,
    "code.md": modules.part,
}
"""The functions that generate the last part of each of these pages, below the mark."""


def with_part(name: str) -> str:
    """Return a page with its hand-written part and, below it, the current generated part."""
    written, mark, _ = (DOCS / name).read_text(encoding="utf-8").partition(WRITTEN)
    if not mark:
        raise SystemExit(f"docs/{name} must contain the line {WRITTEN}")
    return f"{written}{WRITTEN}\n\n{PARTS[name]()}"


def main() -> None:
    """Write the pages whose generated part changed."""
    for name in PARTS:
        file, text = DOCS / name, with_part(name)
        if file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
