"""A copied prompt set is the same set, and can be changed and named in an experiment."""

import json
from pathlib import Path

import pytest

from skillmix.commands import main
from skillmix.experiment.experiment import load_experiment
from skillmix.prompts.prompt_set import load_prompts, shipped_prompt_sets


@pytest.mark.parametrize("name", shipped_prompt_sets())
def test_a_copy_has_the_same_prompts(in_folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts", "--copy", "mine", "--prompts", name, "--json"]) == 0

    listed = json.loads(capsys.readouterr().out)
    assert load_prompts("./mine").content_hash() == load_prompts(name).content_hash()
    assert sorted(file.name for file in Path("mine").iterdir()) == listed["files"]


def test_an_experiment_uses_the_changed_copy(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["prompts", "--copy", "mine"])
    hint = capsys.readouterr().err
    first = Path("mine/generate-1.txt")
    first.write_text("Be brief. " + first.read_text(encoding="utf-8"), encoding="utf-8")
    main(["init", "evaluate", "--model", "scripted:student"])

    experiment = load_experiment(Path("evaluate.yaml"), changes=["prompts=./mine"])

    assert "prompts: ./mine" in hint
    assert experiment.prompts == "./mine"
    capsys.readouterr()
    main(["prompts", "verifiable", "--skills", "simile", "--topic", "Picnics", "--prompts", "./mine"])
    assert "Be brief." in capsys.readouterr().out


def test_nothing_is_overwritten(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    Path("mine/own.txt").write_text("mine", encoding="utf-8")
    Path("file").write_text("mine", encoding="utf-8")

    assert main(["prompts", "--copy", "mine"]) == 2
    assert main(["prompts", "--copy", "file"]) == 2

    assert [path.name for path in Path("mine").iterdir()] == ["own.txt"]
    assert Path("file").read_text(encoding="utf-8") == "mine"


def test_an_unknown_set_leaves_no_folder(in_folder: Path) -> None:
    assert main(["prompts", "--copy", "mine", "--prompts", "standart"]) == 2

    assert not Path("mine").exists()


def test_a_combination_is_needed_unless_files_are_copied(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts", "--skills", "metaphor"]) == 2
    assert "--topic" in capsys.readouterr().err
    assert main(["prompts", "--copy", "mine", "--topic", "Sewing"]) == 2
    assert not Path("mine").exists()
