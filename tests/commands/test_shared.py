"""The parsers of all commands: quick to make, with a help text for each command."""

import argparse
import logging
import re
import subprocess
import sys
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Queue

import pytest

import skillmix
from skillmix.commands import ORDER, main, parser_of_all
from skillmix.commands.run import IN_BATCHES
from skillmix.commands.shared import COMMANDS

HEAVY = "torch transformers gguf aiohttp jinja2 matplotlib numpy peft pyarrow pydantic rich yaml"
PAGE = Path(__file__).parents[2] / "docs/commands.md"
SET_BY_PROGRAMS = {"LOCAL_RANK", "RANK", "WORLD_SIZE", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA"}
"""Variables that torchrun sets, and those that skillmix sets for libraries."""
WITHOUT_JSON = {"completion", "export", "init", "import-inspect", "import-texts", "import-reference", "merge", "schema"}


def commands() -> dict[str, argparse.ArgumentParser]:
    [action] = [a for a in parser_of_all()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    program = (
        "import sys, time\n"
        "from skillmix.commands import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY.split()} if name in sys.modules])\n"
        "print(time.process_time())"  # of this process: other work on the machine does not count
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    *_, loaded, seconds = result.stdout.splitlines()
    assert loaded == "[]"
    assert float(seconds) < 0.3


def test_every_command_says_in_a_sentence_what_it_does() -> None:
    for name, parser in commands().items():
        about = parser.description or ""
        assert about[:1].isupper() and about.endswith("."), name


def test_every_argument_of_every_command_has_a_help_text() -> None:
    without = [
        f"{name} {action.dest}"
        for name, parser in commands().items()
        for action in parser._actions
        if not (action.help or "").strip()
    ]

    assert without == []
    assert set(ORDER) == set(COMMANDS), "each command has its place in the list of all"


def test_the_page_on_commands_names_every_environment_variable_and_exit_status() -> None:
    root = Path(skillmix.__file__).parent
    source = "\n".join(file.read_text(encoding="utf-8") for file in root.rglob("*.py"))
    read = set(re.findall(r"""environ(?:\.get)?[\[(]\s*"([A-Z_]+)\"""", source))
    read |= set(re.findall(r"""(?:key|address_variable)="([A-Z_]+)\"""", source))
    page = PAGE.read_text(encoding="utf-8").partition("## ")[0]
    named = set(re.findall(r"`([A-Z_]{4,})`", page))

    assert {name for name in named if name.startswith("SKILLMIX_")} <= read, "the page names a variable without effect"
    assert read - named - SET_BY_PROGRAMS == set()
    assert [status in page for status in ("| 0 |", "| 1 |", "| 2 |", f"| {IN_BATCHES} |", "| 128 + n |")] == [True] * 5


def test_messages_go_to_the_logger_skillmix(in_folder: Path) -> None:
    records = Queue[logging.LogRecord]()
    handler = QueueHandler(records)
    logging.getLogger("skillmix").addHandler(handler)
    try:
        main(["init", "evaluate"])
        main(["init", "data", "--quiet"])
    finally:
        logging.getLogger("skillmix").removeHandler(handler)

    assert records.qsize() == 1, "--quiet leaves out messages of level INFO"
    record = records.get()
    assert record.levelname == "INFO" and record.getMessage().startswith("next: read the file")


def test_every_command_has_json_but_those_that_only_write_files() -> None:
    assert {name for name, parser in commands().items() if "--json" not in parser.format_help()} == WITHOUT_JSON


@pytest.mark.parametrize(
    ("words", "error", "meant"),
    [
        (["combinations", "--kk", "2"], "unknown option --kk; missing --k", "--k"),
        (["combinations", "-k", "2"], "unknown option -k; ", "--k"),
        (["novelty", "--k", "2", "--tokn=3"], "unknown option --tokn; ", "--tokens"),
        (["scores", "first", "--metrc", "x"], "unknown option --metrc x.", "--metric"),
        (["--verison"], "skillmix: unknown option --verison.", "--version"),
    ],
)
def test_an_unknown_option_gets_the_nearest_one_even_if_another_is_missing(
    capsys: pytest.CaptureFixture[str], words: list[str], error: str, meant: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)

    assert stop.value.code == 2
    first, hint = capsys.readouterr().err.splitlines()
    assert error in first and hint.startswith(f'hint: Did you mean "{meant}"?')


@pytest.mark.parametrize(
    "words",
    [
        ["texts", "demo", "--n", "-1"],
        ["run", "--dry"],
        ["combinations"],
        ["calibrate", "texts.jsonl", "--temperature", "-.5"],
        ["grade-text", "--system", "-You grade texts."],
        ["grade-text", "--", "--bogus"],
    ],
)
def test_values_and_beginnings_of_options_are_no_unknown_options(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)

    assert "unknown option" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [["run", "smoke", "--api-key=abc"], ["run", "--api-key=abc"]])
def test_an_error_does_not_show_the_value_of_an_unknown_option(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)

    error = capsys.readouterr().err
    assert "unknown option --api-key" in error and "abc" not in error


def test_without_a_command_the_hint_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])

    error, hint = capsys.readouterr().err.splitlines()
    assert (stop.value.code, error) == (2, "error: skillmix needs a command.")
    for command in ("run smoke", "run quickstart", "init evaluate", "--help"):
        assert f"`skillmix {command}`" in hint


def test_a_wrong_choice_is_refused_by_the_name_of_its_argument(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ((["init", "evalute"], "purpose"), (["scores", "first", "--metric", "evalute"], "--metric"))
    for words, named in wrong:
        with pytest.raises(SystemExit):
            main(words)
        assert capsys.readouterr().err.startswith(f"error: 'evalute' is not a valid value of {named}.\nhint: ")
