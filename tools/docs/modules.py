"""Write the list of modules in docs/code.md from their docstrings."""

import ast
from itertools import groupby
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[2] / "src/skillmix"


def part() -> str:
    """Return a section for each folder, with the summary of each module."""
    files = [file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py"]
    parts = []
    for folder, own in groupby(sorted(files, key=lambda file: (file.parent, file.name)), lambda file: file.parent):
        parts.append(f"## {folder.relative_to(PACKAGE.parent).as_posix()}")
        parts.append("\n".join(f"- `{file.name}`: {_summary(file)}" for file in own))
    return "\n\n".join(parts) + "\n"


def _summary(file: Path) -> str:
    summary = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    return summary.replace("\n", " ").replace("<", "\\<")
