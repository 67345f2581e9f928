"""All faults of an experiment come in one error, and a dry run refuses what a run refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.models.lineage_files import LINEAGE_FILE
from skillmix.runs.run import open_run
from skillmix.scores.status import run_status
from skillmix.steps.run import run_experiment

SKILLS = [f"- {{name: skill {n}, category: {'a' if n < 4 else 'b'}, definition: d, example: e}}" for n in range(6)]
EVALUATE: dict[str, Any] = {
    "name": "eval",
    "stage": "evaluate",
    "students": ["base"],
    "graders": ["judge"],
    "k": [1, 2, 3],
    "generations": 1,
}


def catalog(folder: Path) -> None:
    """Six skills and four topics, of which the train side has four and two."""
    folder.mkdir()
    (folder / "skills.yaml").write_text("\n".join(SKILLS) + "\n", encoding="utf-8")
    (folder / "topics.yaml").write_text("- T1\n- T2\n- T3\n- T4\n", encoding="utf-8")
    partition = {
        "default": "sides",
        "topics": {"train": ["T1", "T2"], "held-out": ["T3", "T4"]},
        "partitions": {"sides": {"train": {"categories": ["a"]}, "held-out": {"categories": ["b"]}}},
    }
    (folder / "partitions.yaml").write_text(yaml.safe_dump(partition), encoding="utf-8")


def written(folder: Path, *, students: Any = None, graders: Any = None, steps: Any = None, **top: Any) -> str:
    document = {
        "name": "many",
        "students": students or {"base": {"model": "scripted:student"}},
        "graders": graders or {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": steps or [EVALUATE],
        **top,
    }
    path = folder / "many.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["run", *words]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_all_impossible_numbers_are_named_at_once(
    in_folder: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    catalog(in_folder / "own")

    said = refused(capsys, written(in_folder, catalog="./own", steps=[{**EVALUATE, "combinations": 20}]), *more)

    for k, setting, most in (
        (1, "train", 8),
        (1, "held-out", 4),
        (2, "train", 12),
        (2, "held-out", 2),
        (3, "train", 8),
    ):
        assert f"20 combinations of k = {k} were requested, but setting '{setting}' has only {most}." in said
    assert "k = 3 is not possible: setting 'held-out'" in said
    assert "combinations: all" in said


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_impossible_numbers_and_faults_of_form_come_together(
    in_folder: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    graders = {"judge": {"model": "scripted:grader", "rounds": 2}}
    step = {**EVALUATE, "settings": ["all"], "k": [1, 200], "combinations": 99_999_999}

    said = refused(capsys, written(in_folder, graders=graders, steps=[step]), *more)

    assert "has 3 faults" in said and "rounds must be odd, not 2" in said
    assert "steps.eval: 99999999 combinations of k = 1 were requested" in said
    assert "steps.eval: k = 200 is not possible" in said


def test_all_combinations_or_a_number_for_each_k_and_setting(in_folder: Path) -> None:
    catalog(in_folder / "own")
    steps = [
        {**EVALUATE, "name": "every", "k": [1, 2], "settings": ["train", "held-out"], "combinations": "all"},
        {**EVALUATE, "name": "by-k", "k": [1, 2], "settings": ["all"], "combinations": {1: 5, 2: "all"}},
        {
            **EVALUATE,
            "name": "by-setting",
            "k": [2],
            "settings": ["train", "all"],
            "combinations": {"train": 3, "all": 7},
        },
        {
            **EVALUATE,
            "name": "nested",
            "k": [1, 2],
            "settings": ["train", "held-out"],
            "combinations": {"train": {1: 2, 2: "all"}, "held-out": 1},
        },
    ]
    path = written(in_folder, catalog="./own", steps=steps)

    assert run_experiment(Path(path)).is_complete

    drawn = {(c.step, c.setting, c.k): len(c.combinations) for c in open_run("many").cells}
    assert drawn == {
        ("every", "train", 1): 8,
        ("every", "train", 2): 12,
        ("every", "held-out", 1): 4,
        ("every", "held-out", 2): 2,
        ("by-k", "all", 1): 5,
        ("by-k", "all", 2): 60,
        ("by-setting", "train", 2): 3,
        ("by-setting", "all", 2): 7,
        ("nested", "train", 1): 2,
        ("nested", "train", 2): 12,
        ("nested", "held-out", 1): 1,
        ("nested", "held-out", 2): 1,
    }
    assert run_status("many").missing == 0
    assert run_experiment(Path(path)).called == 0


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"combinations": {1: 5, 2: 5}}, "combinations has no number for setting train at k = 3"),
        ({"combinations": {"train": 5, "held-out": 5, "all": 5, "tain": 5}}, "combinations: tain is neither"),
        ({"combinations": {1: 5, 2: 5, 3: 0}}, "0 is below 1"),
        ({"combinations": "every"}, "combinations: 'every' is not an integer"),
        ({"combinations": "all", "ladder": True}, "a ladder needs a number"),
    ],
)
def test_a_faulty_table_of_numbers_is_refused(
    in_folder: Path, change: dict[str, Any], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fault in refused(capsys, written(in_folder, steps=[{**EVALUATE, **change}]), "--dry-run")


def test_all_of_a_catalogue_with_too_many_is_refused(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, written(in_folder, steps=[{**EVALUATE, "combinations": "all"}]), "--dry-run")

    assert (
        "Setting 'all' has " in said
        and "combinations of k = 3, which are too many" in said
        and "Request a number" in said
    )


def train_and_ask(folder: Path) -> str:
    """An experiment that lacks data, two checkpoints and two keys, and cannot draw its combinations."""
    students = {
        "base": {"model": "local:nowhere/base"},
        "other": {"model": "local:nowhere/other"},
        "served": {"model": "openai:m@http://localhost:1/v1", "key": "FIRST_KEY"},
    }
    graders = {"judge": {"model": "openai:g@http://localhost:1/v1", "key": "SECOND_KEY"}}
    train = {"name": "tuned", "stage": "train", "base": "base", "data": ["./nothing.jsonl"], "steps": 1}
    replay = {"sources": ["nowhere/replay.txt"]}
    evaluate = {**EVALUATE, "students": ["other", "served", "step:tuned"], "settings": ["all"], "k": [1]}
    steps = [train, {**train, "name": "replayed", "replay": replay, "data": ["./own.jsonl"]}, evaluate]
    (folder / "own.jsonl").write_text("{}\n", encoding="utf-8")
    return written(folder, students=students, graders=graders, steps=steps)


def test_what_a_machine_lacks_is_one_error_and_warnings_of_a_dry_run(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the extra `train` is not installed")
    for name in ("FIRST_KEY", "SECOND_KEY"):
        monkeypatch.delenv(name, raising=False)
    path = train_and_ask(in_folder)
    lacking = ["nothing.jsonl", "nowhere/replay.txt", "nowhere/other", "FIRST_KEY is not set", "SECOND_KEY is not set"]

    said = refused(capsys, path)
    assert all(one in said for one in lacking), said
    assert not (in_folder / "runs").exists()

    assert main(["run", path, "--dry-run"]) == 0
    warned = capsys.readouterr().err
    assert all(one in warned for one in lacking), warned

    said = refused(capsys, path, "--set", "steps.eval.combinations=10000000")
    assert all(one in said for one in ["10000000 combinations", *lacking]), said
    assert "10000000 combinations" in refused(capsys, path, "--set", "steps.eval.combinations=10000000", "--dry-run")


def test_a_dry_run_refuses_another_seed_under_the_same_name(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(in_folder, steps=[{**EVALUATE, "combinations": 2}])
    assert main(["run", path]) == 0

    for more in ([], ["--dry-run"]):
        assert "another seed" in refused(capsys, path, "--set", "seed=7", *more)


def test_a_dry_run_refuses_a_student_of_another_partition(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"kind": "dataset", "hash": "d", "catalog": "paper", "partition": "random-skills:3", "k": [1]}
    (in_folder / "d").mkdir()
    (in_folder / "d" / LINEAGE_FILE).write_text(
        json.dumps(facts | {"combinations": [], "skill_sets": [], "counts": {"train": 70}}), encoding="utf-8"
    )
    students = {
        "base": {"model": "scripted:student"},
        "tuned": {"model": "scripted:student", "tuned_from": "base", "trained_on": ["./d"]},
    }
    path = written(
        in_folder, students=students, steps=[{**EVALUATE, "students": ["tuned"], "combinations": 2, "k": [1]}]
    )

    said = [refused(capsys, path, *more) for more in ([], ["--dry-run"])]

    assert said[0] == said[1] and "partition" in said[0], said


def test_all_misspelled_names_come_with_the_nearest_ones(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts", "--skills", "metafor; red hering; simile", "--topic", "Sewign"]) == 2
    said = capsys.readouterr().err

    for wrong, right in (("metafor", "metaphor"), ("red hering", "red herring"), ("Sewign", "Sewing")):
        assert f"'{wrong}'" in said and f'Did you mean "{right}"' in said


def test_the_python_check_names_the_nearest_skill() -> None:
    import skillmix

    catalog = skillmix.load_catalog("verifiable")
    combination = skillmix.combination_of(["similee"], "Laundry day")

    with pytest.raises(UserError) as caught:
        skillmix.check("A text.", combination, catalog)

    assert "No skill named 'similee'" in caught.value.message
    assert 'Did you mean "simile"?' in str(caught.value.hint)


def test_a_topic_that_is_far_from_all_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts", "verifiable", "--skills", "simile", "--topic", "Bakeries"]) == 2
    assert "Did you mean" not in capsys.readouterr().err
