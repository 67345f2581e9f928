"""`python -m tools.docs` writes the pages that come from the code; `make docs` calls it before Sphinx."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.docs import command_options, experiment_keys

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGES: Final[dict[str, Callable[[], str]]] = {
    "experiment-keys.md": experiment_keys.page,
    "command-options.md": command_options.page,
}


def main() -> None:
    """Write the pages that changed."""
    for name, page in PAGES.items():
        file, text = DOCS / name, page()
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
