"""Each checker finds its skill where a reader does, and not where only the cue words stand."""

from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import skillmix
from skillmix.checkers.passage import Passage, passage_of
from skillmix.checkers.registry import CHECKERS
from skillmix.grading.answers import count_sentences, names_skill
from tests.nasty_texts import takes_longer

TEXTS: Final = Path(__file__).parent / "texts"
CATALOG: Final = Path(skillmix.__file__).parent / "data" / "verifiable" / "skills.yaml"
SKILLS: Final[list[dict[str, str]]] = yaml.safe_load(CATALOG.read_text(encoding="utf-8"))


@cache
def texts() -> dict[str, dict[str, list[Any]]]:
    """Skill -> its texts, from all files."""
    merged: dict[str, dict[str, list[Any]]] = {}
    for path in sorted(TEXTS.glob("*.yaml")):
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert merged.keys().isdisjoint(read)
        merged |= read
    return merged


def text_of(entry: str | dict[str, Any]) -> str:
    return entry if isinstance(entry, str) else str(entry["text"])


SHOWN: Final = [(skill, text_of(entry)) for skill, both in texts().items() for entry in both["shown"]]
NOT_SHOWN: Final = [(skill, text_of(entry)) for skill, both in texts().items() for entry in both["not_shown"]]


def assert_within(passage: Passage, skill: str) -> None:
    span = CHECKERS[skill](passage)
    assert span is None or 0 <= span.start < span.end <= len(passage.text)


@pytest.mark.parametrize(("skill", "text"), SHOWN)
def test_shown_is_found(skill: str, text: str) -> None:
    passage = passage_of(text)
    span = CHECKERS[skill](passage)

    assert span is not None
    assert text[span.start : span.end].strip()
    assert_within(passage, skill)
    assert not names_skill(text, skill)


@pytest.mark.parametrize(("skill", "text"), NOT_SHOWN)
def test_near_miss_is_refused(skill: str, text: str) -> None:
    assert CHECKERS[skill](passage_of(text)) is None


@pytest.mark.parametrize("skill", texts())
def test_there_are_enough_texts(skill: str) -> None:
    both = texts()[skill]
    cues = [entry for entry in both["not_shown"] if isinstance(entry, dict) and entry.get("cue")]

    assert len(set(both["shown"])) >= 7
    assert len({text_of(entry) for entry in both["not_shown"]}) >= 7
    assert len(cues) >= 3


def test_every_skill_has_a_checker_and_texts() -> None:
    assert [skill["name"] for skill in SKILLS] == list(CHECKERS)
    assert set(CHECKERS) == set(texts())


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill["name"])
def test_example_shows_its_skill_in_one_sentence_without_naming_it(skill: dict[str, str]) -> None:
    example = skill["example"].strip()

    assert CHECKERS[skill["name"]](passage_of(example)) is not None
    assert count_sentences(example) == 1
    assert len(example.split()) <= 30
    assert not names_skill(example, skill["name"])


@pytest.mark.parametrize("text", ["", " ", "?", "if", "🙂", "\0", "1", "one", "'", "as", "İf so, İ"])
def test_small_texts_are_no_trouble(text: str) -> None:
    passage = passage_of(text)

    assert all(check(passage) is None for check in CHECKERS.values())


def test_a_word_three_times_shows_nothing_but_that() -> None:
    passage = passage_of("if if if")

    assert [name for name, check in CHECKERS.items() if check(passage)] == ["epizeuxis"]


PARTS: Final = (
    "\" “ ” ' ‘ ’ ( ) . , ; : ! ? … — – - -- ... and or the not but as a like if only isn't it no said paint painter"
    " painting I'll ＡＢ İ ß é 7 😀 is \n either neither dear you I wish were"
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PARTS.split(" ")), max_size=60).map(" ".join)))
def test_no_text_breaks_a_checker(text: str) -> None:
    passage = passage_of(text)

    for skill in CHECKERS:
        assert_within(passage, skill)


SCRAPS: Final = sorted(
    {scrap for _, text in (*SHOWN, *NOT_SHOWN) for scrap in text.split(" ")}
    | {",", ";", ".", "?", "-", "three-two-one"}
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(SCRAPS), max_size=25).map(" ".join))
def test_scraps_of_the_texts_are_no_trouble(text: str) -> None:
    passage = passage_of(text)

    for skill in CHECKERS:
        assert_within(passage, skill)


HOSTILE: Final = {
    "one word": "a" * 100_000,
    "letters": "a b " * 25_000,
    "different words": " ".join(
        f"w{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676 % 26)}" for n in range(20_000)
    ),
    "commas": "a," * 50_000,
    "members": "and one two, " * 7_700,
    "brackets": "(" * 100_000,
    "closed brackets": "(it is so)" * 10_000,
    "quotes": '"a," he said "' * 7_000,
    "single quotes": "'a,' he said '" * 7_000,
    "dashes": "-- it is so " * 8_000,
    "ellipses": "..." * 33_000,
    "blanks": " " * 100_000,
    "as": "as as as " * 11_000,
    "as long words": "as " + "abc " * 25_000,
    "not but": "not but " * 12_500,
    "not a but": "not a x y but a " * 6_000,
    "either": "either one " * 9_000,
    "same family": "".join(f"paint{'abcdefghijklmnopqrstuvwxyz'[n % 26]}{n % 7 * 'x'} " for n in range(12_000)),
    "sentences": "A b. " * 20_000,
    "no": ", no, " * 16_000,
    "tags": ", is it " * 12_000,
    "the best": "the best " * 11_000,
    "is a": "a is a " * 14_000,
    "if only": "if only " * 12_000,
    "colons": "a b c: d, e " * 8_000,
    "oh": "oh dear, " * 11_000,
    "cue words": "if so either or then from to by as is to than twice first last while was being left right stop never "
    * 900,
    "commas of conditions": "if it is so, " * 8000,
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


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_takes_no_longer_than_a_second(kind: str) -> None:
    passage = passage_of(HOSTILE[kind])
    _ = passage.pieces, passage.words, passage.lower

    for skill, checker in CHECKERS.items():
        assert not takes_longer(partial(checker, passage), seconds=1), skill


def test_evidence_ends_with_a_whole_word() -> None:
    for skill, text in SHOWN:
        span = CHECKERS[skill](passage_of(text))

        assert span is not None
        edges = text[max(0, span.start - 1) : span.start + 1], text[span.end - 1 : span.end + 1]
        assert not any(len(edge) == 2 and edge.isalpha() for edge in edges), (skill, text[span.start : span.end])
