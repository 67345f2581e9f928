"""What a grader wrote about one criterion."""

import pytest

from skillmix.grading.reader import words_about
from skillmix.prompts.rubric import rubric_of

RUBRIC = rubric_of(["metaphor", "red herring"], "Sewing")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("| Criteria | Points |\n|---|---|\n| metaphor | 0 |", None),
        ("**metaphor**: 0 - the needle is only a needle", "the needle is only a needle"),
        ("- metaphor: No comparison is made here. 0 points", "No comparison is made here. 0 points"),
        ("Explanation: I see no metaphor in it.\n\n| metaphor | 0 |", "I see no metaphor in it."),
        ("There is a metaphor and a red herring in it.\n| metaphor | 0 |", None),  # about both skills
        ("\x1b[31mmetaphor: the thread\x07 is a thread\x1b[0m", "[31mmetaphor: the thread is a thread[0m"),
        (f"metaphor: {'word ' * 100}", f"{'word ' * 40}"[:199] + "…"),
    ],
)
def test_words_about_a_skill(reply: str, words: str | None) -> None:
    assert words_about(RUBRIC, 0, reply) == words


def test_words_about_the_topic_stand_beside_its_label() -> None:
    reply = "Stays on the topic of Sewing | 0 | It is about kites and the wind."

    assert words_about(RUBRIC, 2, reply) == "It is about kites and the wind."
    assert words_about(RUBRIC, 3, reply) is None
