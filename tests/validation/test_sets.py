"""Calibration sets as files: labels, faults, subsets."""

from pathlib import Path

import pytest

from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.validation.known_texts import load_set
from tests.validation.made_sets import CATALOG, entries, entry, write_set


def test_an_entry_gives_labels_for_skill_topic_and_sense(tmp_path: Path) -> None:
    texts = [entry(0), entry(1, shows=False), entry(2, off="topic"), entry(3, off="sense", disputed=True)]

    loaded = load_set(str(write_set(tmp_path / "mine.yaml", texts)), CATALOG)

    assert loaded.name == "mine"
    assert [text.labels for text in loaded.texts] == [
        (True, True, True),
        (False, True, True),
        (True, False, True),
        (True, True, False),
    ]
    assert [text.is_disputed for text in loaded.texts] == [False, False, False, True]


def test_the_key_off_needs_no_quotes_although_yaml_takes_it_for_false(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "- {skill: metaphor, topic: Sewing, text: Time is a thief., label: shows, off: topic}", encoding="utf-8"
    )

    assert load_set(str(file), CATALOG).texts[0].on_topic is False


def test_a_text_without_a_topic_has_a_label_for_the_skill_alone(tmp_path: Path) -> None:
    bare = {"skill": "metaphor", "text": "Time is a thief.", "label": "shows"}

    loaded = load_set(str(write_set(tmp_path / "mine.yaml", [bare])), CATALOG)

    assert loaded.texts[0].labels == (True, None, None)
    with pytest.raises(UserError, match="off needs a topic"):
        load_set(str(write_set(tmp_path / "mine.yaml", [bare | {"off": "sense"}])), CATALOG)


def test_names_may_be_short_and_in_any_case(tmp_path: Path) -> None:
    texts = [entry(0) | {"skill": "Anchoring", "topic": "sewing"}]

    loaded = load_set(str(write_set(tmp_path / "mine.yaml", texts)), CATALOG)

    assert (loaded.texts[0].skill, loaded.texts[0].topic) == ("anchoring (cognitive bias)", "Sewing")


def test_all_faults_of_all_files_are_one_error(tmp_path: Path) -> None:
    write_set(tmp_path / "a.yaml", [entry(0) | {"skill": "metaphr", "label": "perhaps", "lable": 1}, "text"])
    write_set(tmp_path / "b.yaml", [entry(1) | {"topic": "Sewin"}, entry(2), entry(2), entry(3) | {"text": " … "}])
    (tmp_path / "c.yaml").write_text("skill: metaphor", encoding="utf-8")

    with pytest.raises(UserError) as error:
        load_set(str(tmp_path), CATALOG)

    for words in (
        "a.yaml, entry 1: skill: No skill named 'metaphr' in catalog 'paper'. Did you mean \"metaphor\"?",
        "a.yaml, entry 1: label: 'perhaps' is not one of shows, near",
        'a.yaml, entry 1: lable: there is no such key. Did you mean "label"?',
        "a.yaml, entry 2: 'text' is not a mapping",
        "b.yaml, entry 1: topic: No topic named 'Sewin'",
        "b.yaml, entry 3: the same text occurs earlier",
        "b.yaml, entry 4: text: ",
        "c.yaml is not a list of texts, or is empty",
    ):
        assert words in error.value.message
    assert "has 8 faults" in error.value.message


def test_a_file_with_a_python_object_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("- !!python/object/apply:os.system [true]", encoding="utf-8")

    with pytest.raises(UserError, match="not valid YAML"):
        load_set(str(file), CATALOG)


def test_an_unknown_set_is_an_error_with_the_names_of_the_shipped_ones() -> None:
    with pytest.raises(UserError) as error:
        load_set("papers", CATALOG)

    assert error.value.hint is not None
    assert 'Did you mean "paper"?' in error.value.hint


def test_a_smaller_subset_is_part_of_a_larger_one_and_keeps_the_order(tmp_path: Path) -> None:
    whole = load_set(str(write_set(tmp_path / "mine.yaml", entries(60))), CATALOG)

    few, more = (whole.subset(size).texts for size in (10, 30))

    assert (len(few), len(more)) == (10, 30)
    assert set(few) < set(more) < set(whole.texts)
    assert [text for text in whole.texts if text in more] == list(more)
    assert whole.subset(1000).texts == whole.texts


def test_the_hash_of_a_set_changes_with_its_texts_and_its_labels(tmp_path: Path) -> None:
    changed = [[entry(0)], [entry(0) | {"label": "near"}], [entry(1)], [entry(0) | {"disputed": True}]]

    hashes = {load_set(str(write_set(tmp_path / "mine.yaml", texts)), CATALOG).content_hash() for texts in changed}

    assert len(hashes) == 4


@pytest.mark.parametrize(("text", "words"), [("", "is empty"), ("  ", "is empty"), ("…!", "has no letter or digit")])
def test_a_text_without_words_is_a_fault_in_plain_words(tmp_path: Path, text: str, words: str) -> None:
    file = write_set(tmp_path / "mine.yaml", [entry(0) | {"text": text}])

    with pytest.raises(UserError) as error:
        load_set(str(file), CATALOG)

    assert f"text: the text {words}" in error.value.message
    assert "small letters" not in error.value.message


def test_a_shipped_set_with_another_catalog_names_the_catalog_that_it_is_for() -> None:
    with pytest.raises(UserError) as error:
        load_set("paper", load_catalog("verifiable"))

    assert error.value.message.startswith("The calibration set paper is for the catalog paper; verifiable lacks")
    assert "--catalog paper" in str(error.value.hint)
