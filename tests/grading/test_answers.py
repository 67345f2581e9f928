import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillmix.grading import answers
from skillmix.grading.answers import count_sentences, extract_answer, names_skill, plain_answer


@pytest.mark.parametrize(
    ("reply", "text", "status"),
    [
        ("Answer: Time is a thief.\n\nExplanation: it steals.", "Time is a thief.", "fine"),
        ("Answer: first\nExplanation: a\nAnswer: second\nExplanation: b", "second", "fine"),
        ("**Answer:** Time flies. **Explanation:** so", "Time flies.", "fine"),
        ("**Answer**: Time flies.\n\n**Explanation**: so", "Time flies.", "fine"),
        ("### Answer:\nTime flies.\n\n### Explanation:\nso", "Time flies.", "fine"),
        ('Answer: "Time flies," he said.', '"Time flies," he said.', "fine"),
        ("Answer: **Time** flies. Explanation of it", "**Time** flies.", "fine"),
        ("Time flies. Explanation: so", "Time flies.", "no marker"),
        ("answer: Time flies.", "answer: Time flies.", "no marker"),
        ("Answer:\n\nExplanation: nothing", "", "empty"),
        ("Answer: ...", "", "empty"),
        ("Explanation: only", "", "empty"),
        ("", "", "empty"),
        ("1. Answer: I sew.\n2. Explanation: x", "I sew.", "fine"),
        ("Answer: I sew.\n\n(b) Explanation: x", "I sew.", "fine"),
        ("Improved Answer: I sew.\nBrief Explanation: x", "I sew.", "fine"),
        ("Answer: She called out\nMother\nExplanation: x", "She called out\nMother", "fine"),
        ("Time flies.\nGood Night\nExplanation: x", "Time flies.\nGood Night", "no marker"),
        ("### Answer\nI sew.\n### Explanation\nx", "I sew.", "fine"),
        ("**Answer**\n\nI sew.", "I sew.", "fine"),
        ("Answer: I sew\nTwo lines\nExplanation: x", "I sew\nTwo lines", "fine"),
        ("   \n", "", "empty"),
    ],
)
def test_the_answer_stands_between_the_markers(reply: str, text: str, status: str) -> None:
    answer = extract_answer(reply)

    assert (answer.text, answer.status) == (text, status)


@pytest.mark.parametrize(
    ("text", "robust", "original"),
    [
        ("", 0, 1),
        ("   ", 0, 1),
        ("One.", 1, 1),
        ("One. Two.", 2, 2),
        ("One! Two? Three.", 3, 3),
        ("No full stop", 1, 1),
        ("Mr. Smith met Dr. Jones. They talked.", 2, 2),
        ("Fruit, e.g. Apples, is good.", 1, 2),
        ("Fruit, i.e. apples.", 1, 1),
        ("At 5 p.m. The bell rang.", 2, 2),
        ("J. K. Smith wrote it.", 1, 3),
        ("The U.S. team won. It rained.", 2, 2),
        ("Wait... what is that?", 1, 1),
        ("Wait… what is that?", 1, 1),
        ("Wait... What is that?", 2, 2),
        ("It cost 3.50 dollars. 40 people came.", 2, 1),
        ("It cost much. so he left.", 2, 1),
        ("“Stop!” he said.", 1, 1),
        ("“Stop!” He ran.", 2, 1),
        ('"Stop!" He ran.', 2, 2),
        ("'Why?' 'Because.'", 2, 2),
        ("One line\nAnother line\n\nA third", 3, 1),
        ("A line that goes\non here.", 1, 1),
        ("Roses are red,\nViolets are blue.", 1, 1),
        ("He left (at last). She stayed.", 2, 2),
        ("Is it?! Yes!!!", 2, 2),
        ("1. First. 2. Second.", 2, 3),
        ("See No. 7. It is good.", 2, 2),
        ("No. I will not.", 2, 2),
        ("今天很好。我们走吧。", 2, 1),
        ("He said: Go; then left — quickly.", 1, 1),
        ("Visit example.com today.", 1, 1),
        ("She said no. Tom left.", 2, 2),
        ("So am I. Tom agreed.", 2, 2),
        ("I chose plan B. Nobody knew.", 2, 2),
        ("The rate rose to 3.5. Mary paid.", 2, 2),
        ("He ate a fig. Mary laughed.", 2, 2),
        ("Come here, hon. I love you.", 2, 2),
        ("Thanks, prof. The needle sings.", 2, 2),
        ("Hear the engine rev. The crowd roars.", 2, 2),
        ("George W. Smith sews. He knits.", 2, 3),
        ("He knits, sews, etc. She paints.", 2, 2),
        ("I sew.Then I knit.", 2, 1),
        ("Smith et al. wrote it.", 1, 1),
    ],
)
def test_sentences_are_counted(text: str, robust: int, original: int) -> None:
    assert count_sentences(text, "robust") == robust
    assert count_sentences(text, "original") == original


@pytest.mark.parametrize(
    ("text", "skill", "substring", "word"),
    [
        ("This metaphor works.", "metaphor", True, True),
        ("METAPHOR!", "metaphor", True, True),
        ("Metaphorically speaking.", "metaphor", True, False),
        ("A simile.", "metaphor", False, False),
        ("An accident happened.", "accident (fallacy)", True, True),
        ("A fallacy.", "accident (fallacy)", False, False),
        ("The red\nherring.", "red herring", True, True),
        ("One’s own", "one's own", True, True),
        ("Such a cliché.", "cliché", True, True),
        ("", "metaphor", False, False),
    ],
)
def test_naming_a_skill(text: str, skill: str, substring: bool, word: bool) -> None:
    assert names_skill(text, skill, "substring") is substring
    assert names_skill(text, skill, "word") is word


ANSWER = re.compile(
    r"Answer[*_]*+:[*_]*+|^[ \t]*+(?:\#++[ \t]*+Answer|(?:\*\*|__)Answer(?:\*\*|__))[ \t]*+$", re.MULTILINE
)
EXPLANATION = re.compile(r"(?:(?<![*_])[*_]++|(?<!\#)\#++ *+)?Explanation")
PIECES = st.lists(
    st.sampled_from(["Answer", ":", " ", "**", "_", "#", "## ", "\n", "Explanation", "2. ", "Brief ", "words ", "x"]),
    max_size=12,
).map("".join)


@settings(max_examples=500)
@given(PIECES, st.booleans())
def test_faster_searches_find_the_markers_of_one_expression(reply: str, is_plain: bool) -> None:
    reply = f"Answer: {reply}" if is_plain else reply

    markers = list(ANSWER.finditer(reply))
    text = reply[markers[-1].end() :] if markers else reply
    explanation = EXPLANATION.search(text)
    if explanation:
        text = answers._LABEL_ON_LAST_LINE.sub("", text[: explanation.start()])

    assert extract_answer(reply).text == plain_answer(text).text
    assert (extract_answer(reply).status == "no marker") == (not markers and plain_answer(text).status != "empty")
