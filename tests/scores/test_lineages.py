"""What the report knows of a student's training."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillmix.errors import UserError
from skillmix.experiment.gpu_hours import parameters_of
from skillmix.models.checkpoints import Checkpoint, checkpoint_of
from skillmix.models.specs import parse_spec
from skillmix.runs.run import Run
from skillmix.runs.students import lineage_of
from skillmix.scores.lineages import _lineage_of_spec, run_datasets, run_lineages


def trained_model(folder: Path, *, base: str = "bundled:smollm2-135m", **more: Any) -> Path:
    folder.mkdir(parents=True)
    about = {"kind": "model", "base": {"spec": base, "hash": "0"}, "combinations": ["a"], "k": [1]} | more
    (folder / "skillmix.json").write_text(json.dumps(about), encoding="utf-8")
    (folder / ("adapter_config.json" if more.get("adapter") else "config.json")).write_text("{}", encoding="utf-8")
    return folder


def test_a_tuned_student_in_a_folder_with_a_plus_is_known_as_tuned(in_folder: Path) -> None:
    trained_model(in_folder / "x+y" / "m1" / "model")

    found = run_lineages(Run(in_folder / "x+y"), None, ["m1"], [])

    assert found["m1"].base == "bundled:smollm2-135m"


@pytest.mark.parametrize("base", ["base", "ba+se"])
@pytest.mark.parametrize("adapter", ["adapter", "x+y/adapter", "x+y/ada+pter"])
def test_every_reader_of_a_spec_finds_the_same_folders(in_folder: Path, base: str, adapter: str) -> None:
    trained_model(in_folder / base, combinations=["b"])
    trained_model(in_folder / adapter, base=f"local:{base}", adapter=True)
    spec = f"local:{base}+{adapter}"

    reported, trained_on = _lineage_of_spec(spec, {}), lineage_of(spec)

    assert checkpoint_of(parse_spec(spec)) == Checkpoint(Path(base), (Path(adapter),))
    assert reported is not None
    assert reported.combinations == {"a", "b"}
    assert trained_on is not None
    assert trained_on.combinations == {"a", "b"}


def test_an_adapter_of_a_bundled_model_may_lie_in_a_folder_with_a_plus(in_folder: Path) -> None:
    trained_model(in_folder / "x+y" / "adapter", adapter=True)

    lineage = lineage_of("bundled:smollm2-135m+x+y/adapter")

    assert lineage is not None
    assert lineage.combinations == {"a"}


def test_the_size_of_a_model_is_read_from_a_folder_with_a_plus(in_folder: Path) -> None:
    (in_folder / "x+y" / "model-2b").mkdir(parents=True)

    assert parameters_of("local:x+y/model-2b") == 2e9


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000], ids=["empty", "cut", "list", "bytes", "deep"]
)
def test_every_reader_refuses_a_damaged_file_and_names_it(in_folder: Path, content: bytes) -> None:
    run = Run(in_folder / "run")
    model, data = run.path / "m1" / "model", run.path / "d1" / "dataset"
    for folder in (model, data):
        folder.mkdir(parents=True)
        (folder / "skillmix.json").write_bytes(content)
    readers: dict[Callable[[], object], Path] = {
        lambda: run_lineages(run, None, ["m1"], []): model,
        lambda: run_datasets(run): data,
        lambda: lineage_of(f"local:{model}"): model,
    }

    for read, folder in readers.items():
        with pytest.raises(UserError) as error:
            read()
        assert str(folder / "skillmix.json") in error.value.message
        assert error.value.hint


def test_a_model_without_a_file_is_a_base_and_data_in_one_file_have_no_lineage(in_folder: Path) -> None:
    (in_folder / "run" / "m1" / "model").mkdir(parents=True)
    (in_folder / "rows.jsonl").write_text("{}", encoding="utf-8")
    trained_model(in_folder / "run" / "m2" / "model", dataset=[{"path": "rows.jsonl", "hash": "1"}])

    found = run_lineages(Run(in_folder / "run"), None, ["m1", "m2", "m3"], [])

    assert found.keys() == {"m2"}
    assert found["m2"].rows is None
