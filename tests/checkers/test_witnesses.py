"""Pairs of skills can be shown in one sentence: somebody wrote such sentences, and code gives them full marks."""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from skillmix.catalog.files import load_catalog
from skillmix.grading.answers import RULES, count_sentences, names_skill, plain_answer
from skillmix.grading.points import decide_points, text_score
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.verdicts import RulesGrader, reading_of

WITNESSES: Final[list[dict[str, Any]]] = yaml.safe_load(
    (Path(__file__).parent / "witnesses.yaml").read_text(encoding="utf-8")
)


@cache
def grader() -> RulesGrader:
    return RulesGrader(load_catalog("verifiable"))


def test_there_are_enough_pairs_and_every_skill_is_in_some() -> None:
    catalog = load_catalog("verifiable")
    pairs = {frozenset(witness["skills"]) for witness in WITNESSES}
    uses = Counter(skill for pair in pairs for skill in pair)

    assert len(pairs) >= 150
    assert all(len(pair) == 2 for pair in pairs)
    assert uses.keys() <= {skill.name for skill in catalog.skills}
    assert {skill: uses[skill] for skill in catalog.partition().side("all").skills if uses[skill] < 5} == {}
    assert {witness["topic"] for witness in WITNESSES} <= set(catalog.topics)


@pytest.mark.parametrize("witness", WITNESSES, ids=lambda witness: " + ".join(witness["skills"]))
@pytest.mark.parametrize("rules", RULES)
def test_the_text_earns_full_marks(witness: dict[str, Any], rules: str) -> None:
    skills, topic, text = witness["skills"], witness["topic"], witness["text"]

    reading = reading_of(grader().verdict(text, skills=skills, topic=topic), skills)
    points = decide_points(rubric_of(skills, topic), plain_answer(text), [reading], rounds=1, rules=RULES[rules])

    assert text_score(points, "full_marks") == 1.0, (reading, points)
    assert count_sentences(text) == 1
    assert not any(names_skill(text, skill) for skill in skills)
