"""The thoughts of reasoning models are never graded, and a reply that ends in one holds no answer."""

import time

import pytest

from skillmix.grading.answers import RULES, Answer, extract_answer, is_thought_tag, opens_thought, without_thought
from skillmix.grading.points import earns_nothing
from skillmix.grading.reader import read_grades, read_skill_points, words_about
from skillmix.prompts.rubric import rubric_of

DRAFT = "Hm. Answer: a draft.\n| metaphor | 0 |\n"
PAIRS = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("analysis", "assistantfinal"),
]
ANSWER = "Answer: Time is a thief."
TABLE = (
    "| Criteria | Points Earned |\n|---|---|\n| metaphor | 1 |\n| Pertains to Sewing | 1 |\n| Text makes sense | 0 |\n"
)
RUBRIC = rubric_of(["metaphor"], "Sewing")


@pytest.mark.parametrize(("opens", "closes"), PAIRS)
def test_what_a_model_thinks_is_no_part_of_its_reply(opens: str, closes: str) -> None:
    fine = Answer("Time is a thief.", "fine")

    assert extract_answer(f"{opens}{DRAFT}{closes}{ANSWER}") == fine
    assert extract_answer(f"{DRAFT}{closes}\n\n{ANSWER}") == fine, "the prompt opened the thought"
    assert extract_answer(f"{opens}{DRAFT}") == Answer("", "cut in its thought")
    assert earns_nothing(extract_answer(f"{opens}{DRAFT}"), RULES["default"])


@pytest.mark.parametrize(("opens", "closes"), PAIRS)
def test_a_graders_thoughts_give_no_points(opens: str, closes: str) -> None:
    other = TABLE.replace("1", "0")

    assert read_grades(RUBRIC, f"{opens}{other}{closes}{TABLE}").points == (1.0, 1.0, 0.0, None)
    assert read_grades(RUBRIC, f"{other}{closes}{TABLE}").points == (1.0, 1.0, 0.0, None)
    assert read_grades(RUBRIC, f"{opens}Hm.\n{TABLE}").problem == "the reply ends in its thought"
    assert read_skill_points(RUBRIC, f"{opens}{other}{closes}{TABLE}") == (1.0,)
    assert read_skill_points(RUBRIC, f"{opens}Hm.\n{TABLE}") == (None,)
    assert words_about(RUBRIC, 0, f"{opens}metaphor | 0 | I may see one{closes}{TABLE}") is None


@pytest.mark.parametrize(
    ("reply", "rest"),
    [
        ("<think>a</think>b<think>c</think>d", "bd"),
        ("<think>I must end with </think> and so on</think>x", "x"),
        ("Hello <think>a</think>", "Hello "),
        ("<think>a<think>b</think>x", "x"),
        ("x <think> y", None),
        ("<|channel|>final<|message|>x<|return|>", "x"),
        ("I think [thought] of <thinking.", "I think [thought] of <thinking."),
        ("analysis is slow", "analysis is slow"),
        ("", ""),
    ],
)  # fmt: skip
def test_thoughts_are_struck_wherever_they_are(reply: str, rest: str | None) -> None:
    assert without_thought(reply) == rest


def test_a_prompt_may_open_the_thought() -> None:
    assert opens_thought("<|im_start|>assistant\n<think>\n")
    assert not opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert is_thought_tag("[THINK]") and is_thought_tag("[/THINK]") and not is_thought_tag("<s>")
    assert is_thought_tag("<|channel>") and is_thought_tag("<channel|>")


def test_tags_without_end_take_linear_time() -> None:
    begun = time.process_time()
    for tag in ("<think>", "</think>", "<|channel|>analysis", "<|start|>assistant"):
        without_thought(tag * 50_000)

    assert time.process_time() - begun < 2
