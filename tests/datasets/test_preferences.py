"""Pairs of texts of one combination, with and without full marks, in the form that DPO trainers load."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from skillmix.api import open_run
from skillmix.commands import main

EXPERIMENT = """
name: pairs
catalog: verifiable
students:
  one: {model: "scripted:student?skill=0.6"}
  two: {model: "scripted:student?skill=0.5"}
graders: {judge: {model: "scripted:grader", rounds: 1}}
steps:
  - {name: write, stage: generate, students: [one, two], purpose: training, settings: [train], k: [1, 2],
     combinations: 15, generations: 3}
  - {name: grade, stage: grade, of: [write], graders: [judge]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "pairs.yaml").write_text(EXPERIMENT, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", "pairs.yaml", "--json"]) == 0
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def pairs_of(capsys: pytest.CaptureFixture[str], file: Path, *options: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    output = str(file.with_suffix(""))
    words = [
        "dataset",
        "pairs",
        "--recipe",
        "D(1,2)",
        "--preferences",
        str(file),
        "--output",
        output,
        *options,
        "--json",
    ]
    assert main(words) == 0
    written = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert written["preferences"] == {"file": str(file), "pairs": len(rows)}
    return rows


def test_each_pair_is_a_text_with_full_marks_and_one_without(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pairs_of(capsys, tmp_path / "pairs.jsonl")

    marks = {(t.combination, t.student, f"Answer: {t.text}"): t.full_marks for t in open_run("pairs").texts()}
    assert len(rows) >= 10
    for row in rows:
        (chosen,), (rejected,) = row["chosen"], row["rejected"]
        assert marks[row["combination"], row["chosen_writer"], chosen["content"]] == 1
        assert marks[row["combination"], row["rejected_writer"], rejected["content"]] == 0
        assert row["prompt"][0]["content"].endswith("The text may have at most one sentence.")
        assert row["topic"] in row["prompt"][0]["content"]
    used = [(row["combination"], row[w], row[t][0]["content"]) for row in rows for w, t in SIDES]
    assert len(set(used)) == len(used)


SIDES = (("chosen_writer", "chosen"), ("rejected_writer", "rejected"))


def test_a_text_meets_one_of_its_own_writer_where_there_is_one(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pairs_of(capsys, tmp_path / "pairs.jsonl")
    only_one = pairs_of(capsys, tmp_path / "one.jsonl", "--writers", "one")

    assert sum(row["chosen_writer"] == row["rejected_writer"] for row in rows) > len(rows) / 2
    assert {row[w] for row in only_one for w, _ in SIDES} == {"one"}


def test_the_pairs_hold_only_combinations_of_the_data_set_and_none_for_validation(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pairs_of(capsys, tmp_path / "pairs.jsonl", "--validation", "0.5")

    names = {}
    for split in ("train", "validation"):
        lines = (tmp_path / "pairs" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        names[split] = {json.loads(line)["messages"][0]["content"] for line in lines}
    assert names["validation"]
    first = {row["prompt"][0]["content"].rpartition("\n\nThe text may")[0] for row in rows}
    assert first <= names["train"]
    assert first.isdisjoint(names["validation"])


def test_trl_takes_the_pairs_as_conversations(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra `test` is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data_utils = pytest.importorskip("trl.data_utils", reason="the extra `test` is not installed")
    pairs_of(capsys, tmp_path / "pairs.jsonl")
    file = tmp_path / "pairs.parquet"
    assert (
        main(["dataset", "pairs", "--recipe", "D(1,2)", "--preferences", str(file), "--output", str(tmp_path / "d")])
        == 0
    )

    loaded = datasets.Dataset.from_parquet(str(file), cache_dir=str(tmp_path / "cache"))

    assert all(data_utils.is_conversational(row) for row in loaded)
    lines = (tmp_path / "pairs.jsonl").read_text(encoding="utf-8").splitlines()
    assert loaded.to_list() == [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pairs.yaml", "--preferences", "x.jsonl"], "--preferences and --output cannot be used with"),
        (["pairs", "--preferences", "x.csv"], "x.csv is neither .jsonl nor .parquet."),
        (["pairs", "--preferences", "pairs.yaml"], "pairs.yaml is neither .jsonl nor .parquet."),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    run: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()

    assert main(["dataset", *words, "--output", str(tmp_path / "set")]) == 2

    assert message in capsys.readouterr().err
    assert not (tmp_path / "set").exists()


def test_without_a_rejected_text_the_error_says_so(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = EXPERIMENT.replace("[one, two]", "[one]").replace("generations: 3", "generations: 1")
    Path("pairs.yaml").write_text(text, encoding="utf-8")
    main(["run", "pairs.yaml", "--json"])
    capsys.readouterr()

    assert main(["dataset", "pairs", "--k", "1", "--preferences", "x.jsonl"]) == 2

    assert "No pair was written" in capsys.readouterr().err
    assert not Path("x.jsonl").exists()
