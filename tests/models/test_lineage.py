"""What is known of a model's training, and the file that says it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skillmix
from skillmix.errors import UserError
from skillmix.experiment.costs import parameters_of
from skillmix.models.checkpoints import Checkpoint, checkpoint_of
from skillmix.models.lineage import Lineage, lineage_of
from skillmix.models.lineage_files import (
    LINEAGE_FILE,
    DatasetFile,
    is_dataset_folder,
    read_dataset_file,
    read_model_file,
)
from skillmix.models.specs import parse_spec
from skillmix.runs.run import Run
from skillmix.scores.lineages import run_datasets, student_lineages

WRITTEN = Path(__file__).parent / "lineage_files"
"""Files that skillmix 1 wrote, with fewer combinations."""
ROOT = "bundled:smollm2-135m"


def write_file(folder: Path, document: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / LINEAGE_FILE).write_text(json.dumps(document), encoding="utf-8")
    return folder


def tuned_model(folder: Path, *, base: str = ROOT, **more: Any) -> Path:
    """A folder that looks like a checkpoint to whoever does not load it."""
    write_file(folder, {"kind": "model", "base": {"spec": base, "hash": "0"}, "combinations": ["a"], "k": [1]} | more)
    (folder / ("adapter_config.json" if more.get("adapter") else "config.json")).write_text("{}", encoding="utf-8")
    return folder


def dataset(folder: Path, **more: Any) -> Path:
    return write_file(folder, {"kind": "dataset", "hash": folder.name, "k": [1], "combinations": []} | more)


def known_lineage(spec: str, datasets: dict[str, DatasetFile] | None = None) -> Lineage:
    lineage = lineage_of(spec, datasets)
    assert lineage is not None
    return lineage


@pytest.fixture
def three_models(in_folder: Path) -> None:
    """A tuned model, an adapter on it, and an adapter on both."""
    recipe = {"learning_rate": 2e-5, "é": [1, None], "steps": 7, "steps_taken": 5}
    tuned_model(in_folder / "first", seed=3, recipe=recipe, later={"x": [True]}, dataset=[{"hash": "d1"}])
    data = [{"path": "d2", "hash": "d2"}]
    tuned_model(in_folder / "second", base="local:first", adapter=True, k=[2], combinations=["b"], dataset=data)
    tuned_model(in_folder / "third", base="local:first+second", adapter=True, combinations=["c"], seed=4)


SPECS_OF_THREE = ["local:third", "local:first+second+third"]


@pytest.mark.parametrize("spec", SPECS_OF_THREE)
def test_a_lineage_unites_a_model_with_all_models_before_it(three_models: None, spec: str) -> None:
    lineage = known_lineage(spec)

    assert (lineage.base, lineage.k, lineage.datasets) == (ROOT, (1, 2), ("d1", "d2"))
    assert lineage.combinations == {"a", "b", "c"}
    assert (lineage.seed, lineage.steps, lineage.is_adapter) == (4, None, True)


def test_steps_are_those_that_were_taken(three_models: None) -> None:
    assert known_lineage("local:first").steps == 5


@pytest.mark.parametrize(
    ("spec", "identity"),
    [
        ("local:first", "5a2b95d80e3a86a5"),
        ("local:second", "ca36da8867a80168"),
        ("local:first+second", "af32c5ce1a41c09d"),
        ("local:third", "e8de068f08ffd583"),
        ("local:first+second+third", "faf2b24bc96d44b0"),
    ],
)
def test_an_identity_stays_what_it_was_because_journals_hold_it(three_models: None, spec: str, identity: str) -> None:
    assert known_lineage(spec).identity == identity


def test_an_identity_changes_with_any_file_of_the_lineage(three_models: None, in_folder: Path) -> None:
    before = known_lineage("local:third").identity
    file = in_folder / "first" / LINEAGE_FILE
    file.write_text(file.read_text(encoding="utf-8").replace('"seed": 3', '"seed": 5'), encoding="utf-8")

    assert known_lineage("local:third").identity != before


def test_a_model_whose_base_moved_still_counts_the_base_that_its_spec_names(in_folder: Path) -> None:
    tuned_model(in_folder / "new", combinations=["b"])
    tuned_model(in_folder / "adapter", base="local:old", adapter=True, k=[3])

    lineage = known_lineage("local:new+adapter")

    assert lineage.combinations == {"a", "b"}
    assert (lineage.base, lineage.k) == (ROOT, (1, 3))


@pytest.mark.parametrize("spec", ["openai:gpt-4o", "local:nowhere", ROOT, "local:plain", "local:data"])
def test_a_model_that_was_not_tuned_has_no_lineage(in_folder: Path, spec: str) -> None:
    (in_folder / "plain").mkdir()
    dataset(in_folder / "data")

    assert lineage_of(spec) is None


def test_rows_and_skill_sets_come_from_data_sets_that_are_given_or_on_the_disk(
    three_models: None, in_folder: Path
) -> None:
    dataset(in_folder / "d2", counts={"train": 20}, skill_sets=[["x", "y"]])
    made = dataset(in_folder / "run" / "d1", counts={"train": 3}, skill_sets=[["x", "z"]])
    file = read_dataset_file(made)
    assert file is not None

    lineage = known_lineage("local:second", {"d1": file})

    assert lineage.rows == 23
    assert lineage.skill_sets == frozenset([frozenset("xy"), frozenset("xz")])


@pytest.mark.parametrize("fault", ["elsewhere", "another hash", "a model", "no counts", "no data in the file"])
def test_rows_and_skill_sets_are_unknown_unless_every_data_set_tells_them(in_folder: Path, fault: str) -> None:
    data = [] if fault == "no data in the file" else [{"path": "d1", "hash": "d1"}]
    tuned_model(in_folder / "model", dataset=data)
    if fault == "a model":
        tuned_model(in_folder / "d1")
    elif fault != "elsewhere":
        more = {} if fault == "no counts" else {"counts": {"train": 20}, "skill_sets": []}
        dataset(in_folder / "d1", **more, **({"hash": "other"} if fault == "another hash" else {}))

    lineage = known_lineage("local:model", {})

    assert (lineage.rows, lineage.skill_sets) == (None, None)


def test_data_sets_are_only_read_for_a_caller_that_has_some(in_folder: Path) -> None:
    tuned_model(in_folder / "model", dataset=[{"path": "d1", "hash": "d1"}])
    dataset(in_folder / "d1", counts={"train": 20})
    assert known_lineage("local:model", {}).rows == 20
    (in_folder / "d1" / LINEAGE_FILE).write_text("{", encoding="utf-8")

    assert known_lineage("local:model").rows is None
    with pytest.raises(UserError, match="d1"):
        lineage_of("local:model", {})


@pytest.mark.parametrize("count", [1, 2, 5])
def test_models_in_a_circle_are_refused_by_lineage_and_checkpoint_alike(in_folder: Path, count: int) -> None:
    for number in range(count):
        tuned_model(in_folder / f"m{number}", base=f"local:m{(number + 1) % count}", adapter=True)

    for read in (lambda: lineage_of("local:m0"), lambda: checkpoint_of(parse_spec("local:m0"))):
        with pytest.raises(UserError, match=f"According to m0/{LINEAGE_FILE}, the model in m0 was tuned from itself"):
            read()


def test_a_circle_is_seen_through_other_spellings_of_a_folder(in_folder: Path) -> None:
    tuned_model(in_folder / "m", base=f"local:x/../m+{in_folder / 'm'}")
    (in_folder / "x").mkdir()

    with pytest.raises(UserError, match="was tuned from itself"):
        lineage_of("local:m")


def test_a_tuned_student_in_a_folder_with_a_plus_is_known_as_tuned(in_folder: Path) -> None:
    tuned_model(in_folder / "x+y" / "m1" / "model")

    found = student_lineages(Run(in_folder / "x+y"), None, ["m1"], {})

    assert found["m1"].base == ROOT


@pytest.mark.parametrize("base", ["base", "ba+se"])
@pytest.mark.parametrize("adapter", ["adapter", "x+y/adapter", "x+y/ada+pter"])
def test_every_reader_of_a_spec_finds_the_same_folders(in_folder: Path, base: str, adapter: str) -> None:
    tuned_model(in_folder / base, combinations=["b"])
    tuned_model(in_folder / adapter, base=f"local:{base}", adapter=True)
    spec = f"local:{base}+{adapter}"

    assert checkpoint_of(parse_spec(spec)) == Checkpoint(Path(base), (Path(adapter),))
    assert known_lineage(spec).combinations == {"a", "b"}


def test_an_adapter_of_a_bundled_model_may_lie_in_a_folder_with_a_plus(in_folder: Path) -> None:
    tuned_model(in_folder / "x+y" / "adapter", adapter=True)

    assert known_lineage(f"{ROOT}+x+y/adapter").combinations == {"a"}


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
        (folder / LINEAGE_FILE).write_bytes(content)
    readers: dict[Callable[[], object], Path] = {
        lambda: student_lineages(run, None, ["m1"], {}): model,
        lambda: run_datasets(run): data,
        lambda: lineage_of(f"local:{model}"): model,
        lambda: read_model_file(model): model,
        lambda: read_dataset_file(data): data,
    }

    for read, folder in readers.items():
        with pytest.raises(UserError) as error:
            read()
        assert str(folder / LINEAGE_FILE) in error.value.message
        assert error.value.hint
    assert not is_dataset_folder(data)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"k": "1"}, "k: "),
        ({"k": [0]}, "k, entry 1: "),
        ({"combinations": None}, "combinations: "),
        ({"base": {"spec": "gpt-4o"}}, "base, spec: 'gpt-4o' is not a model."),
        ({"base": {"hash": "0"}}, "base, spec: "),
        ({"base": {"spec": ROOT, "hash": 1}}, "base, hash: "),
        ({"dataset": [{"path": "d1"}]}, "dataset, entry 1, hash: "),
        ({"adapter": "yes"}, "adapter: "),
        ({"seed": 0.5}, "seed: "),
    ],
)
def test_a_model_file_with_a_fault_is_damaged_for_every_reader(
    in_folder: Path, more: dict[str, Any], fault: str
) -> None:
    whole = {"kind": "model", "base": {"spec": ROOT, "hash": "0"}, "combinations": ["a"], "k": [1]}
    folder = write_file(in_folder / "model", whole | more)
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")

    for read in (lambda: lineage_of("local:model"), lambda: checkpoint_of(parse_spec("local:model"))):
        with pytest.raises(UserError) as error:
            read()
        assert error.value.message.startswith(f"model/{LINEAGE_FILE}: {fault}")


def test_a_file_of_another_kind_is_damaged_only_where_it_must_be_of_one(in_folder: Path) -> None:
    model, data = tuned_model(in_folder / "model"), dataset(in_folder / "data")

    assert read_model_file(data) is None
    assert read_dataset_file(model) is None
    with pytest.raises(UserError, match="kind"):
        read_model_file(data, strict=True)
    with pytest.raises(UserError, match="kind"):
        read_dataset_file(model, strict=True)


def test_a_model_without_a_file_is_a_base_and_data_in_one_file_have_no_lineage(in_folder: Path) -> None:
    (in_folder / "run" / "m1" / "model").mkdir(parents=True)
    (in_folder / "rows.jsonl").write_text("{}", encoding="utf-8")
    tuned_model(in_folder / "run" / "m2" / "model", dataset=[{"path": "rows.jsonl", "hash": "1"}])

    found = student_lineages(Run(in_folder / "run"), None, ["m1", "m2", "m3"], {})

    assert found.keys() == {"m2"}
    assert found["m2"].rows is None


def test_a_file_is_written_exactly_as_before() -> None:
    model, data = read_model_file(WRITTEN / "model"), read_dataset_file(WRITTEN / "dataset")
    assert model and data

    for file, folder in ((model, "model"), (data, "dataset")):
        content = (WRITTEN / folder / LINEAGE_FILE).read_text(encoding="utf-8")
        assert file.text() == content
        assert type(file)(**json.loads(content)).text() == content  # from fields, as a new file is


def test_merging_an_adapter_changes_one_word_of_its_file(three_models: None) -> None:
    file = read_model_file(Path("second"))
    assert file is not None

    assert file.merged().text() == file.text().replace('"adapter": true', '"adapter": false')


def test_the_name_of_the_file_is_written_once_in_the_package() -> None:
    modules = Path(skillmix.__file__).parent.rglob("*.py")

    assert [m.name for m in modules if f'"{LINEAGE_FILE}"' in m.read_text(encoding="utf-8")] == ["lineage_files.py"]
