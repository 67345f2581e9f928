"""Fragments of the package: short modules with one importer, and short private functions with one caller.

The allow-list `fragments.txt` beside this module holds those that are still there. It may only shrink:
`python -m tests.fragmentation` writes it again without those that are gone, and refuses to add one.
"""

import ast
import re
import sys
from collections import Counter
from pathlib import Path

import skillmix

PACKAGE = Path(skillmix.__file__).parent
LIST = Path(__file__).with_name("fragments.txt")
FEWEST_MODULE_LINES = 120
"""A module with one importer and fewer lines belongs into that importer."""
MOST_FUNCTION_LINES = 5
"""A private function with one caller and no more lines belongs into that caller."""


def fragments() -> set[str]:
    """Every fragment, as `folder/module.py` or `folder/module.py:function`."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    return {*_modules(sources, trees), *_functions(sources, trees)}


def _modules(sources: dict[Path, str], trees: dict[Path, ast.Module]) -> set[str]:
    names = {".".join(("skillmix", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in sources}
    importers = Counter[str]()
    for tree in trees.values():
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported = {str(node.module) for node in nodes}
        imported |= {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
        importers.update(imported & names.keys())
    return {
        path.relative_to(PACKAGE).as_posix()
        for name, path in names.items()
        if importers[name] == 1 and sources[path].count("\n") < FEWEST_MODULE_LINES
    }


def _functions(sources: dict[Path, str], trees: dict[Path, ast.Module]) -> set[str]:
    found = set()
    for path, tree in trees.items():
        words = Counter(re.findall(r"\w+", sources[path]))
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list:
                continue
            is_private = node.name.startswith("_") and not node.name.startswith("__")
            first = node.body[1:] if ast.get_docstring(node) else node.body
            length = node.body[-1].end_lineno - first[0].lineno + 1 if first and node.body[-1].end_lineno else 0
            if is_private and words[node.name] == 2 and length <= MOST_FUNCTION_LINES:
                found.add(f"{path.relative_to(PACKAGE).as_posix()}:{node.name}")
    return found


def allowed() -> set[str]:
    """The fragments on the list."""
    return set(LIST.read_text(encoding="utf-8").split())


if __name__ == "__main__":
    now, before = fragments(), allowed()
    new = sorted(now - before)
    if new and "--add" not in sys.argv:
        raise SystemExit(f"new fragments, to be merged or inlined: {', '.join(new)}")
    LIST.write_text("\n".join(sorted(now)) + "\n", encoding="utf-8")
