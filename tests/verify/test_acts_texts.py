"""Texts that show each skill of argument, quantity, time, place and social acts, and near misses that do not."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import skillmix
from skillmix.core.text_rules import names_skill
from skillmix.verify import argument, places, quantity, relations, social, timing
from skillmix.verify.passage import Checker, passage_of

MODULES: Final = (argument, relations, quantity, timing, places, social)
CHECKERS: Final[dict[str, Checker]] = {name: check for module in MODULES for name, check in module.CHECKERS.items()}
SKILLS: Final[list[dict[str, str]]] = yaml.safe_load(
    (Path(skillmix.__file__).parent / "catalogs" / "verifiable" / "skills-acts.yaml").read_text(encoding="utf-8")
)
TEXTS: Final[dict[str, dict[str, list[Any]]]] = {
    skill: texts
    for module in MODULES
    for skill, texts in yaml.safe_load(
        (Path(__file__).parent / "texts" / f"{module.__name__.rpartition('.')[2]}.yaml").read_text(encoding="utf-8")
    ).items()
}
HOSTILE: Final = {
    "cue words": "if so either or then from to by as is to than twice first last while was being left right stop never "
    * 900,
    "commas": "if it is so, " * 8000,
    "one long word": "a" * 100_000,
    "numbers": "1 " * 50_000,
    "number words": "one hundred and " * 6500,
    "digits": "1" * 100_000,
    "marks": ",;:?!" * 20_000,
    "no spaces": "if,so-1" * 14_000,
    "thanks": "thank you for i promise to be sorry don't stop could you please " * 1600,
    "places": "from the house past the mill over the hill through the door behind the left of the right of the " * 1000,
    "times": "from five to five by the end of the end of must have to " * 1800,
    "sorry, sorry": "sorry, x, " * 10_000,
    "actions": "was running as x, " * 5500,
    "warnings": "don't a, b, " * 8000,
    "concessions": "although a b, c, " * 5800,
    "emoji": "🙂 if 🙂 so 🙂 " * 8000,
    "than": "one more than two times as many as three out of four " * 1900,
}


def shown() -> Iterator[tuple[str, str]]:
    for skill, texts in TEXTS.items():
        for text in texts["shown"]:
            yield skill, text


def not_shown() -> Iterator[tuple[str, str]]:
    for skill, texts in TEXTS.items():
        for entry in texts["not_shown"]:
            yield skill, entry["text"] if isinstance(entry, dict) else entry


@pytest.mark.parametrize(("skill", "text"), [*shown()])
def test_text_shows_its_skill(skill: str, text: str) -> None:
    span = CHECKERS[skill](passage_of(text))

    assert span is not None
    assert 0 <= span.start < span.end <= len(text)
    assert not names_skill(text, skill)


@pytest.mark.parametrize(("skill", "text"), [*not_shown()])
def test_near_miss_does_not(skill: str, text: str) -> None:
    assert CHECKERS[skill](passage_of(text)) is None


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill["name"])
def test_example_shows_its_skill_without_naming_it(skill: dict[str, str]) -> None:
    assert CHECKERS[skill["name"]](passage_of(skill["example"])) is not None
    assert not names_skill(skill["example"], skill["name"])
    assert len(skill["example"].split()) <= 30


def test_each_skill_has_a_checker_and_enough_texts() -> None:
    assert [skill["name"] for skill in SKILLS] == list(CHECKERS) == list(TEXTS)
    for texts in TEXTS.values():
        assert len(texts["shown"]) >= 6
        assert len(texts["not_shown"]) >= 6
        assert sum(isinstance(entry, dict) and entry["cue"] for entry in texts["not_shown"]) >= 3


@pytest.mark.parametrize("text", ["", " ", "?", "if", "🙂", "\0", "1", "one", "if if if", "'", "as", "İf so, İ"])
def test_small_texts_are_no_trouble(text: str) -> None:
    passage = passage_of(text)

    assert all(check(passage) is None for check in CHECKERS.values())


SCRAPS: Final = sorted(
    {scrap for _, text in (*shown(), *not_shown()) for scrap in text.split(" ")}
    | {",", ";", ".", "?", "-", "three-two-one"}
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(SCRAPS), max_size=25).map(" ".join))
def test_scraps_of_the_texts_are_no_trouble(text: str) -> None:
    passage = passage_of(text)

    for check in CHECKERS.values():
        span = check(passage)
        assert span is None or 0 <= span.start < span.end <= len(text)


@pytest.mark.parametrize("text", [*HOSTILE.values()], ids=[*HOSTILE])
def test_no_checker_is_slow_on_a_hostile_text(text: str) -> None:
    passage = passage_of(text)
    assert passage.pieces is not None
    for skill, check in CHECKERS.items():
        start = time.perf_counter()

        check(passage)

        assert time.perf_counter() - start < 1, skill
