"""How the commands name the program."""

import sys
from pathlib import Path

import pytest

from skillmix.commands.shared import program


def test_a_command_that_the_shell_does_not_find_is_named_by_its_path(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = in_folder / "bin"
    folder.mkdir()
    (folder / "skillmix").touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(folder / "skillmix"), "run"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == "bin/skillmix"
    monkeypatch.setenv("PATH", str(folder))
    assert program() == "skillmix"
