"""Ids on the Hub, from a cache folder as huggingface_hub lays it out; nothing is downloaded."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main as command
from skillmix.errors import UserError
from skillmix.files import read_yaml
from skillmix.models.checkpoints import checkpoint_of
from skillmix.models.hub import hub_folder, is_hub_id, is_missing, pinned
from skillmix.models.specs import parse_spec
from skillmix.steps.run import run_experiment

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub"
    folder.mkdir()
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


def cached(cache: Path, name: str, commit: str, files: Path, kind: str = "models") -> Path:
    """Put a repository into the cache, with its main branch at a commit."""
    place = cache / f"{kind}--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / "main").write_text(commit, encoding="ascii")
    shutil.copytree(files, place / "snapshots" / commit)
    return place / "snapshots" / commit


def test_an_id_leads_to_its_files_in_the_cache_at_a_commit(cache: Path, small_model: Path) -> None:
    folder = cached(cache, "org/small", NEW, small_model)

    assert pinned("org/small") == f"org/small@{NEW}"
    assert hub_folder(f"org/small@{NEW}") == folder
    assert checkpoint_of(parse_spec("local:org/small")).base == folder
    assert checkpoint_of(parse_spec(f"vllm:org/small@{NEW}")).base == folder
    assert not is_missing("org/small")


def test_a_folder_here_comes_before_an_id(in_folder: Path) -> None:
    assert is_hub_id("org/name")
    (in_folder / "org" / "name").mkdir(parents=True)
    assert not is_hub_id("org/name")


@pytest.mark.parametrize("name", ["org/none", f"org/none@{OLD}", "org/none@v1"])
def test_an_id_that_the_cache_lacks_is_an_error_offline(cache: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be downloaded from the Hugging Face Hub"):
        checkpoint_of(parse_spec(f"local:{name}"))


def test_weights_that_are_missing_are_noticed(cache: Path, small_model: Path) -> None:
    folder = cached(cache, "org/small", NEW, small_model)
    (folder / "model.safetensors").unlink()

    assert is_missing("org/small")


def experiment(folder: Path, **changes: Any) -> Path:
    document = {
        "name": "hub",
        "catalog": "verifiable",
        "students": {"s": {"model": "local:org/small", "max_tokens": 4}},
        "graders": {"code": {"model": "rules:"}},
        "steps": [
            {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["code"], "settings": ["all"]}
            | {"combinations": 1, "k": [1], "generations": 1}
        ],
    }
    path = folder / "hub.yaml"
    path.write_text(yaml.safe_dump(document | changes), encoding="utf-8")
    return path


def test_a_run_keeps_the_commit_that_it_began_with(cache: Path, in_folder: Path, small_model: Path) -> None:
    cached(cache, "org/small", OLD, small_model)
    path = experiment(in_folder)
    first = run_experiment(path)
    assert first.called == 2

    cached(cache, "org/small", NEW, small_model)
    again = run_experiment(path)
    document: Any = read_yaml(in_folder / "runs" / "hub" / "experiment.yaml")

    assert again.called == 0
    assert document["students"]["s"]["model"] == f"local:org/small@{OLD}"


def test_another_revision_in_the_file_is_another_model(cache: Path, in_folder: Path, small_model: Path) -> None:
    for commit in (OLD, NEW):
        cached(cache, "org/small", commit, small_model)
    run_experiment(experiment(in_folder, students={"s": {"model": f"local:org/small@{OLD}", "max_tokens": 4}}))

    with pytest.raises(UserError, match="model"):
        run_experiment(experiment(in_folder, students={"s": {"model": f"local:org/small@{NEW}", "max_tokens": 4}}))


def test_a_dry_run_reads_the_shape_from_the_cache_without_weights(
    cache: Path, in_folder: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cached(cache, "org/small", NEW, small_model)
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    (folder / "chat_template.jinja").unlink(missing_ok=True)

    assert command(["run", str(experiment(in_folder)), "--dry-run"]) == 2
    assert "has no chat template" in capsys.readouterr().err


def test_a_train_step_takes_a_data_set_by_id(cache: Path, in_folder: Path, small_model: Path) -> None:
    cached(cache, "org/small", NEW, small_model)
    data = in_folder / "data"
    data.mkdir()
    row = '{"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Answer: Hello."}]}\n'
    (data / "train.jsonl").write_text(row * 4, encoding="utf-8")
    cached(cache, "org/talks", OLD, data, kind="datasets")
    step = {"name": "tune", "stage": "train", "base": "s", "data": ["org/talks"], "steps": 1, "batch": 2}
    path = experiment(in_folder, steps=[step | {"validation_share": 0, "max_tokens": 64, "precision": "fp32"}])

    result = run_experiment(path)

    document: Any = read_yaml(in_folder / "runs" / "hub" / "experiment.yaml")
    assert document["steps"][0]["data"] == [f"org/talks@{OLD}"]
    assert (in_folder / "runs" / "hub" / "tune" / "model" / "skillmix.json").is_file()
    assert result.trained["tune"]
