"""Nothing that this tool did not make is ever replaced or removed, and a crash loses nothing."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.datasets.build import DATASET
from skillmix.errors import UserError
from skillmix.files import FolderKind, replacing, require_replaceable
from skillmix.report.records import REPORT
from skillmix.steps.run import run_experiment
from skillmix.training.job import MODEL
from skillmix.training.job_run import remove_checkpoints


@pytest.fixture
def run(in_folder: Path) -> Path:
    """A graded run called `texts`."""
    document: dict[str, Any] = {
        "name": "texts",
        "leakage": {"reserved": 0.0},
        "students": {"w": {"model": "scripted:student"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": [
            {
                "name": "made",
                "stage": "generate",
                "purpose": "training",
                "students": ["w"],
                "settings": ["train"],
                "k": [1],
                "combinations": 10,
                "generations": 1,
            },
            {"name": "grades", "stage": "grade", "of": ["made"], "graders": ["judge"]},
        ],
    }
    path = in_folder / "texts.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return run_experiment(path).run.path


def state(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder but what SQLite and locks keep beside a file."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if not path.name.endswith((".lock", "-wal", "-shm", "derived.sqlite"))
    }


def thesis(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("precious", encoding="utf-8")


COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "dataset": lambda output: ["dataset", "texts", "--k", "1", "--output", output],
    "report": lambda output: ["report", "texts", "--no-figures", "--output", output],
}
every_command = pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)


@every_command
@pytest.mark.parametrize("output", ["mine", "runs/texts", ".", "runs/../mine", "file", "link", "other"])
def test_what_this_tool_did_not_make_is_refused(
    run: Path, words: Callable[[str], list[str]], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    thesis(Path("mine"))
    Path("file").write_text("precious", encoding="utf-8")
    Path("link").symlink_to("mine")
    if output == "other":  # a folder of another of our commands
        other = COMMANDS["report" if words is COMMANDS["dataset"] else "dataset"]
        assert main(other("other")) == 0
    before = state(Path())

    assert main(words(output)) == 2

    assert "Traceback" not in capsys.readouterr().err
    assert state(Path()) == before


@every_command
def test_neighbours_with_other_endings_stay(run: Path, words: Callable[[str], list[str]]) -> None:
    for name in ("out.partial", "out.old", ".out.skillmix-mine"):
        thesis(Path(name))

    for _ in range(2):
        assert main(words("out")) == 0

    assert all((Path(name) / "thesis.tex").is_file() for name in ("out.partial", "out.old", ".out.skillmix-mine"))
    left = {path.name for path in Path().iterdir()}
    assert left == {"out", "out.partial", "out.old", ".out.skillmix-mine", "runs", "texts.yaml"}


@every_command
def test_our_own_folder_is_replaced_unless_something_was_put_into_it(
    run: Path, words: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").mkdir()  # an empty one is no loss
    assert main(words("out")) == 0
    assert main(words("out")) == 0
    (Path("out") / "notes").mkdir()
    (Path("out") / "notes" / "mine.txt").write_text("precious", encoding="utf-8")
    before = state(Path("out"))

    assert main(words("out")) == 2

    assert "notes/mine.txt" in capsys.readouterr().err
    assert state(Path("out")) == before


def test_the_data_set_of_a_step_is_replaced_by_that_step_alone(run: Path) -> None:
    assert main(["dataset", "texts", "--k", "1"]) == 0
    made = run / "d1" / "dataset"
    made.parent.mkdir()
    (run / "dataset").rename(made)
    before = state(made)

    assert main(["dataset", "texts", "--k", "1", "--writers", "w", "--output", str(made)]) == 2

    assert state(made) == before


def test_a_mark_in_name_only_is_no_mark(in_folder: Path) -> None:
    for name, content in (("a", "[]"), ("b", '{"kind": "model"}'), ("c", "not JSON")):
        (in_folder / name).mkdir()
        (in_folder / name / "skillmix.json").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match="is not a data set"):
            require_replaceable(in_folder / name, DATASET)
    (in_folder / "d").mkdir()
    (in_folder / "d" / "skillmix-report").write_text("my report", encoding="utf-8")
    with pytest.raises(UserError, match="is not a report"):
        require_replaceable(in_folder / "d", REPORT)


def dataset_in(folder: Path, content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "skillmix.json").write_text(json.dumps({"kind": "dataset"}), encoding="utf-8")
    (folder / "train.jsonl").write_text(content, encoding="utf-8")


def test_an_error_while_writing_leaves_the_old_folder(in_folder: Path) -> None:
    dataset_in(in_folder / "out", "old")

    with pytest.raises(RuntimeError), replacing(in_folder / "out", DATASET) as new:
        dataset_in(new, "new")
        raise RuntimeError

    assert (in_folder / "out/train.jsonl").read_text(encoding="utf-8") == "old"
    assert [path.name for path in in_folder.iterdir()] == ["out"]


def test_what_was_put_there_meanwhile_is_not_replaced(in_folder: Path) -> None:
    with pytest.raises(UserError, match="is not a data set"), replacing(in_folder / "out", DATASET) as new:
        dataset_in(new, "new")
        thesis(in_folder / "out")

    assert (in_folder / "out/thesis.tex").is_file()


@pytest.mark.parametrize("moment", ["while writing", "between the renames"])
def test_what_a_killed_process_left_is_removed_by_the_next_and_the_old_folder_comes_back(
    in_folder: Path, moment: str
) -> None:
    dataset_in(in_folder / "out", "old")
    child = os.fork()
    if child == 0:  # pragma: no cover
        writing = replacing(in_folder / "out", DATASET)
        new = writing.__enter__()
        dataset_in(new, "half")
        if moment == "between the renames":
            (in_folder / "out").rename(new.with_name("old"))
        os._exit(9)
    os.waitpid(child, 0)
    assert len(list(in_folder.iterdir())) == (2 if moment == "while writing" else 1)

    with pytest.raises(RuntimeError), replacing(in_folder / "out", DATASET) as new:
        raise RuntimeError  # nothing new: the old one must be there

    assert (in_folder / "out/train.jsonl").read_text(encoding="utf-8") == "old"
    assert [path.name for path in in_folder.iterdir()] == ["out"]


def test_a_workshop_in_use_is_left_to_its_process(in_folder: Path) -> None:
    with replacing(in_folder / "out", DATASET) as first:
        dataset_in(first, "first")
        with replacing(in_folder / "out", DATASET) as second:
            dataset_in(second, "second")
        assert (first / "train.jsonl").read_text(encoding="utf-8") == "first"

    assert (in_folder / "out/train.jsonl").read_text(encoding="utf-8") == "first"


@pytest.mark.parametrize("kind", [DATASET, REPORT, MODEL], ids=lambda kind: kind.name)
def test_a_new_folder_needs_no_mark(in_folder: Path, kind: FolderKind) -> None:
    with replacing(in_folder / "deep/er/out", kind) as new:
        thesis(new)

    assert (in_folder / "deep/er/out/thesis.tex").is_file()


def test_a_model_is_never_replaced(in_folder: Path) -> None:
    (in_folder / "model").mkdir()
    (in_folder / "model/skillmix.json").write_text('{"kind": "model"}', encoding="utf-8")

    with pytest.raises(UserError), replacing(in_folder / "model", MODEL) as new:
        new.mkdir()


def test_only_checkpoints_are_removed_after_training(in_folder: Path) -> None:
    folder = in_folder / "checkpoints"
    (folder / "step-00000001").mkdir(parents=True)
    (folder / "step-00000001/state.json").touch()
    (folder / "step-00000002.partial").mkdir()
    thesis(folder / "step-by-step")

    remove_checkpoints(folder)

    assert [path.name for path in folder.iterdir()] == ["step-by-step"]


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_an_export_replaces_only_an_export_of_its_kind(
    run: Path, file_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def exported(what: str, output: str) -> int:
        return main(["export", "texts", "--what", what, "--format", file_format, "--output", output])

    mine, votes = f"mine.{file_format}", f"votes.{file_format}"
    Path(mine).write_text('{"messages": []}\n', encoding="utf-8")
    Path(f"{votes}.partial").write_text("precious", encoding="utf-8")
    Path(f"folder.{file_format}").mkdir()

    assert exported("votes", votes) == exported("votes", votes) == 0
    before = state(Path())
    assert [exported("texts", votes), exported("votes", mine), exported("votes", f"folder.{file_format}")] == [2, 2, 2]

    assert state(Path()) == before
    assert "is not an export of votes" in capsys.readouterr().err
