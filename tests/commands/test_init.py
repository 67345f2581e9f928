"""Starting files are valid, run, and never overwrite anything."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from skillmix.commands import main
from skillmix.commands.start import PURPOSES, starter
from skillmix.experiment.experiment import load_experiment

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_starting_file_is_valid_and_can_be_estimated(
    in_folder: Path, purpose: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", purpose]) == 0
    assert capsys.readouterr().out == f"{purpose}.yaml\n"

    assert main(["run", f"{purpose}.yaml", "--dry-run"]) == 0

    text = Path(f"{purpose}.yaml").read_text(encoding="utf-8")
    assert f"skillmix run {purpose}.yaml" in text
    assert "FILE" not in text
    assert text.count("#") >= 10  # it explains itself


@pytest.mark.parametrize("purpose", PURPOSES)
def test_lines_that_a_starting_file_offers_as_comments_are_valid_too(in_folder: Path, purpose: str) -> None:
    lines = starter(purpose).splitlines()
    offered = [i for i, line in enumerate(lines) if line.lstrip().startswith(("# - {", "# budget:", "# judge:"))]
    for index in offered:
        line = lines[index].replace("# ", "", 1)
        lines[index] = line.partition("    a model")[0].partition("           stops")[0]
    Path("file.yaml").write_text("\n".join(lines), encoding="utf-8")

    assert load_experiment(Path("file.yaml"))
    assert offered or purpose == "tune"


def test_the_evaluation_runs_to_its_report_with_another_model(in_folder: Path) -> None:
    assert main(["init", "evaluate", "--model", "scripted:student?skill=0.8", "--output", "mine.yaml"]) == 0

    small = ["--set", "steps.eval.combinations=2", "--set", "steps.eval.k=[1]"]
    assert main(["run", "mine.yaml", *small, "--json"]) == 0

    assert Path("runs/my-evaluation/report/index.html").is_file()


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_model_takes_the_place_of_the_first_students(purpose: str) -> None:
    document = yaml.safe_load(starter(purpose, model='openai:a"b@http://x:1/v1'))

    assert next(iter(document["students"].values()))["model"] == 'openai:a"b@http://x:1/v1'
    assert document["graders"] == {"rules": {"model": "rules:"}}


def test_an_existing_file_is_left_alone(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("evaluate.yaml").write_text("mine", encoding="utf-8")

    assert main(["init", "evaluate"]) == 2

    assert Path("evaluate.yaml").read_text(encoding="utf-8") == "mine"
    assert "--output" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["nonsense", "rules:", "opnai:x"])
def test_a_model_that_cannot_write_is_refused_before_a_file_is_made(in_folder: Path, model: str) -> None:
    assert main(["init", "evaluate", "--model", model]) == 2

    assert not Path("evaluate.yaml").exists()


def test_a_name_with_a_line_break_does_not_reach_the_file(in_folder: Path) -> None:
    assert main(["init", "data", "--output", "a\nname: other.yaml"]) == 0

    assert load_experiment(Path("a\nname: other.yaml")).name == "my-data"


def test_an_unknown_purpose_gets_the_nearest(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["init", "evalute"])

    assert stop.value.code == 2
    assert 'Did you mean "evaluate"?' in capsys.readouterr().err


def test_the_schema_accepts_the_files_that_ship_and_refuses_an_unknown_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    check = jsonschema.Draft202012Validator(schema)
    files = [file.read_text(encoding="utf-8") for file in sorted(EXPERIMENTS.glob("*.yaml"))]
    files = [text for text in files if "matrix:" not in text] + [starter(purpose) for purpose in PURPOSES]

    assert len(files) > 10
    for text in files:
        check.validate(yaml.safe_load(text))
    assert not check.is_valid({"name": "r", "steps": [], "sed": 1})
    assert not check.is_valid({"name": "r", "steps": [{"name": "e", "stage": "evaluate"}]})
    assert schema["properties"]["seed"]["description"] == "Seed of the draws and the calls."
