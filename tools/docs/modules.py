"""Write the list of modules in docs/code.md from their docstrings."""

import ast
from itertools import groupby
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[2] / "src/skillmix"


def part() -> str:
    """Return a section for each folder, with the summary and the public names of each module."""
    files = [file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py"]
    parts = []
    for folder, own in groupby(sorted(files, key=lambda file: (file.parent, file.name)), lambda file: file.parent):
        parts.append(f"## {folder.relative_to(PACKAGE.parent).as_posix()}")
        parts.append("\n".join(map(_module, own)))
    return "\n\n".join(parts) + "\n"


def _module(file: Path) -> str:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    summary = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ").replace("<", "\\<")
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = [f"`{node.name}`" for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return f"- **`{file.name}`**: {summary}" + (f"\n  Defines {', '.join(names)}." if names else "")
