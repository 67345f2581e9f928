"""Call the command line inside a test."""

import io
import sys
from pathlib import Path

import pytest

from skillmix.commands import main

DATA = Path(__file__).parents[2] / "src/skillmix/data"
EXAMPLE = DATA / "examples/demo.jsonl"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command."""
    try:
        status = main(list(words))
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def give_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Put bytes on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
