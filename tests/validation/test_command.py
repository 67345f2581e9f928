"""The command `calibrate`."""

import json
from pathlib import Path

import pytest

from tests.commands.command_line import run
from tests.validation.made_sets import entries, entry, write_set


def test_it_prints_the_card_and_says_where_the_page_is(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_set(in_folder / "mine.yaml", entries(20)))

    status, out, err = run(capsys, "calibrate", "scripted:grader", "--set", file, "--rounds", "1", "--run", "cal")

    assert status == 0
    assert "| skill      |     20 | 1.00" in out
    assert "20 calls made" in err
    assert "card: open runs/cal/cards/scripted-grader/card.html" in err


def test_json_is_the_card(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_set(in_folder / "mine.yaml", entries(20)))

    status, out, _ = run(capsys, "calibrate", "scripted:grader", "--set", file, "--n", "7", "--json")

    card = json.loads(out)
    assert status == 0
    assert (card["texts"], card["texts_in_set"], card["rounds"], card["calls"]["calls"]) == (7, 20, 3, 21)
    assert card == json.loads(Path("runs/calibrate-mine-scripted-grader/cards/scripted-grader/card.json").read_text())


def test_missing_decisions_are_exit_status_1(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_set(in_folder / "mine.yaml", entries(4)))

    status, out, _ = run(capsys, "calibrate", "scripted:grader?unreadable=1", "--set", file)

    assert status == 1
    assert "decided no labeled point" in out
    assert "4 of skill" in out
    assert "| criterion" not in out
    page = Path("runs/calibrate-mine-scripted-grader-unreadable-1/cards/scripted-grader-unreadable-1/card.html")
    assert "No labeled point is decided." in page.read_text(encoding="utf-8")


def test_a_dry_run_makes_nothing(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_set(in_folder / "mine.yaml", entries(10)))

    status, out, err = run(
        capsys, "calibrate", "openai:gpt-4o", "--set", file, "--dry-run", "--json", "--max-usd", "0.001"
    )

    estimate = json.loads(out)[0]
    assert status == 0
    assert (estimate["role"], estimate["calls"], estimate["expected"]["calls"]) == ("grader", 90, 30)
    assert "budget.max_usd is 0.00, below the expected" in err
    assert not (in_folder / "runs").exists()


def test_the_estimate_of_a_paid_grader_counts_the_texts(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, long = (
        write_set(in_folder / f"{name}.yaml", [entry(0) | {"text": "word " * size}])
        for name, size in (("short", 10), ("long", 700))
    )

    tokens = [
        json.loads(run(capsys, "calibrate", "openai:gpt-4o", "--set", str(file), "--dry-run", "--json")[1])[0][
            "input_tokens"
        ]
        for file in (short, long)
    ]

    assert tokens[1] - tokens[0] > 9 * 1000


@pytest.mark.parametrize(
    "words",
    [
        ["scripted:grader"],
        ["scripted:grader", "--set", "nowhere.yaml"],
        ["scripted:grader", "--set", "bigbench:nothing"],
        ["scripted:grader", "--set", "paper", "--bigbench", "x.tar.gz"],
        ["scripted:grader", "--set", "paper", "--rounds", "2"],
        ["scripted:grader", "--set", "paper", "--rounds", "0"],
        ["scripted:grader", "--set", "paper", "--variant", "nobody"],
        ["scripted:grader", "--set", "paper", "--run", "Bad Name"],
        ["scripted:student", "--set", "paper", "--catalog", "nowhere"],
        ["scripted:grader?miss=2", "--set", "paper"],
        ["nobody:model", "--set", "paper"],
        ["rules:", "--set", "paper"],
        ["openai:gpt-x", "--set", "paper", "--max-usd", "1"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_and_a_hint_and_changes_nothing(
    in_folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    status, out, err = run(capsys, "calibrate", *words)

    assert (status, out) == (2, "")
    assert "error: " in err and "hint: " in err
    assert "Traceback" not in err
    assert list(in_folder.iterdir()) == []
