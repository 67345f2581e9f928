"""Why code denied a point, apart from what the checkers find: no text, a named skill, too many sentences."""

from dataclasses import replace

import pytest

from skillmix.grading.answers import RULES, Answer, Rules
from skillmix.grading.points import decide_points, reasons_of
from skillmix.grading.reader import Reading
from skillmix.prompts.rubric import rubric_of

DEFAULT = RULES["default"]
SKILLS = ("metaphor", "accident (fallacy)", "red herring", "simile")


def reasons(text: str, k: int, *, rules: Rules = DEFAULT, status: str = "fine", votes: float = 1.0) -> dict[str, str]:
    """The reasons where every vote gives every point, unless told otherwise."""
    skills = SKILLS[:k]
    answer = Answer(text, status)  # type: ignore[arg-type]
    reading = Reading((*[votes] * (k + 2), None), None)
    points = decide_points(rubric_of(skills, "Sewing"), answer, [reading], rounds=1, rules=rules)
    return reasons_of(points, skills, answer, rules, {})


@pytest.mark.parametrize(
    ("k", "sentences", "reason"),
    [
        (1, 2, "it has 2 sentences where 1 is allowed"),
        (2, 3, "it has 3 sentences where 1 is allowed"),
        (3, 3, "it has 3 sentences where 2 are allowed"),
        (4, 5, "it has 5 sentences where 3 are allowed"),
    ],
)
def test_sentences_are_counted_against_the_limit(k: int, sentences: int, reason: str) -> None:
    assert reasons("The night is long. " * sentences, k) == {"length": reason}


def test_a_text_within_the_limit_has_no_reason() -> None:
    assert reasons("The night is long. The day is not.", 3) == {}


def test_sentences_are_counted_by_the_chosen_rules() -> None:
    text = "We eat fruit, e.g. Apples and pears."

    assert reasons(text, 1) == {}
    assert reasons(text, 1, rules=RULES["paper"]) == {"length": "it has 2 sentences where 1 is allowed"}


def test_a_named_skill_is_the_reason_under_every_grader() -> None:
    found = reasons("What an accident, a metaphor for the night.", 2)

    assert found == {"metaphor": 'it names the skill "metaphor"', "accident (fallacy)": 'it names the skill "accident"'}


def test_a_named_skill_is_the_reason_whatever_a_checker_found() -> None:
    answer = Answer("It is a simile.", "fine")

    found = reasons_of((False, True, True, True), ["simile"], answer, DEFAULT, {"simile": "nothing shows it"})

    assert found == {"simile": 'it names the skill "simile"'}


def test_the_reason_of_a_checker_is_given_for_a_denied_point_alone() -> None:
    answer = Answer("It is night.", "fine")
    found = {"simile": "nothing shows it", "topic": "it has no word of the topic"}

    assert reasons_of((False, True, True, True), ["simile"], answer, DEFAULT, found) == {"simile": "nothing shows it"}


@pytest.mark.parametrize(
    ("status", "rules", "reason"),
    [
        ("empty", DEFAULT, "the student wrote no text"),
        ("refused", DEFAULT, "the student refused to answer, or a filter blocked the reply"),
        ("no marker", replace(DEFAULT, missing_marker="zero"), 'the reply has no "Answer:"'),
    ],
)
def test_a_text_that_earns_nothing_has_one_reason_for_all_points(status: str, rules: Rules, reason: str) -> None:
    text = "The night is long." if status == "no marker" else ""

    found = reasons(text, 2, status=status, rules=rules)

    assert found == dict.fromkeys((*SKILLS[:2], "topic", "sense", "length"), reason)


def test_points_that_a_model_denies_have_no_reason_from_code() -> None:
    assert reasons("The night is long.", 1, votes=0.0) == {}


def test_undecided_points_have_no_reason() -> None:
    answer = Answer("The night is long.", "fine")

    assert reasons_of((None, None, None, True), ["simile"], answer, DEFAULT, {}) == {}


@pytest.mark.parametrize(
    ("answer", "checker_reasons", "reason"),
    [
        (Answer("", "empty"), {}, "the student wrote no text; the token limit cut the reply"),
        (
            Answer("It rains and", "fine"),
            {"sense": "it breaks off: its last sentence has no end mark"},
            "it breaks off: its last sentence has no end mark; the token limit cut the reply",
        ),
        (Answer("It rains and", "fine"), {"sense": "most of it has no finite verb"}, "most of it has no finite verb"),
    ],
)
def test_the_token_limit_is_named_where_it_explains_a_reason(
    answer: Answer, checker_reasons: dict[str, str], reason: str
) -> None:
    points = (True, True, False, True)

    cut = reasons_of(points, ["metaphor"], answer, RULES["default"], checker_reasons, is_cut=True)
    whole = reasons_of(points, ["metaphor"], answer, RULES["default"], checker_reasons, is_cut=False)

    assert cut == {"sense": reason}
    assert whole == {"sense": reason.removesuffix("; the token limit cut the reply")}
