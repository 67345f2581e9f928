"""Tasks of BIG-bench as calibration sets; the tasks here are synthetic and have the same form."""

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

import skillmix
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.validation import known_texts
from skillmix.validation.known_texts import bigbench_set, bigbench_table

CATALOG = load_catalog("paper")
PLACE = "bigbench-9.9/bigbench/benchmark_tasks"


def example(text: str, right: str, *wrong: str) -> dict[str, object]:
    return {"input": text, "target_scores": {right: 1, **dict.fromkeys(wrong, 0)}}


FALLACIES: list[dict[str, object]] = [
    example("Respond 'Valid' or 'Invalid' as appropriate. My neighbour hums, so it will rain.", "Invalid", "Valid"),
    example("Respond 'Valid' or 'Invalid' as appropriate. All oaks are trees, so this oak is one.", "Valid", "Invalid"),
    example("Respond 'Valid' or 'Invalid' as appropriate. My neighbour hums, so it will rain.", "Invalid", "Valid"),
    example("Respond 'Valid' or 'Invalid' as appropriate. Two labels.", "Valid", "Invalid"),
    example("Respond 'Valid' or 'Invalid' as appropriate. Two labels.", "Invalid", "Valid"),
    {"input": 7, "target_scores": {"Valid": 1}},
    {"input": "no scores"},
]


def write_task(folder: Path, task: str, examples: list[dict[str, object]]) -> Path:
    file = folder / task / "task.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"name": task, "examples": examples}), encoding="utf-8")
    return folder


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def test_right_answers_become_labels_and_contradictory_ones_none(tmp_path: Path) -> None:
    write_task(tmp_path, "logical_fallacy_detection", FALLACIES)

    made = bigbench_set("logical_fallacy_detection", CATALOG, source=tmp_path)

    assert made.name == "bigbench:logical_fallacy_detection"
    assert [(text.skill, text.text, text.labels) for text in made.texts] == [
        ("fallacy", "My neighbour hums, so it will rain.", (True, None, None)),
        ("fallacy", "All oaks are trees, so this oak is one.", (False, None, None)),
    ]


def test_texts_may_be_the_answers_to_choose_from(tmp_path: Path) -> None:
    choices = example("Which is odd?", "He wrote a letter.", "Her words were knives.", "The plan took root.")
    write_task(tmp_path, "identify_odd_metaphor", [choices])

    made = bigbench_set("identify_odd_metaphor", CATALOG, source=tmp_path)

    assert {(text.text, text.shows) for text in made.texts} == {
        ("Her words were knives.", True),
        ("The plan took root.", True),
    }


def test_one_task_may_show_several_skills(tmp_path: Path) -> None:
    names = ("Metaphor", "Hyperbole", "Oxymoron")
    examples = [example(f"A text with the label {name}.", name, *(n for n in names if n != name)) for name in names]
    write_task(tmp_path, "figure_of_speech_detection", examples)

    made = bigbench_set("figure_of_speech_detection", CATALOG, source=tmp_path)

    shown = {(text.skill, text.text.split()[-1]) for text in made.texts if text.shows}
    assert shown == {("metaphor", "Metaphor."), ("hyperbole", "Hyperbole."), ("oxymoron", "Oxymoron.")}


@pytest.mark.parametrize("place", ["", "benchmark_tasks", "bigbench/benchmark_tasks", PLACE])
def test_a_folder_may_be_the_package_or_hold_it(tmp_path: Path, place: str) -> None:
    write_task(tmp_path / place, "logical_fallacy_detection", FALLACIES)

    assert len(bigbench_set("logical_fallacy_detection", CATALOG, source=tmp_path).texts) == 2


def test_an_archive_is_read_without_writing_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps({"examples": FALLACIES}).encode()
    source = tmp_path / "bigbench-9.9.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        add(archive, "../../outside.txt", b"never written")
        add(archive, "/absolute.txt", b"never written")
        add(archive, "bigbench-9.9/other/logical_fallacy_detection/task.json", b"another file")
        add(archive, f"{PLACE}/logical_fallacy_detection/task.json", content)
    monkeypatch.chdir(tmp_path)

    made = bigbench_set("logical_fallacy_detection", CATALOG, source=source)

    assert len(made.texts) == 2
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_a_link_in_the_place_of_a_task_is_not_followed(tmp_path: Path) -> None:
    source = tmp_path / "bigbench.tar"
    with tarfile.open(source, "w") as archive:
        link = tarfile.TarInfo(f"{PLACE}/implicatures/task.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)

    with pytest.raises(UserError, match="does not contain the task"):
        bigbench_set("implicatures", CATALOG, source=source)


@pytest.mark.parametrize("limit", ["_LARGEST_TASK", "_LARGEST_ARCHIVE"])
def test_an_archive_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    source = tmp_path / "bigbench.tar"
    with tarfile.open(source, "w") as archive:
        add(archive, f"{PLACE}/implicatures/task.json", b" " * 5000)
    monkeypatch.setattr(known_texts, limit, 1000)

    with pytest.raises(UserError, match="larger than the package's own files"):
        bigbench_set("implicatures", CATALOG, source=source)


@pytest.mark.parametrize("content", [b"no archive", b"\x1f\x8b\x08\x00broken", b""])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "bigbench.tar.gz"
    source.write_bytes(content)

    with pytest.raises(UserError, match="cannot be read as an archive"):
        bigbench_set("implicatures", CATALOG, source=source)


@pytest.mark.parametrize("content", ["{", "[]", '{"examples": 7}', '{"examples": [{"input": "x"}]}'])
def test_a_task_in_another_form_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "implicatures").mkdir()
    (tmp_path / "implicatures" / "task.json").write_text(content, encoding="utf-8")

    with pytest.raises(UserError, match="The task implicatures"):
        bigbench_set("implicatures", CATALOG, source=tmp_path)


def test_a_task_that_fits_no_skill_is_refused_with_the_reason_and_the_tasks_that_fit() -> None:
    with pytest.raises(UserError, match="the catalog has no skill of irony") as error:
        bigbench_set("irony_identification", CATALOG)

    assert error.value.hint is not None and "implicatures" in error.value.hint


def test_every_row_of_the_table_names_a_skill_of_the_catalogue_and_a_text_it_shows() -> None:
    rows = bigbench_table().tasks

    assert {CATALOG.skill(row.skill).name for row in rows} == {row.skill for row in rows}
    assert all(row.shows or row.lacks for row in rows)
    assert not any(row.shows & row.lacks for row in rows)
    assert all(row.pattern is None or "text" in re.compile(row.pattern).groupindex for row in rows)


def test_a_grader_can_be_calibrated_on_a_task_and_gets_rates_for_the_skill_alone(in_folder: Path) -> None:
    write_task(in_folder / "tasks", "logical_fallacy_detection", FALLACIES)

    made = skillmix.calibrate("scripted:grader", set="bigbench:logical_fallacy_detection", bigbench=in_folder / "tasks")

    assert made.run.name == "calibrate-bigbench-logical_fallacy_detection-scripted-grader"
    assert [row.units for row in made.card.by_kind if row.criterion == "skill"] == [2]
    assert [row.criterion for row in made.card.by_kind] == ["skill"]
