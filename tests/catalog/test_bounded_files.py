"""Files that a user names are read up to a limit, and names have one too."""

import json
import os
from pathlib import Path

import pytest

from skillmix.calls import LONGEST_NAME, checked_name
from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.exchange.import_texts import import_texts
from skillmix.experiment.experiment import experiment_of
from skillmix.files import read_text, read_yaml

LONG = "a" * 100_000


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device")
@pytest.mark.parametrize(
    "words",
    [
        ["run", "/dev/zero"],
        ["run", "smoke", "--prices", "/dev/zero"],
        ["run", "smoke", "--set", "exclude=[file:/dev/zero]", "--dry-run"],
        ["import-texts", "/dev/zero", "--run", "x"],
    ],
)
def test_a_device_is_refused_at_once(words: list[str], in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "/dev/zero is not a regular file" in capsys.readouterr().err


def test_a_pipe_is_refused_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UserError, match="is not a regular file"):
        read_yaml(tmp_path / "pipe")


def test_a_file_above_the_limit_is_refused_and_one_at_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"\xef\xbb\xbf1\r\n2\r3\n")

    assert read_text(file, most=10) == "1\n2\n3\n"
    with pytest.raises(UserError, match="is larger than"):
        read_text(file, most=9)


def test_a_sparse_file_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "huge.yaml"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)

    with pytest.raises(UserError, match="is larger than 64 MiB"):
        read_yaml(file)


def test_names_have_a_maximum_length(tmp_path: Path) -> None:
    assert checked_name("a" * LONGEST_NAME, "run")
    with pytest.raises(UserError) as caught:
        checked_name(LONG, "run")
    assert len(caught.value.message) < 200

    document = {
        "name": LONG,
        "students": {LONG: {"model": "scripted:student"}},
        "graders": {LONG: {"model": "scripted:grader"}},
        "steps": [{"name": LONG, "stage": "evaluate", "students": ["x"], "graders": ["y"]}],
    }
    with pytest.raises(UserError) as caught:
        experiment_of(document, source="test")
    assert caught.value.message.count(f"has more than {LONGEST_NAME} characters") == 4


@pytest.mark.parametrize("key", ["student", "grader"])
def test_imported_texts_have_short_names(in_folder: Path, key: str) -> None:
    line: dict[str, object] = {"skills": ["metaphor"], "topic": "Sewing", "student": "s", "text": "A text."}
    line |= {"student": LONG} if key == "student" else {"gradings": {LONG: ["1"]}}
    Path("texts.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")

    with pytest.raises(UserError, match=f"is not a valid name for a {key}") as caught:
        import_texts(Path("texts.jsonl"), "mine", catalog="paper")
    assert len(caught.value.message) < 300


def test_skills_and_topics_have_short_names(tmp_path: Path) -> None:
    for name in ("skills", "topics", "partitions"):
        source = Path(load_catalog.__code__.co_filename).parents[1] / "data/paper" / f"{name}.yaml"
        (tmp_path / f"{name}.yaml").write_bytes(source.read_bytes())
    for name, entry in (("skills", "- {name: %s, category: c, definition: d, example: e}\n"), ("topics", "- %s\n")):
        with (tmp_path / f"{name}.yaml").open("a", encoding="utf-8") as file:
            file.write(entry % LONG)

    with pytest.raises(UserError) as caught:
        load_catalog(str(tmp_path))
    assert "has more than 500 characters" in caught.value.message
