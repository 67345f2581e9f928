"""Names of held-out skills in other texts, and files of combinations that no data set may hold."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmix.catalog.combinations import combination_of
from skillmix.datasets.corpus import words_of
from skillmix.datasets.leakage import NameFinder, combinations_in
from skillmix.errors import UserError

SKILLS = ("red herring", "pun", "cliché", "one's own (fallacy)", "self-serving bias", "Occam's razor")
BITS = ("red", "Red", "herring", "herrings", "pun", "PUN", "punt", "clichÉ", "cliché", "one’s", "one's", "own", "self")
BETWEEN = (" ", "—", "-", "’", "'", "é", "_", ", ", "\n")
TEXTS = st.lists(st.sampled_from((*BITS, "serving", "bias", "Occam's", "razor", *BETWEEN, *BETWEEN))).map("".join)


def plainly(text: str) -> set[str]:
    words = words_of(text)
    names = {skill: words_of(skill.partition(" (")[0]) for skill in SKILLS}
    return {skill for skill, name in names.items() if any(words[p : p + len(name)] == name for p in range(len(words)))}


@given(TEXTS)
def test_every_name_in_a_text_is_found_and_nothing_else(text: str) -> None:
    assert NameFinder(SKILLS).names_in(text) == plainly(text)


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_combinations_are_known_by_their_ids(tmp_path: Path, suffix: str) -> None:
    one = {"skills": ["metaphor", "red herring"], "topic": "Sewing"}
    path = tmp_path / f"found.{suffix}"
    path.write_text(json.dumps([one] if suffix == "json" else one), encoding="utf-8")

    assert list(combinations_in(path)) == [combination_of(one["skills"], "Sewing").id]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"skills": ["metaphor"], "topic": None},
        {"skills": ["metaphor"], "topic": ""},
        {"skills": [None], "topic": "Sewing"},
        {"skills": "metaphor", "topic": "Sewing"},
        {"skills": {"metaphor": 1}, "topic": "Sewing"},
        {"skills": ["metaphor"]},
        ["metaphor"],
        None,
    ],
)
def test_a_name_that_is_no_text_is_refused_instead_of_barring_nothing(tmp_path: Path, wrong: object) -> None:
    path = tmp_path / "found.json"
    path.write_text(json.dumps([wrong]), encoding="utf-8")

    with pytest.raises(UserError, match="contains no combinations"):
        list(combinations_in(path))
