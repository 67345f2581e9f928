"""Every point that a checker denies has a reason in plain words."""

import pytest

from skillmix.catalog.files import load_catalog
from skillmix.checkers import judge as verdict_module
from skillmix.checkers.judge import Judge, Verdict
from skillmix.checkers.registry import CHECKERS, LOOKS_FOR, why_not_shown
from skillmix.checkers.sense import prompt_texts
from skillmix.render import shortened
from tests.checkers.test_texts import NOT_SHOWN, SHOWN

CATALOG = load_catalog("verifiable")
JUDGE = Judge(CATALOG.vocabulary, prompt_texts(CATALOG.skills))
TEXT = "Every loaf must rest, every crust must crack, every baker must wait for the bread."


def judged(text: str, *skills: str, topic: str = "Sourdough bread") -> Verdict:
    return JUDGE.judge(text, skills=skills, topic=topic)


def test_every_skill_that_code_checks_has_words_for_what_is_looked_for() -> None:
    assert list(LOOKS_FOR) == list(CHECKERS)
    assert {skill.name for skill in CATALOG.skills} == set(LOOKS_FOR)
    assert len(set(LOOKS_FOR.values())) == len(LOOKS_FOR)
    assert all(20 <= len(words) <= 110 and words == words.strip(" .") for words in LOOKS_FOR.values())


@pytest.mark.parametrize("skill", CHECKERS)
def test_a_denied_skill_has_a_reason_and_a_granted_one_has_none(skill: str) -> None:
    for text in [text for name, text in NOT_SHOWN if name == skill]:
        reason = f"code found no passage that shows it; the check looks for {LOOKS_FOR[skill]}"
        assert judged(text, skill).reasons[skill] == reason
    for text in [text for name, text in SHOWN if name == skill]:
        assert skill not in judged(text, skill).reasons


def test_a_skill_of_another_package_has_a_general_reason() -> None:
    assert why_not_shown("my skill") == "code found no passage that shows it"


def test_a_text_with_all_points_has_no_reason() -> None:
    assert judged(TEXT, "anaphora").reasons == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Every ship must rest, every mast must crack, every sailor must wait.", "it has no word of the topic"),
        (
            "Every ship must rest, every Oven must crack, every oven must wait.",
            'it has one word of the topic, "Oven", where two are needed',
        ),
    ],
)
def test_the_words_of_the_topic_are_counted(text: str, reason: str) -> None:
    assert judged(text, "anaphora").reasons == {"topic": reason}


@pytest.mark.parametrize("count", [8, 9])
def test_a_copy_names_the_example_and_counts_its_words(count: int) -> None:
    words = CATALOG.skill("anaphora").example.split()
    text = f"{' '.join(words[:count])} loaf was good bread, and the crust was bad."

    assert judged(text).reasons == {"sense": f'{count} words in a row are copied from the example of "anaphora"'}


def test_a_copied_definition_is_named() -> None:
    text = "At least three different words close together begin with the bread in the oven."

    assert judged(text).reasons == {"sense": '10 words in a row are copied from the definition of "alliteration"'}


def test_reasons_are_worked_out_only_when_they_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def why(what: object, *_: object) -> str:
        asked.append(what if isinstance(what, str) else "topic")
        return "so"

    monkeypatch.setattr(verdict_module, "why_not_shown", why)
    monkeypatch.setattr(verdict_module, "topic_problem", why)

    verdict = judged("Ships sail.", "anaphora")

    assert verdict.evidence == {"anaphora": None} and verdict.topic is None
    assert asked == []
    assert verdict.reasons["anaphora"] == "so"
    assert asked == ["anaphora", "topic"]


@pytest.mark.parametrize("length", [59, 60, 61, 10_000])
def test_quoted_words_are_cut(length: int) -> None:
    assert len(shortened("o" * length)) == min(length, 60)
