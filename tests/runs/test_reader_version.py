"""Stored decisions are thrown away whenever the code that decides has changed."""

import ast
from hashlib import blake2b
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import skillmix
from skillmix.checkers.registry import ENTRY_POINTS
from skillmix.runs import verdicts
from skillmix.runs.verdicts import READER_VERSION, code_version

PACKAGE = Path(skillmix.__file__).parent
DECIDING = (
    "hashing.py",
    "catalog/catalog.py",
    "prompts/rubric.py",
    "grading/**/*.py",
    "checkers/**/*.py",
    "checkers/**/*.json",
    "runs/people.py",
    "datasets/decisions.py",
    "runs/verdicts.py",
)
"""The files that decide what a stored reply is worth."""
KNOWN = (7, "692165d22b3d9a39")
"""READER_VERSION, and the hash of those files when it was last looked at."""


def test_the_reader_version_is_that_of_the_code() -> None:
    now = hash_of_code(PACKAGE)

    assert (READER_VERSION, now) == KNOWN, (
        f"The code that decides has changed. If it could decide the same replies otherwise, raise READER_VERSION in "
        f"runs/verdicts.py; then write the version and {now!r} into KNOWN here."
    )


def hash_of_code(package: Path) -> str:
    """A hash of the deciding files; comments, docstrings and formatting do not count."""
    content = blake2b(digest_size=8)
    for pattern in DECIDING:
        files = sorted(package.glob(pattern))
        assert files, pattern
        for file in files:
            text = file.read_text(encoding="utf-8")
            content.update((code_of(text) if file.suffix == ".py" else text).encode())
    return content.hexdigest()


def code_of(source: str) -> str:
    """The parsed code without its prose, written the same by every version of Python."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            texts = [n for n in body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
            node.body = [n for n in body if n not in texts] or [ast.Pass()]  # type: ignore[attr-defined]
    return written(tree)


def written(part: object) -> str:
    """A node by its kind and its fields that are not empty: newer versions add fields, which are empty in this code."""
    if isinstance(part, list):
        return f"[{', '.join(map(written, part))}]"
    if not isinstance(part, ast.AST):
        return ascii(part)  # which characters `repr` escapes depends on the version
    fields = [(name, value) for name, value in ast.iter_fields(part) if value is not None and value != []]
    return f"{type(part).__name__}({', '.join(f'{name}={written(value)}' for name, value in fields)})"


def test_prose_is_no_code_and_a_number_is() -> None:
    source = 'def f():\n    """One."""\n    return 1  # one\n'

    assert code_of(source) == code_of('def f():\n    """Two."""\n    return 1\n')
    for other in ("return 2", "return 1.0", "return True", "return '1'", "return None", "return -1", "yield 1"):
        assert code_of(source) != code_of(source.replace("return 1", other))


def test_an_empty_field_is_no_code_and_an_empty_list_is() -> None:
    assert code_of("x = []") != code_of("x = None") != code_of("x = ()")
    assert "type_params" not in code_of("def f(): pass")
    assert code_of("def f(): return None") != code_of("def f(): return")


def test_decisions_depend_on_the_checkers_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    code_version.cache_clear()
    before = code_version()
    other = EntryPoint("riddle", "riddles:check", ENTRY_POINTS)
    monkeypatch.setattr(verdicts, "entry_points", lambda group: [other])
    try:
        code_version.cache_clear()
        assert code_version() != before
    finally:
        code_version.cache_clear()


def test_decisions_depend_on_the_reader_version(monkeypatch: pytest.MonkeyPatch) -> None:
    code_version.cache_clear()
    before = code_version()
    monkeypatch.setattr(verdicts, "READER_VERSION", READER_VERSION + 1)
    try:
        code_version.cache_clear()
        assert code_version() != before
    finally:
        code_version.cache_clear()
