"""Annotate steps: what they refuse, what they leave alone, and what they wait for."""

import csv
import shutil
from pathlib import Path

import pytest

from skillmix.commands import main
from skillmix.runs.run import open_run
from tests.steps.test_people_file import BO_IS_A_PERSON, FILE, SMALL, votes

PEOPLE = ["--set", "steps.read.raters=[bo, cy]"]


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run whose people have not answered yet."""
    folder = tmp_path_factory.mktemp("waiting")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", FILE, *SMALL, *PEOPLE]) == 1
    return folder


@pytest.fixture
def sheet(waiting: Path, in_folder: Path) -> Path:
    """The spreadsheet of a person in a copy of that run."""
    shutil.copytree(waiting / "runs", in_folder / "runs")
    return Path("runs/people/read/bo.csv")


def fill(file: Path, *, rows: int | None = None) -> None:
    """Vote 1 in the first rows of a spreadsheet, or in all."""
    with file.open(encoding="utf-8-sig", newline="") as opened:
        header, *lines = csv.reader(opened)
    for line in lines[:rows]:
        line[header.index("vote")] = "1"
    with file.open("w", encoding="utf-8-sig", newline="") as opened:
        csv.writer(opened).writerows([header, *lines])


def test_votes_in_a_spreadsheet_are_kept_and_imported_by_the_command_that_is_shown(
    sheet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(sheet)
    filled = sheet.read_bytes()
    capsys.readouterr()

    assert main(["run", FILE, *SMALL, *PEOPLE]) == 1
    said = capsys.readouterr().err
    assert sheet.read_bytes() == filled and votes("bo") == {"bo": {}}
    line = next(line for line in said.splitlines() if line.startswith("missing: read: bo"))
    command = line.partition("not stored: skillmix ")[2].split()
    assert command[-1] == str(sheet)

    assert main(command) == 0
    assert len(votes("bo")["bo"]) == 10
    assert main(["run", FILE, *SMALL, *PEOPLE]) == 1
    said = capsys.readouterr().err
    assert "missing: read: cy has 10 of 10 texts left" in said and "missing: read: bo" not in said


def test_a_half_filled_spreadsheet_is_left_alone(sheet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(sheet, rows=1)
    filled = sheet.read_bytes()

    assert main(["run", FILE, *SMALL, *PEOPLE]) == 1

    assert sheet.read_bytes() == filled
    assert f"{sheet} has votes that are not stored" in capsys.readouterr().err


def test_an_empty_spreadsheet_follows_a_changed_step(sheet: Path) -> None:
    before = sheet.read_text(encoding="utf-8")

    assert main(["run", FILE, *SMALL, *PEOPLE, "--set", "steps.read.n=3"]) == 1

    after = sheet.read_text(encoding="utf-8")
    assert len(after.splitlines()) < len(before.splitlines())


def test_a_name_cannot_mean_a_script_and_a_person(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", FILE, *SMALL, *BO_IS_A_PERSON]) == 1
    before = votes("ann", "bo")
    capsys.readouterr()

    for raters in ("[ann]", "{ann: 'scripted:rater?unsure=0.5'}"):
        assert main(["run", FILE, *SMALL, "--set", f"steps.read.raters={raters}"]) == 2
        said = capsys.readouterr().err
        assert "The answers of ann in this run come from the simulated rater scripted:rater, not from" in said
    assert votes("ann", "bo") == before
    assert open_run("people").experiment.steps[1].raters["bo"] == "human"  # type: ignore[union-attr]


def test_people_read_when_all_texts_are_written(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", FILE, *SMALL, "--set", "budget.max_calls=40"]) == 1
    said = capsys.readouterr().err
    assert "missing: read: people can start when all texts are written" in said
    assert not list(Path("runs/people/people").glob("*.sqlite"))

    assert main(["run", FILE, *SMALL]) == 0
    assert {rater: len(own) for rater, own in votes("ann", "bo").items()} == {"ann": 10, "bo": 10}


def test_the_command_takes_people_and_texts_from_the_step(
    sheet: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = ["annotate", "people", "--step", "read"]

    assert main([*shown, "--rater", "bo", "--export", "other.csv"]) == 0
    assert Path("other.csv").read_bytes() == sheet.read_bytes()

    capsys.readouterr()
    for wrong, fault in {
        ("--n", "4"): "--n cannot be used with --step",
        ("--k", "2", "--seed", "1"): "--k and --seed cannot be used with --step",
        ("--rater", "boo"): "boo is not a rater of the step",
        ("--export", "all.csv"): "A spreadsheet is for one person",
    }.items():
        assert main([*shown, *wrong]) == 2
        assert fault in capsys.readouterr().err
    assert main(["annotate", "people", "--step", "reed"]) == 2
    assert 'Did you mean "read"?' in capsys.readouterr().err
    assert main(["annotate", "people"]) == 2
    assert "Add --rater NAME for each person, or --step NAME" in capsys.readouterr().err


def test_outcomes_have_no_points_that_people_could_check(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    safety = FILE.replace("people.yaml", "safety.yaml")

    assert main(["run", safety, "--set", "steps.2={name: read, stage: annotate, raters: [ann]}"]) == 2

    assert "steps.read: annotate steps need points, but graders give outcomes" in capsys.readouterr().err
    assert not Path("runs").exists()
