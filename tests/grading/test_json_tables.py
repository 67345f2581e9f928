"""JSON is read as tables are; `tests/golden/replies.yaml` has the readings of whole replies."""

import time

import pytest

from skillmix.grading.reader import read_grades, words_about
from skillmix.grading.tables import with_json_as_tables
from skillmix.prompts.rubric import rubric_of

RUBRIC = rubric_of(["metaphor"], "Sewing")


@pytest.mark.parametrize(
    "reply",
    ["{", '{"a": ', '{"a": [1, 2', "no JSON {at all}", '["a", "b"]', '{"a": 1', "[{]", '[{"a": NaN]', "{'a': 1}", "[]"],
)
def test_what_is_no_json_stays(reply: str) -> None:
    assert with_json_as_tables(reply) == reply


@pytest.mark.parametrize("part", ['{"a":', '[{"a":[', '{"', "[{", '{"a":1},', '{"a":"', '[{"points":' + "9" * 5000])
def test_hostile_json_takes_little_time(part: str) -> None:
    begun = time.process_time()
    read_grades(RUBRIC, (part * 10_000)[:400_000])

    assert time.process_time() - begun < 5


def test_the_total_of_json_changes_no_point() -> None:
    reading = read_grades(RUBRIC, '{"metaphor": 1, "On topic": 0, "Makes sense": 0, "total": 3}')

    assert reading.points == (1.0, 0.0, 0.0, None)
    assert reading.notes == ("the total 3 differs from the sum of the points 1",)


def test_the_explanation_in_json_is_shown() -> None:
    reply = '[{"criterion": "metaphor", "points": 0, "explanation": "Nothing stands for anything else."}]'

    assert words_about(RUBRIC, 0, reply) == "Nothing stands for anything else."
