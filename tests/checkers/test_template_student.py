"""The template student mostly earns full marks without saying anything; woven full marks stop it."""

from functools import cache

import pytest

from skillmix.catalog.catalog import Setting
from skillmix.catalog.combinations import Draw, draw_combinations
from skillmix.catalog.files import load_catalog
from skillmix.checkers.template_student import FORMS, Form, TemplateStudent
from skillmix.grading.answers import RULES, plain_answer
from skillmix.grading.points import decide_points, text_score
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.verdicts import judge_of, reading_of

COMBINATIONS = 60


@cache
def student() -> TemplateStudent:
    catalog = load_catalog("verifiable")
    return TemplateStudent(catalog.templates, judge_of(catalog))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("setting", ["train", "held-out"])
@pytest.mark.parametrize("form", FORMS)
def test_it_often_has_full_marks_and_from_two_skills_on_they_are_not_woven(
    form: Form, setting: Setting, k: int
) -> None:
    pool = load_catalog("verifiable").pool(setting)
    full = woven = 0
    for combination in draw_combinations(Draw(pool, setting, k, 0), COMBINATIONS):
        skills, topic = combination.skills, combination.topic
        written = student().write(skills, topic, form)
        assert written is not None
        reading = reading_of(written.verdict, skills)
        answer = plain_answer(written.text)
        points = decide_points(rubric_of(skills, topic), answer, [reading], rounds=1, rules=RULES["default"])
        assert (text_score(points, "full_marks") == 1.0) == written.has_full_marks
        full += written.has_full_marks
        woven += written.has_full_marks and written.verdict.is_woven(skills) is True

    assert full >= 0.5 * COMBINATIONS
    assert k == 1 or woven <= 0.30 * COMBINATIONS


def test_a_catalogue_without_clauses_has_no_template_student() -> None:
    catalog = load_catalog("verifiable")

    assert TemplateStudent({}, judge_of(catalog)).write(["simile"], "Night trains") is None


def test_every_skill_of_the_catalogue_has_its_clauses() -> None:
    catalog = load_catalog("verifiable")

    assert list(catalog.templates) == [skill.name for skill in catalog.skills]
