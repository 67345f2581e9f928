"""The shipped set for the catalog `paper`: complete, original, and checked by readers who saw no labels."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from skillmix.files import read_yaml
from skillmix.grading.answers import count_sentences, names_skill
from skillmix.validation.known_texts import FOLDER, KnownText, load_set
from tests.conftest import SHARED
from tests.validation.made_sets import CATALOG

CHECKS = FOLDER / "paper" / "checks"
TEXTS = load_set("paper", CATALOG).texts
LONGEST_SHARED = 5
"""The most consecutive words that a text may share with a definition or an example."""


def is_plain(text: KnownText) -> bool:
    return text.on_topic is True and text.makes_sense is True


def test_every_skill_has_two_texts_that_show_it_and_two_that_nearly_do() -> None:
    counts = Counter((text.skill, text.shows) for text in TEXTS if is_plain(text))

    assert counts == {(skill.name, shows): 2 for skill in CATALOG.skills for shows in (True, False)}
    assert counts.total() == 416


def test_at_least_forty_texts_are_off_topic_or_make_no_sense() -> None:
    off = Counter(text.labels for text in TEXTS if not is_plain(text))

    assert off[True, False, True] >= 20
    assert off[True, True, False] >= 20
    assert off.total() >= 40


def test_every_text_has_one_or_two_sentences() -> None:
    assert {count_sentences(text.text) for text in TEXTS} == {1, 2}


def test_no_text_names_its_skill() -> None:
    assert [text.text for text in TEXTS if names_skill(text.text, text.skill)] == []


def test_no_text_stands_twice() -> None:
    folded = Counter(" ".join(text.text.casefold().split()) for text in TEXTS)

    assert folded.most_common(1)[0][1] == 1


def test_every_label_has_a_reason() -> None:
    assert [text.text for text in TEXTS if not text.why.strip()] == []


def test_no_text_copies_a_definition_or_an_example_of_the_catalogue() -> None:
    sources = [words for skill in CATALOG.skills for words in (skill.definition, skill.example)]

    assert shared_words(sources) == []


def test_no_text_copies_a_definition_or_an_example_of_the_paper() -> None:
    file = SHARED / "paper" / "skills.json"
    if not file.is_file():
        pytest.skip("the paper's own list of skills is not here")

    assert shared_words(strings_in(json.loads(file.read_text(encoding="utf-8")))) == []


def test_the_check_for_copies_finds_a_copy() -> None:
    copied = TEXTS[0].text

    assert shared_words([f"As they say: {copied}"])


def shared_words(sources: Iterable[str]) -> list[str]:
    """Return the runs of words that a text shares with a source."""
    size = LONGEST_SHARED + 1
    known = {run for source in sources for run in runs_of_words(source, size)}
    return sorted({" ".join(run) for text in TEXTS for run in runs_of_words(text.text, size) if run in known})


def runs_of_words(text: str, size: int) -> list[tuple[str, ...]]:
    words = re.findall(r"[\w']+", text.casefold())
    return [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]


def strings_in(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for part in value.values() for text in strings_in(part)]
    if isinstance(value, list):
        return [text for part in value for text in strings_in(part)]
    return [value] if isinstance(value, str) else []


def rows_of(name: str) -> list[dict[str, Any]]:
    rows = read_yaml(CHECKS / f"{name}.yaml")
    assert isinstance(rows, list)
    return rows


@pytest.mark.parametrize("reader", ["other-author", "third-reader"])
def test_a_reader_checked_every_text_once(reader: str) -> None:
    checked = Counter(row["id"] for row in rows_of(reader))

    assert checked == Counter(text.id for text in TEXTS)
    assert {row[criterion] for row in rows_of(reader) for criterion in ("skill", "topic", "sense")} <= {
        *("yes", "no", "unsure")
    }


def test_the_list_of_disagreements_has_every_answer_that_differs_from_a_label() -> None:
    by_id = {text.id: text for text in TEXTS}
    differing = {
        (row["id"], reader, criterion, row[criterion])
        for reader in ("other-author", "third-reader")
        for row in rows_of(reader)
        for criterion, label in zip(("skill", "topic", "sense"), by_id[row["id"]].labels, strict=True)
        if row[criterion] != ("yes" if label else "no")
    }

    listed = rows_of("disagreements")

    assert {(row["id"], row["reader"], row["criterion"], row["read"]) for row in listed} == differing
    assert all(by_id[row["id"]].text == row["text"] for row in listed)


def test_exactly_the_texts_with_a_disagreement_are_disputed() -> None:
    disputed = {text.id for text in TEXTS if text.is_disputed}

    assert disputed == {row["id"] for row in rows_of("disagreements")}


def test_the_page_on_calibration_counts_the_texts_and_lists_the_disagreements() -> None:
    page = (Path(__file__).parents[2] / "docs/graders.md").read_text(encoding="utf-8")
    numbers = Counter(text.labels for text in TEXTS)

    assert f"`paper` has {len(TEXTS)} texts" in page
    assert re.findall(r"^\| (\d+) \|", page, re.MULTILINE) == [
        str(numbers[labels])
        for labels in ((True, True, True), (False, True, True), (True, False, True), (True, True, False))
    ]
    assert all(row["text"] in page for row in rows_of("disagreements"))
