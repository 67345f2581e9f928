"""The completion scripts hold every command and option, and shells that are here accept and use them."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from skillmix.commands import main, parser_of_all

SCRIPTS = ("bash", "zsh", "fish")


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def needs(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed here")
    return found


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_command_and_option_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)

    groups: Any = parser_of_all()._subparsers
    (commands,) = groups._group_actions
    assert len(commands.choices) > 20
    for name, parser in commands.choices.items():
        assert name in text
        for option in parser._option_string_actions:
            if option.startswith("--"):
                assert (f"-l {option[2:]}" if shell == "fish" else option) in text, (name, option)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_shell_accepts_the_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = needs(shell)
    file = tmp_path / "script"
    file.write_text(script(shell, capsys), encoding="utf-8")

    checked = subprocess.run([program, "-n", str(file)], capture_output=True, text=True, check=False)

    assert (checked.returncode, checked.stderr) == (0, "")


CASES = [
    ("run sm", {"smoke"}, {"status"}),
    ("sco", {"scores"}, {"report"}),
    ("scores --met", {"--metric"}, {"--rules"}),
    ("scores --metric f", {"full_marks"}, {"--rules"}),
    ("scores de", {"demo"}, {"smoke"}),
    ("init ", {"evaluate", "data", "tune"}, {"smoke"}),
    ("completion z", {"zsh"}, {"bash"}),
]


@pytest.fixture
def runs(in_folder: Path) -> Path:
    (in_folder / "runs/demo").mkdir(parents=True)
    return in_folder


@pytest.mark.parametrize(("typed", "offered", "not_offered"), CASES)
def test_bash_completes(
    runs: Path, typed: str, offered: set[str], not_offered: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    program = needs("bash")
    words = ["skillmix", *typed.split(" ")]
    array = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _shtab_skillmix; printf '%s\\n' \"${{COMPREPLY[@]}}\""

    shown = subprocess.run(
        [program, "--norc", "-c", f"{script('bash', capsys)}\n{ask}"], capture_output=True, text=True, check=True
    )

    found = set(shown.stdout.split())
    assert offered <= found, shown.stderr
    assert not found & not_offered


@pytest.mark.parametrize(("typed", "offered", "not_offered"), CASES)
def test_fish_completes(
    runs: Path, typed: str, offered: set[str], not_offered: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    program = needs("fish")

    shown = subprocess.run(
        [program, "--no-config", "-c", f"{script('fish', capsys)}\ncomplete -C 'skillmix {typed}'"],
        capture_output=True,
        text=True,
        check=True,
    )

    found = {line.partition("\t")[0] for line in shown.stdout.splitlines()}
    assert offered <= found, shown.stderr
    assert not found & not_offered
