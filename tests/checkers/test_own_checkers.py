"""A catalog's own `checkers.py` is run where the command line trusts it, and nowhere else."""

import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillmix.api import open_run
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import combination_of
from skillmix.catalog.files import load_catalog
from skillmix.catalog.own_code import trusting_code
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.runs import verdicts
from skillmix.runs.run import open_run as stored_run
from skillmix.runs.verdicts import RulesGrader, judge_of, on_all_cores
from tests.checkers.own_catalog import CHECKERS, earned_there, was_run, write_catalog

TEXT = "The red and blue ship left the harbour at dawn."
EXPERIMENT = """
name: own
catalog: ships
students: {writer: {model: "scripted:student?skill=0.9"}}
graders: {code: {model: "rules:"}}
steps:
  - {name: eval, stage: evaluate, students: [writer], graders: [code], k: [1], settings: [all],
     combinations: 4, generations: 1}
"""


@pytest.fixture
def ships(in_folder: Path) -> Path:
    return write_catalog(in_folder / "ships")


def grade(monkeypatch: pytest.MonkeyPatch, *options: str, text: str = TEXT) -> int:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{text}\n".encode())))
    return main(["grade-text", "ships", "--skills", "color pair", "--topic", "Ships", *options])


def trusted(folder: Path) -> Catalog:
    with trusting_code():
        return load_catalog(str(folder))


def test_without_trust_the_code_is_refused_and_not_run(
    ships: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grade(monkeypatch) == 2

    error = capsys.readouterr().err
    assert str(ships / "checkers.py") in error
    assert "--trust-code" in error
    assert not was_run(ships)


def test_with_trust_the_code_decides_and_gives_its_reason(
    ships: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grade(monkeypatch, "--trust-code") == 0
    assert "color pair: 1  “red and blue”" in capsys.readouterr().out
    assert was_run(ships)

    assert grade(monkeypatch, "--trust-code", text="The ship left the harbour at dawn.") == 0
    assert 'the check looks for two colors joined by "and"' in " ".join(capsys.readouterr().out.split())


def test_trust_ends_with_the_command(ships: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert grade(monkeypatch, "--trust-code") == 0
    was_run(ships)

    assert grade(monkeypatch) == 2
    with pytest.raises(UserError, match="has code that you have not trusted"):
        judge_of(load_catalog(str(ships)))


def test_commands_that_need_no_verdict_never_run_the_code(ships: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "ships", "--json"]) == 0
    assert [skill["checkable"] for skill in json.loads(capsys.readouterr().out)["skills"]] == [False, False]
    assert main(["combinations", "ships", "--k", "1", "--n", "2"]) == 0
    assert main(["prompts", "ships", "--skills", "color pair", "--topic", "Ships"]) == 0
    assert not was_run(ships)

    capsys.readouterr()
    assert main(["catalog", "ships", "--trust-code", "--json"]) == 0
    assert [skill["checkable"] for skill in json.loads(capsys.readouterr().out)["skills"]] == [True, True]


@pytest.fixture
def finished(ships: Path) -> Iterator[Path]:
    (ships.parent / "own.yaml").write_text(EXPERIMENT, encoding="utf-8")
    assert main(["run", "own.yaml", "--trust-code", "--json"]) == 0
    was_run(ships)
    yield ships


def test_the_commands_that_a_run_suggests_work(ships: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ships.parent / "own.yaml").write_text(EXPERIMENT, encoding="utf-8")
    assert main(["run", "own.yaml", "--trust-code"]) == 0

    lines = capsys.readouterr().err.splitlines()
    commands = [line.split("  #")[0] for line in lines[lines.index("try next:") + 1 :]]

    assert len(commands) == 3
    for command in commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)


def test_a_run_needs_trust_before_its_first_call(ships: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ships.parent / "own.yaml").write_text(EXPERIMENT, encoding="utf-8")

    assert main(["run", "own.yaml"]) == 2

    assert "--trust-code" in capsys.readouterr().err
    assert not was_run(ships)
    assert not Path("runs/own/journal").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["scores", "own"],
        ["texts", "own"],
        ["export", "own", "--what", "texts"],
        ["report", "own", "--no-figures"],
        ["dataset", "own", "--k", "1", "--validation", "0"],
    ],
    ids=lambda command: command[0],
)
def test_a_command_that_reads_verdicts_needs_trust(
    finished: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    assert "--trust-code" in capsys.readouterr().err
    assert not was_run(finished)

    main([*command, "--trust-code"])
    assert was_run(finished)
    assert "--trust-code" not in capsys.readouterr().err


def test_the_calls_of_a_run_are_exported_without_trust(finished: Path) -> None:
    assert main(["export", "own", "--what", "calls"]) == 0

    assert not was_run(finished)


def earned() -> list[bool]:
    """The skill points of all texts of the run."""
    with trusting_code():
        return [bool(row.points[row.skills[0]]) for row in open_run("own").texts()]


def test_a_changed_checker_grades_the_same_texts_anew(finished: Path) -> None:
    every = "CHECKERS = {name: lambda passage: Span(0, 1) for name in CHECKERS}\n"
    assert earned() == [False] * 4  # a scripted student knows nothing of these skills

    write_catalog(finished, code=CHECKERS + every)

    assert earned() == [True] * 4


def test_a_run_notes_the_hash_of_the_code(finished: Path) -> None:
    code = load_catalog(str(finished)).code
    assert code is not None
    assert stored_run("own").state.versions[-1].notes["checkers_hash"] == code.hash


def test_a_worker_process_gets_trusted_code_with_its_catalogue(ships: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "WORTH_IT", 0)
    catalog = trusted(ships)

    earned = list(on_all_cores(earned_there, [TEXT], catalog, RulesGrader(catalog), workers=2))

    assert earned == [[True]]


def test_every_fault_of_the_tables_is_reported_at_once(tmp_path: Path) -> None:
    code = 'CHECKERS = {"colour pair": print, "number word": 3}\nLOOKS_FOR = {"number word": 4}\n'

    with pytest.raises(UserError) as error:
        judge_of(trusted(write_catalog(tmp_path, code=code))).judge("x", skills=["number word"], topic="Ships")

    assert "'colour pair'" in error.value.message and 'Did you mean "color pair"?' in error.value.message
    assert "CHECKERS: the value of 'number word' is not a function" in error.value.message
    assert "LOOKS_FOR: the value of 'number word' is not a text" in error.value.message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("x = 1\nraise ValueError('no list')\n", "ValueError: no list (line 2)"),
        ("import no_such_package_here\n", "ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", "SystemExit"),
        ("x = 1\n", "CHECKERS is not a dict"),
        ("CHECKERS = {}\n", "CHECKERS is not a dict"),
    ],
)
def test_code_that_cannot_be_loaded_is_an_error_with_its_line(tmp_path: Path, code: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        judge_of(trusted(write_catalog(tmp_path, code=code))).judge("x", skills=["number word"], topic="Ships")

    assert words in error.value.message


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("lambda passage: 1 / 0", "ZeroDivisionError"),
        ("lambda passage: True", "returned bool"),
        ("lambda passage: (5, 2)", "returned tuple"),
        ("lambda passage: (0, 10_000)", "returned tuple"),
        ("lambda passage: 'red'", "returned str"),
    ],
)
def test_a_checker_that_fails_never_looks_like_a_text_without_the_skill(
    tmp_path: Path, function: str, words: str
) -> None:
    catalog = trusted(write_catalog(tmp_path, code=f'CHECKERS = {{"number word": {function}}}\n'))

    with pytest.raises(UserError, match="The checker of 'number word'") as error:
        judge_of(catalog).judge(TEXT, skills=["number word"], topic="Ships")

    assert words in error.value.message


def test_a_catalogue_cannot_replace_a_shipped_checker(tmp_path: Path) -> None:
    folder = write_catalog(tmp_path, code='CHECKERS = {"simile": print}\n')
    skills = folder / "skills.yaml"
    skills.write_text(skills.read_text(encoding="utf-8").replace("number word", "simile"), encoding="utf-8")

    with pytest.raises(UserError, match="has a checker for 'simile', which has one already"):
        judge_of(trusted(folder)).judge(TEXT, skills=["simile"], topic="Ships")


def test_the_python_interface_checks_with_trusted_code(ships: Path) -> None:
    import skillmix

    catalog = trusted(ships)

    verdict = skillmix.check(TEXT, combination_of(["color pair"], "Ships"), catalog)

    assert verdict.quote(verdict.evidence["color pair"]) == "red and blue"


def test_the_example_of_the_guide_is_what_the_command_prints(
    in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(__file__).parents[2] / "docs/catalogs.md").read_text(encoding="utf-8")
    code, *_ = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (text, command, printed), *_ = re.findall(r'\$ echo "(.+?)" \| skillmix (.+?)\n(.+?)```', guide, re.DOTALL)
    write_catalog(in_folder / "ships", code=code)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{text}\n".encode())))

    assert main(shlex.split(command)) == 0

    assert capsys.readouterr().out == printed
