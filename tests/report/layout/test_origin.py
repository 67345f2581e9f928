"""The sentence about simulated students and graders."""

from dataclasses import replace

import pytest

from skillmix.report.page import simulated_models
from skillmix.report.records import Report
from tests.report.test_findings import cell
from tests.report.test_main_result import FACTS

SCRIPTED, SERVED = "scripted:student?skill=0.8", "openai:some-model"


@pytest.mark.parametrize(
    ("students", "grader", "sentence"),
    [
        ((SERVED, SERVED), "rules:", ""),
        (
            (SCRIPTED, SCRIPTED),
            "scripted:grader",
            "The students and the grader are simulated: scripted models with rates set in advance, "
            "not language models.",
        ),
        (
            (SERVED, SCRIPTED),
            "rules:",
            "The student b is simulated: a scripted model with rates set in advance, not a language model.",
        ),
        (
            (SERVED, SERVED),
            "scripted:grader",
            "The grader is simulated: a scripted model with rates set in advance, not a language model.",
        ),
        (
            (SERVED, "composer:"),
            "rules:",
            "The student b is code that composes texts from clauses, not a language model.",
        ),
        (
            (SCRIPTED, "composer:figures"),
            "rules:",
            "The student a is simulated: a scripted model with rates set in advance, not a language model. "
            "The student b is code that composes texts from clauses, not a language model.",
        ),
    ],
)
def test_scripted_models_are_called_simulated(students: tuple[str, str], grader: str, sentence: str) -> None:
    facts = replace(FACTS, students=dict(zip("ab", students, strict=True)), graders={"g": grader})
    report = Report(runs=(facts,), cells=(cell("a", 5, 10), cell("b", 5, 10)))

    assert simulated_models(report) == sentence
