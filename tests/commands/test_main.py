"""The command line as a whole: exit status, and one clear line and a hint for every mistake."""

import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

from skillmix.commands import main
from tests.commands.command_line import EXAMPLE, give_input, run

BAD = {
    "unknown skill": ["parse-reply", "--skills", "nonsense", "--topic", "Sewing"],
    "unknown topic": ["parse-reply", "--skills", "metaphor", "--topic", "Nonsense"],
    "no skill": ["parse-reply", "--skills", " ; ", "--topic", "Sewing"],
    "skill twice": ["parse-reply", "--skills", "metaphor; metaphor", "--topic", "Sewing"],
    "binary input": ["parse-reply", "--skills", "metaphor", "--topic", "Sewing"],
    "unknown catalog": ["catalog", "nowhere"],
    "two catalogs": ["catalog", "paper", "--catalog", "other"],
    "unknown prompts": ["prompts", "--skills", "metaphor", "--topic", "Sewing", "--prompts", "nowhere"],
    "k of zero": ["combinations", "--k", "0"],
    "k too large": ["combinations", "--k", "105"],
    "n too large": ["combinations", "--k", "1", "--n", "10401"],
    "n negative": ["combinations", "--k", "1", "--n", "-1"],
    "unknown partition": ["combinations", "--k", "1", "--partition", "nope"],
    "unknown exclude": ["combinations", "--k", "1", "--exclude", "nope"],
    "wrong k": ["combinations", "--k", "two"],
    "wrong setting": ["combinations", "--k", "2", "--setting", "test"],
    "grader without a provider": ["grade-text", "--skills", "metaphor", "--topic", "Sewing", "--grader", "gpt-4"],
    "grader that is not scripted": [
        "grade-text",
        "--skills",
        "metaphor",
        "--topic",
        "Sewing",
        "--grader",
        "scripted:nobody",
    ],
    "comparison in an unknown run": ["compare", "nowhere", "a", "b"],
    "comparison of one student": ["compare", "demo", "small"],
    "novelty without skills": ["novelty", "--k", "0", "--tokens", "1e12"],
    "novelty of no corpus": ["novelty", "--k", "2", "--tokens", "0"],
    "novelty of nan": ["novelty", "--k", "2", "--tokens", "nan"],
    "novelty of inf": ["novelty", "--k", "2", "--tokens", "inf"],
    "share above one": ["novelty", "--k", "2", "--tokens", "1e9", "--skill-frequency", "2"],
    "novelty of unknown frequencies": ["novelty", "--k", "2", "--tokens", "1e9", "--frequencies", "nowhere.json"],
    "novelty of empty frequencies": ["novelty", "--k", "2", "--tokens", "1e9", "--frequencies", "empty.jsonl"],
    "novelty of a unit alone": ["novelty", "--k", "2", "--tokens", "1e9", "--unit", "passage"],
    "exclude list that is not there": ["combinations", "--k", "1", "--exclude", "file:nowhere.yaml"],
    "exclude list without a path": ["combinations", "--k", "1", "--exclude", "file:"],
    "frequency of no corpus": ["frequency", "--corpus", "nowhere", "--grader", "rules:", "--catalog", "verifiable"],
    "frequency in an empty corpus": ["frequency", "--corpus", "empty.jsonl", "--grader", "scripted:grader"],
    "frequency by code without checkers": ["frequency", "--corpus", "empty.jsonl", "--grader", "rules:"],
    "frequency of no passage": ["frequency", "--corpus", ".", "--grader", "rules:", "--n", "0"],
    "frequency above one": ["frequency", "--corpus", ".", "--grader", "rules:", "--threshold", "2"],
    "missing file": ["import-texts", "nowhere.jsonl", "--run", "r"],
    "empty file": ["import-texts", "empty.jsonl", "--run", "r"],
    "missing log": ["import-inspect", "nowhere.eval", "--run", "r"],
    "empty log": ["import-inspect", "empty.jsonl", "--run", "r"],
    "folder as a log": ["import-inspect", ".", "--run", "r"],
    "share of no run": ["share", "nowhere", "--output", "out"],
    "missing folder": ["import-reference", "nowhere", "--run", "r"],
    "folder without records": ["import-reference", ".", "--run", "r"],
    "missing run": ["scores", "nowhere"],
    "cards of a missing run": ["graders", "demo", "nowhere"],
    "unknown rules": ["scores", "demo", "--rules", "kind"],
    "torn journal": ["scores", "torn"],
    "no command": [],
    "unknown command": ["frobnicate"],
    "run below a file": ["import-texts", str(EXAMPLE), "--run", "empty.jsonl/x"],
    "run in the parent": ["import-texts", str(EXAMPLE), "--run", ".."],
    "output of another kind": ["export", "demo", "--what", "texts", "--output", "runs/demo/run.sqlite"],
    "no output": ["export", "demo", "--what", "texts", "--output", ""],
    "export by unknown rules": ["export", "demo", "--what", "calls", "--rules", "kind"],
    "novelty beyond numbers": ["novelty", "--k", "1" + "0" * 400, "--tokens", "1e12"],
    "novelty beyond floats": ["novelty", "--k", "1", "--tokens", "1e308", "--sentences-per-token", "1e10"],
    "seed beyond numbers": ["combinations", "--k", "1", "--partition", "random-skills:" + "1" * 5000],
    "a negative number of texts": ["texts", "demo", "--n", "-1"],
    "no texts": ["texts", "demo", "--n", "0"],
    "texts of fewer skills than none": ["texts", "demo", "--k", "-1"],
    "a negative number of masks": ["train", "x.yaml", "--show-mask", "--n", "-1"],
    "a data set of k = 0": ["dataset", "demo", "--k", "0"],
    "a data set of k = -1": ["dataset", "demo", "--k", "1", "-1"],
    "a data set of no texts": ["dataset", "demo", "--size", "0"],
    "a report on no corpus": ["report", "demo", "--tokens", "0"],
    "a report on nan": ["report", "demo", "--tokens", "nan"],
    "a report on a negative corpus": ["report", "demo", "--tokens", "-1"],
    "a data set in the current folder": ["dataset", "demo", "--output", "."],
    "a report in the current folder": ["report", "demo", "--output", "."],
    "nobody who reads": ["annotate", "demo"],
    "a person with a bad name": ["annotate", "demo", "--rater", "Ann Lee"],
    "a person twice": ["annotate", "demo", "--rater", "ann", "--rater", "ann"],
    "people for an unknown run": ["annotate", "nowhere", "--rater", "ann"],
    "a share above one for all": ["annotate", "demo", "--rater", "ann", "--overlap", "1.5"],
    "two numbers of texts": ["annotate", "demo", "--rater", "ann", "--n", "5", "--width", "0.1"],
    "an interval as wide as all": ["annotate", "demo", "--rater", "ann", "--width", "1"],
    "an agreement above one": ["annotate", "demo", "--rater", "ann", "--width", "0.1", "--agreement", "7"],
    "a port beyond ports": ["annotate", "demo", "--rater", "ann", "--port", "70000"],
    "a spreadsheet for two": ["annotate", "demo", "--rater", "ann", "--rater", "bo", "--export", "x.csv"],
    "a spreadsheet in and out": ["annotate", "demo", "--rater", "ann", "--export", "x.csv", "--import", "x.csv"],
    "bad run name": ["import-texts", str(EXAMPLE), "--run", "Bad Name"],
}


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good run, a torn one and an empty file; tests get copies."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "empty.jsonl").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("demo", "torn"):
            main(["import-texts", str(EXAMPLE), "--run", name])
    journal = folder / "runs/torn/run.sqlite"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])
    return folder


@pytest.fixture
def folder_of_mistakes(in_folder: Path, mistakes: Path) -> Path:
    copytree(mistakes, in_folder, dirs_exist_ok=True)
    return in_folder


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file but those that SQLite keeps beside a database while somebody reads it."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal")))
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize("words", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], folder_of_mistakes: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    give_input(monkeypatch, b"\xff\xfe\x00\x01")
    capsys.readouterr()
    before = contents(folder_of_mistakes)

    status, out, err = run(capsys, *words)

    assert status == 2
    assert out == ""
    assert "Traceback" not in err
    assert ("error: " in err and "\nhint: " in err) or err.startswith("usage:")
    assert contents(folder_of_mistakes) == before


def test_an_error_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text('name: "\\e[2J\\u202e"\n"\\e]0;title\\a": 1\n', encoding="utf-8")

    status, _, err = run(capsys, "run", "bad.yaml")

    assert status == 2
    assert "\\x1b]0;title\\x07" in err
    assert not set("\x1b\x07\u202e") & set(err)


def test_a_closed_pipe_ends_quietly(in_folder: Path) -> None:
    command = f"{sys.executable} -m skillmix catalog paper --json | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert result.stdout.strip() == "{"
    assert result.stderr == ""


def test_output_survives_a_plain_c_locale(in_folder: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONUTF8": "0"}
    result = subprocess.run(
        [sys.executable, "-m", "skillmix", "catalog", "--json"], capture_output=True, env=environment, check=False
    )

    assert result.returncode == 0
    assert "cliché" in result.stdout.decode("utf-8")


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["run", "frist.yml"], "first.yaml"), (["run", "first.yaml", "--set", "steps.evl.k=1"], "eval")],
)
def test_a_misspelled_file_or_step_gets_the_nearest_name(
    capsys: pytest.CaptureFixture[str], in_folder: Path, words: list[str], meant: str
) -> None:
    Path("first.yaml").write_text("name: first\nsteps: [{name: eval, stage: report}]\n", encoding="utf-8")
    Path("first.txt").touch()

    status, _, err = run(capsys, *words)

    assert status == 2
    assert f'hint: Did you mean "{meant}"?' in err
