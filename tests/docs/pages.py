"""The blocks of the pages in docs/, and a folder in which their commands run offline."""

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tools.docs.site import listed_pages

from skillmix.commands import main

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
INDEX: Final = (DOCS / "index.md").read_text(encoding="utf-8")
PAGES: Final = tuple(sorted(path.name for path in DOCS.glob("*.md")))
IN_INDEX: Final = tuple(page for pages in listed_pages(INDEX).values() for page in pages)

_FENCE: Final = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"Write\s+`(?P<file>[^`]+)`:\n\n\Z")
_PROMPT: Final = re.compile(r"^(?:[a-z]+)?\$ ")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    body: str
    file: str | None
    """The file that the reader is asked to write with it."""


@dataclass(frozen=True)
class ShownCommand:
    """A command of a console block, and the lines below it."""

    page: str
    line: str
    output: tuple[str, ...]


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    return blocks_of(page, text_of(page))


def blocks_of(page: str, text: str) -> list[Block]:
    found = []
    for match in _FENCE.finditer(text):
        file = _FILE.search(text[: match.start()])
        lines = (line.removeprefix(match["indent"]) for line in match["body"].splitlines(keepends=True))
        found.append(Block(page, match["language"], "".join(lines), file["file"] if file else None))
    return found


def commands(block: Block) -> Iterator[ShownCommand]:
    """The commands of a console block; a line that ends with a backslash or opens a parenthesis goes on."""
    lines: list[list[str]] = []
    for line in block.body.splitlines():
        if prompt := _PROMPT.match(line):
            lines.append([line[prompt.end() :]])
        elif lines and lines[-1][0].count("(") > lines[-1][0].count(")"):
            lines[-1][0] += f" {line.strip()}"
        else:
            assert lines, f"{block.page}: a console block begins without a prompt: {line}"
            lines[-1].append(line)
    for command, *output in lines:
        yield ShownCommand(block.page, re.sub(r"\s{2,}#.*", "", command).strip(), tuple(output))


def agrees(shown: tuple[str, ...], printed: str) -> bool:
    """Whether a command printed the lines of the page; a line "…" stands for any others."""
    pattern = "".join(r"(?:.*\n)*?" if line == "…" else rf"{re.escape(line.rstrip())} *\n" for line in shown)
    return re.fullmatch(pattern, printed) is not None


def replaced(line: str, stand_ins: Mapping[str, str]) -> str:
    for name, stand_in in stand_ins.items():
        line = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", lambda _: stand_in, line)  # noqa: B023 - used at once
    return line


_SHELL: Final = ("ls", "cat", "head", "mkdir", "cp")
"""Programs that a page may use besides skillmix."""


def run_line(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a line of a console block."""
    before, _, command = line.rpartition(" | ")
    words = shlex.split(command)
    if words[0] in _SHELL:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr
    assert words[0] == "skillmix", (
        f"{line}: tests/docs/test_blocks.py has no way to run {words[0]}, and no reason not to"
    )
    if before:
        given = subprocess.run(before, shell=True, capture_output=True, check=True).stdout
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    capsys.readouterr()
    try:
        status = main(words[1:])
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    return status, out, err
