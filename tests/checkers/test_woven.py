"""A skill is woven into the topic if the clauses that show it hold a topic word of its own."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import yaml

from skillmix.catalog.files import load_catalog
from skillmix.checkers.judge import Judge, clauses_of
from skillmix.checkers.passage import passage_of
from skillmix.checkers.sense import prompt_texts
from skillmix.runs.verdicts import judge_of, reading_of

WITNESSES = yaml.safe_load((Path(__file__).parent / "witnesses.yaml").read_text(encoding="utf-8"))


@cache
def judge() -> Judge:
    return judge_of(load_catalog("verifiable"))


def woven(text: str, skills: Sequence[str], topic: str = "Night trains") -> dict[str, bool]:
    return dict(judge().judge(text, skills=skills, topic=topic).woven)


def test_a_phrase_needs_the_topic_in_its_clause() -> None:
    skill = "measured direction"

    assert woven("The night train stopped two miles north of the bridge.", [skill]) == {skill: True}
    assert woven("The night train was late, and the farm lies two miles north of a mill.", [skill]) == {skill: False}
    assert woven("The night train was late and the farm lies two miles north of a mill.", [skill]) == {skill: False}


def test_a_span_to_the_end_of_the_sentence_does_not_borrow_the_topic_from_a_later_clause() -> None:
    skill = "giving thanks with a reason"
    text = "Thank you for carrying my bags; my aunt loves night trains."

    assert judge().judge(text, skills=[skill], topic="Night trains").evidence[skill] is not None
    assert woven(text, [skill]) == {skill: False}
    assert woven("Thank you for the ticket; my aunt loves soup.", [skill]) == {skill: True}


def test_a_figure_of_several_clauses_needs_the_topic_in_one_of_them() -> None:
    skill = "anaphora"

    assert woven("Some ran home, some slept on the train, and some went out.", [skill]) == {skill: True}
    assert woven("Some ran home, some sat down, and some went out; the train left.", [skill]) == {skill: False}


def test_a_later_occurrence_counts_too() -> None:
    skill = "epizeuxis"

    assert woven("It rained and rained and rained; trains, trains, trains went by.", [skill]) == {skill: True}


def test_each_skill_needs_a_word_of_its_own_and_the_name_is_one_word() -> None:
    skills = ["giving thanks with a reason", "giving a promise"]

    by_name = "Thank you for the night train, and I promise that I will write about trains at night."
    by_words = "Thank you for the train ticket, and I promise that I will sleep in my berth."

    assert sorted(woven(by_name, skills).values()) == [False, True]
    assert woven(by_words, skills) == dict.fromkeys(skills, True)


def test_a_skill_gives_way_to_one_that_has_only_that_word() -> None:
    skills = ["giving thanks with a reason", "giving a promise"]

    assert woven("Thank you for the train ticket, and I promise that I will wait for trains.", skills) == {
        "giving thanks with a reason": True,
        "giving a promise": True,
    }


def test_a_skill_that_is_not_shown_is_not_woven() -> None:
    verdict = judge().judge("The night train left.", skills=["simile"], topic="Night trains")

    assert verdict.woven == {"simile": False}
    assert verdict.is_woven(["simile"]) is False


def test_a_skill_without_a_checker_leaves_it_open() -> None:
    verdict = judge().judge("The train was as slow as a snail.", skills=["simile", "irony"], topic="Night trains")

    assert verdict.is_woven(["simile"]) is True
    assert verdict.is_woven(["simile", "irony"]) is None


def test_where_it_is_required_a_skill_beside_the_topic_earns_no_point() -> None:
    catalog = load_catalog("verifiable")
    strict = Judge(catalog.vocabulary, prompt_texts(catalog.skills), requires_woven=True)
    text, skills = "My aunt loves night trains and rails; he was as brave as a lion.", ["simile"]

    lenient, required = (j.judge(text, skills=skills, topic="Night trains") for j in (judge(), strict))

    assert reading_of(lenient, skills).points == (1.0, 1.0, 1.0, None)
    assert reading_of(required, skills).points == (0.0, 1.0, 1.0, None)
    assert required.reasons == {"simile": "not about the topic: no clause that shows it has a topic word of its own"}
    assert lenient.reasons == {}


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("The shop is open from nine until five.", 1),
        ("She packed socks and the big map.", 1),
        ("She packed socks and she left.", 2),
        ("Ann sang while Tom was asleep, so we went home.", 2),
        ("The train was late because the driver was ill.", 2),
    ],
)
def test_clauses_end_at_marks_and_before_a_new_subject_with_a_verb(text: str, clauses: int) -> None:
    assert len(clauses_of(passage_of(text))) == clauses


def test_the_figures_of_the_guide() -> None:
    texts = [judge().judge(w["text"], skills=w["skills"], topic=w["topic"]).is_woven(w["skills"]) for w in WITNESSES]

    assert (sum(map(bool, texts)), len(texts)) == (129, 175)
