"""The files as others read them: `datasets`, TRL, OpenAI's fine-tuning, LLaMA-Factory."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.steps.run import run_experiment

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's packages


@pytest.fixture
def folder(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small data set with texts for validation."""
    monkeypatch.setenv("HF_HOME", str(in_folder / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(in_folder / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    document: dict[str, Any] = {
        "name": "data",
        "students": {"w": {"model": "scripted:student?skill=0.9"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            {
                "name": "d",
                "stage": "dataset",
                "writer": "w",
                "graders": ["judge"],
                "k": [1, 2],
                "target": 20,
                "validation": 0.2,
            }
        ],
    }
    (in_folder / "data.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return run_experiment(in_folder / "data.yaml").datasets["d"].folder


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_datasets_loads_the_folder_and_each_file(folder: Path) -> None:
    datasets = pytest.importorskip("datasets")

    whole = datasets.load_dataset(str(folder), cache_dir=str(folder.parent / "cache"))
    single = datasets.load_dataset(
        "json", data_files=str(folder / "train.jsonl"), split="train", cache_dir=str(folder.parent / "cache")
    )
    rows = datasets.load_dataset(
        "parquet", data_files=str(folder / "rows.parquet"), split="train", cache_dir=str(folder.parent / "cache")
    )

    assert set(whole) == {"train", "validation"}
    assert whole["train"].column_names == ["messages"] == single.column_names
    assert whole["train"]["messages"][:] == [line["messages"] for line in lines(folder / "train.jsonl")]
    assert whole["validation"]["messages"][:] == [line["messages"] for line in lines(folder / "validation.jsonl")]
    assert rows["messages"][:] == whole["train"]["messages"][:] + whole["validation"]["messages"][:]
    assert rows["split"][:] == ["train"] * len(whole["train"]) + ["validation"] * len(whole["validation"])


def test_trl_takes_the_lines_as_conversations(folder: Path) -> None:
    data_utils = pytest.importorskip("trl.data_utils")

    for name in ("train.jsonl", "validation.jsonl"):
        for line in lines(folder / name):
            assert data_utils.is_conversational(line)
            assert data_utils.maybe_convert_to_chatml(line) == line


def test_lines_have_the_keys_that_openai_documents_and_no_others(folder: Path) -> None:
    for name in ("train.jsonl", "validation.jsonl"):
        raw = (folder / name).read_bytes()
        assert raw.endswith(b"\n")
        assert b"\r" not in raw
        for line in lines(folder / name):
            assert set(line) == {"messages"}
            assert [message["role"] for message in line["messages"]] == ["user", "assistant", "user", "assistant"]
            for message in line["messages"]:
                assert set(message) == {"role", "content"}
                assert isinstance(message["content"], str)
                assert message["content"].strip()


def test_llama_factory_finds_files_and_columns(folder: Path) -> None:
    entries = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))

    assert {entry["file_name"] for entry in entries.values()} == {"train.jsonl", "validation.jsonl"}
    for entry in entries.values():
        assert entry["formatting"] == "sharegpt"
        assert entry["columns"] == {"messages": "messages"}
        tags = entry["tags"]
        first = lines(folder / entry["file_name"])[0]["messages"]
        assert [m[tags["role_tag"]] for m in first] == [tags["user_tag"], tags["assistant_tag"]] * 2


def test_the_card_has_the_figures(folder: Path) -> None:
    card = (folder / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(card.split("---")[1])

    assert {part["split"] for part in front["configs"][0]["data_files"]} == {"train", "validation"}
    assert {"skillmix", "skill-composition"} <= set(front["tags"])
    assert (front["task_categories"], front["size_categories"]) == (["text-generation"], ["n<1K"])
    assert front["pretty_name"] in card
    for heading in ("## How it was made", "## Excluded texts", "## Contents", "## Leakage", "## Licence"):
        assert heading in card
    for word in ("distinct-4", "6-gram", "yield", "pair of skills", "reserved", "Apache-2.0"):
        assert word in card
