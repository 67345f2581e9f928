"""What the commands print fits 100 columns, leads with the result, and suggests names."""

from pathlib import Path

import pytest
import yaml

from skillmix.commands import main
from tests.commands.command_line import give_input, run

DOCUMENT = {
    "name": "two",
    "catalog": "paper",
    "students": {
        "small": {"model": "scripted:student?skill=0.5&marker=0.7"},
        "large": {"model": "scripted:student?skill=0.95"},
    },
    "graders": {name: {"model": "scripted:grader", "rounds": 1} for name in ("judge", "other")},
    "steps": [
        {
            "name": "eval",
            "stage": "evaluate",
            "students": ["small", "large"],
            "graders": ["judge", "other"],
            "settings": ["train", "all"],
            "k": [1, 2, 3, 4, 5],
            "combinations": 4,
            "generations": 1,
        }
    ],
}
COMMANDS = [
    ("scores", "two"),
    ("scores", "two", "--metric", "skill_fraction"),
    ("compare", "two", "small", "large", "--texts", "2"),
    ("texts", "two", "--worst", "--n", "3"),
    ("status", "two"),
    ("run", "two.yaml", "--dry-run"),
    ("catalog", "verifiable"),
    ("catalog", "paper"),
    ("combinations", "paper", "--k", "5", "--n", "2"),
    ("models",),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run of two students and two graders."""
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "two.yaml").write_text(yaml.safe_dump(DOCUMENT), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", "two.yaml"]) == 0
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_output_fits_100_columns(
    command: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)

    status, out, _ = run(capsys, *command)

    assert status == 0
    assert [line for line in out.splitlines() if len(line) > 102] == []


def test_scores_lead_with_full_marks_by_k_and_say_how_to_see_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)

    _, out, _ = run(capsys, "scores", "two")
    _, wide, _ = run(capsys, "scores", "two", "--wide")

    first, _, header, *_ = out.splitlines()
    assert first == "Full marks by k:"
    assert header.startswith("| setting | grader | student | k = 1 ")
    assert "skillmix scores two --wide" in out
    assert "one try" in wide and "one try" not in out


def test_texts_say_why_points_were_lost_and_who_graded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)

    _, out, _ = run(capsys, "texts", "two", "--n", "80", "--student", "small")

    assert ", graded by judge: " in out and ", graded by other: " in out
    assert "  - length: it has " in out


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("skores", "two"), "scores"),
        (("scores", "tow"), "two"),
        (("scores", "two", "--metric", "full_mark"), "full_marks"),
        (("scores", "two", "--wdie"), "--wide"),
        (("compare", "two", "smal", "large"), "small"),
        (("texts", "two", "--student", "lagre"), "large"),
        (("catalog", "papr"), "paper"),
        (("combinations", "paper", "--k", "1", "--setting", "heldout"), "held-out"),
        (("combinations", "paper", "--k", "1", "--exclude", "metafor"), "metaphor"),
        (("combinations", "paper", "--k", "1", "--partition", "categori"), "category"),
        (("prompts", "--skills", "methaphor", "--topic", "Sewing"), "metaphor"),
        (("prompts", "--skills", "metaphor", "--topic", "Sowing"), "Sewing"),
        (("prompts", "--skills", "metaphor", "--topic", "Sewing", "--prompts", "standart"), "standard"),
        (("grade-text", "--skills", "metaphor", "--topic", "Sewing", "--grader", "scriptd:grader"), "scripted"),
        (("evaluate", "two.yaml", "--step", "evla"), "eval"),
        (("run", "two.yaml", "--set", "steps.eval.graders=[juge]"), "judge"),
        (("run", "two.yaml", "--set", "steps.eval.students=[smal]"), "small"),
        (("run", "two.yaml", "--set", "steps.eval.combination=5"), "combinations"),
        (("run", "two.yaml", "--set", "steps.eval.settings=[heldout]"), "held-out"),
        (("run", "two.yaml", "--set", "studnets={}"), "students"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(
    command: tuple[str, ...],
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    give_input(monkeypatch, b"A stitch in time.")

    try:
        status = main(list(command))
    except SystemExit as stop:
        status = int(str(stop.code))

    err = " ".join(capsys.readouterr().err.split())
    assert status == 2
    assert f'Did you mean "{name}"' in err
