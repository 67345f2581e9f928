"""A run that is refused leaves everything as it was, and one that is being written to is left alone."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.runs.run import open_run
from skillmix.steps.run import run_experiment

EVALUATE = {
    "name": "eval",
    "stage": "evaluate",
    "students": ["base"],
    "graders": ["judge"],
    "settings": ["all"],
    "k": [1, 2],
    "combinations": 3,
    "generations": 1,
}
DATASET = {"name": "d1", "stage": "dataset", "writer": "base", "graders": ["judge"], "k": [1], "target": 3}


@pytest.fixture
def file(in_folder: Path) -> str:
    """An experiment that is done."""
    document: dict[str, Any] = {
        "name": "done",
        "students": {"base": {"model": "scripted:student?skill=1"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [EVALUATE, DATASET],
    }
    path = in_folder / "done.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert run_experiment(path).is_complete
    return str(path)


def state() -> dict[str, bytes]:
    """All files of the run but the database and what SQLite keeps beside it."""
    passed_over = (".lock", "-wal", "-shm", ".sqlite")
    return {
        str(path): path.read_bytes()
        for path in sorted(Path("runs").rglob("*"))
        if path.is_file() and not path.name.endswith(passed_over)
    }


@pytest.mark.parametrize(
    "change",
    [
        "prompts=nosuch",
        "students.base.prompts=nosuch",
        "steps.d1.prompts=nosuch",
        "graders.judge.prompts=nosuch",
        "steps.eval.k=[99999]",
        "steps.eval.combinations=10000000",
        "leakage.evaluations=[nosuch.yaml]",
        "students.base.temperature=0.1",
        "students.base.model=scripted:student?skill=0.5",
        "students.base.prompts=worked",
        "graders.judge.max_tokens=7",
        "graders.judge.prompts=llama2",
        "seed=7",
        "catalog=verifiable",
        "steps.eval.students=[base,nobody]",
    ],
)
def test_a_refused_run_changes_nothing(file: str, change: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = state()
    assert main(["scores", "done", "--json"]) == 0
    scores = capsys.readouterr().out

    assert main(["run", file, "--set", change]) == 2

    assert state() == before
    assert main(["scores", "done", "--json"]) == 0
    assert capsys.readouterr().out == scores


def test_a_change_of_one_setting_is_found_by_any_command_and_before_new_calls(file: str) -> None:
    before = state()
    changes = ["--set", "students.new.model=scripted:student", "--set", "steps.eval.students=[new,base]"]

    assert main(["evaluate", file, *changes, "--set", "students.base.temperature=0.1"]) == 2
    assert main(["dataset", file, "--set", "graders.judge.max_tokens=7"]) == 2

    assert state() == before
    with open_run("done").read() as journal:
        assert journal.students() == {"base"}


@pytest.mark.parametrize("words", [["run"], ["evaluate"], ["dataset"], ["train"]], ids=" ".join)
def test_a_process_that_may_not_write_changes_nothing(
    file: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if words == ["train"]:
        pytest.importorskip("torch", reason="the extra `train` is not installed")
        document = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
        from tests.models.tiny_checkpoint import write_checkpoint

        write_checkpoint(Path("small"), has_ends=True)
        document["students"]["small"] = {"model": "local:small"}
        document["steps"].append({"name": "m1", "stage": "train", "base": "small", "data": ["d1"]})
        Path(file).write_text(yaml.safe_dump(document), encoding="utf-8")
    before = state()

    with open_run("done").write():
        assert main([*words, file, "--set", "steps.eval.combinations=2"]) == 2

    assert "Another process is writing" in capsys.readouterr().err
    assert state() == before


def test_a_recipe_that_differs_from_what_was_trained_is_refused_before_anything_changes(file: str) -> None:
    model = Path("runs/done/m1/model")
    model.mkdir(parents=True)
    about = {"kind": "model", "base": {"spec": "local:x", "hash": "0"}, "k": [1], "combinations": []}
    recipe = {"learning_rate": 2e-5, "batch": 64, "token_budget": 5}
    (model / "skillmix.json").write_text(json.dumps({**about, "recipe": recipe, "seed": 0}), encoding="utf-8")
    document = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    document["steps"].append({"name": "m1", "stage": "train", "base": "base", "data": ["d1"]})
    Path(file).write_text(yaml.safe_dump(document), encoding="utf-8")
    before = state()

    for command in ("run", "train"):
        for change in ("steps.m1.learning_rate=0.1", "steps.m1.seed=5"):
            assert main([command, file, "--set", change, "--set", "steps.eval.combinations=9"]) == 2

    assert state() == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff", b'{"kind": "dataset"}'], ids=repr)
def test_a_model_whose_lineage_is_damaged_is_named_and_not_trained_again(
    file: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = Path("runs/done/m1/model/skillmix.json")
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(content)
    document = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    document["steps"].append({"name": "m1", "stage": "train", "base": "base", "data": ["d1"]})
    Path(file).write_text(yaml.safe_dump(document), encoding="utf-8")
    before = state()

    for command in ("run", "train"):
        assert main([command, file]) == 2
        assert str(damaged) in capsys.readouterr().err

    assert state() == before


def test_a_folder_in_the_way_of_a_step_is_found_before_the_first_call(in_folder: Path) -> None:
    document: dict[str, Any] = {
        "name": "new",
        "students": {"base": {"model": "scripted:student"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [EVALUATE, DATASET, {"name": "report", "stage": "report"}],
    }
    Path("new.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    for folder in ("runs/new/d1/dataset", "runs/new/report"):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "thesis.tex").touch()

        assert main(["run", "new.yaml"]) == 2

        assert not Path("runs/new/journal").exists()
        (Path(folder) / "thesis.tex").unlink()


def _texts(folder: Path, *texts: str) -> list[str]:
    line = {"skills": ["metaphor"], "topic": "Sewing", "student": "s"}
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({**line, "text": t}) for t in texts), encoding="utf-8")
    return ["import-texts", str(folder / "texts.jsonl"), "--run", "old"]


def _records(folder: Path, *texts: str) -> list[str]:
    for number, text in enumerate(texts, start=1):
        student = folder / f"k1_s1_vdefault_r{number}" / "s"
        student.mkdir(parents=True, exist_ok=True)
        row = f'skills,topic,user,assistant,model_input_0\nmetaphor,Sewing,Write,"{text}",x\n'
        (student / "records.csv").write_text(row if text else '"', encoding="utf-8")
    return ["import-reference", str(folder), "--run", "old"]


@pytest.mark.parametrize("words", [_texts, _records])
def test_a_refused_import_leaves_no_experiment(in_folder: Path, words: Callable[..., list[str]]) -> None:
    if words is _texts:
        assert main(words(in_folder, "One.", "Two.")) == 0
        Path("runs/old/experiment.yaml").unlink()
        assert main([*words(in_folder, "One.", "Other."), "--catalog", "paper"]) == 2
    else:
        assert main(words(in_folder, "One.", "")) == 2

    assert not Path("runs/old/experiment.yaml").exists()


TRAIN = {"name": "m1", "stage": "train", "base": "small", "data": ["d1"], "steps": 1, "batch": 1}
LATER = [
    TRAIN,
    {**EVALUATE, "name": "after", "students": ["step:m1"]},
    {"name": "again", "stage": "grade", "of": ["after"], "graders": ["second"]},
]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("steps.m1.replay={sources: [data/replay]}", "Step 'm1': There is no data/replay to replay"),
        ("steps.m1.replay={sources: [texts.jsonl], field: body}", "texts.jsonl:1 has no text under 'body'"),
        ("steps.m1.replay={sources: [empty]}", "replay.sources contains no text"),
        ("students.small.model=local:models/missing", "models/missing is not a local folder"),
        ("students.small.model=local:weightless", "There are no safetensors weights in weightless"),
        ("students.small.model=scripted:student", "scripted:student cannot be trained"),
        ("steps.m1.base=step:m0", "there is no earlier train step 'm0'"),
        ("steps.m1.data=[./nosuch.jsonl]", "There is no data set ./nosuch.jsonl"),
        ("graders.second.model=openai:gpt-4", "OPENAI_API_KEY"),
        ("graders.second.model=anthropic:claude-3-opus-20240229", "ANTHROPIC_API_KEY"),
        ("prompts=my/prompts", "There is no prompt set 'my/prompts'"),
        ("graders.second.prompts=mine", "no grader prompt 'mine'"),
        ("students.small.trained_on=data/missing", "students.small"),
        ("students.small.lineage=data/missing", "students.small"),
        ("steps.report.runs=[nosuch]", "nosuch"),
    ],
)
def test_what_a_later_step_lacks_stops_the_run_before_the_first_call(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str, fault: str
) -> None:
    pytest.importorskip("torch", reason="the extra `train` is not installed")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (in_folder / "texts.jsonl").write_text('{"text": "Plain text."}\n', encoding="utf-8")
    (in_folder / "empty").mkdir()
    for name, files in {"small": ("config.json", "model.safetensors"), "weightless": ("config.json",)}.items():
        (in_folder / name).mkdir()
        for file in files:
            (in_folder / name / file).write_text("{}", encoding="utf-8")
    document: dict[str, Any] = {
        "name": "later",
        "students": {"base": {"model": "scripted:student?skill=1"}, "small": {"model": "local:small"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}, "second": {"model": "scripted:grader"}},
        "steps": [DATASET, *LATER, {"name": "report", "stage": "report"}],
    }
    path = in_folder / "later.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")

    assert main(["run", str(path), "--set", change]) == 2

    shown = capsys.readouterr().err
    assert fault in shown and "hint: " in shown
    assert not Path("runs").exists()


def test_only_the_steps_that_run_need_their_files(in_folder: Path) -> None:
    document: dict[str, Any] = {
        "name": "later",
        "students": {"base": {"model": "scripted:student?skill=1"}, "small": {"model": "local:nosuch"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}, "second": {"model": "openai:gpt-4"}},
        "steps": [DATASET, *LATER],
    }
    file = in_folder / "later.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")

    assert main(["dataset", str(file)]) == 0


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("quickstart", "pyarrow torch", "train"),
        ("quickstart", "pyarrow", "parquet"),
        ("dataset-quickstart", "pyarrow", "parquet"),
        ("dataset-quickstart", "pyarrow torch", "local,parquet"),
    ],
)
def test_without_packages_a_run_names_the_extras_that_all_its_steps_need(
    in_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    missing: str,
    extra: str,
) -> None:
    for package in missing.split():
        monkeypatch.setitem(sys.modules, package, None)

    assert main(["run", name]) == 2

    assert f"hint: pip install 'skillmix[{extra}]'" in capsys.readouterr().err
