"""Extract the answer from a student's reply, and check whether it names a skill."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from skillmix.catalog.names import before_parenthesis
from skillmix.grading.replies.thoughts import CUT_IN_THOUGHT, without_thought
from skillmix.grading.sentences import SentenceCounter

AnswerStatus = Literal["fine", "no marker", "empty", "refused", "cut in its thought"]
NameRule = Literal["substring", "word"]
MissingMarker = Literal["whole", "zero"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The text to grade, and whether the reply followed the format."""

    text: str
    status: AnswerStatus

    def __reduce__(self) -> "tuple[type[Answer], tuple[str, AnswerStatus]]":
        """Pickle as a plain tuple: the default of such classes takes three times as long."""
        return Answer, (self.text, self.status)


@dataclass(frozen=True, slots=True)
class Rules:
    """The scoring rules: how a reply and its votes become points."""

    name: str
    counter: SentenceCounter
    name_rule: NameRule
    missing_marker: MissingMarker


RULES: Final = {
    rules.name: rules
    for rules in (
        Rules(name="default", counter="robust", name_rule="substring", missing_marker="whole"),
        Rules(name="paper", counter="original", name_rule="substring", missing_marker="whole"),
    )
}

# A reply can be one character repeated 40,000 times. Each search enters a run of characters only at its start and
# never backtracks ("*+"); otherwise it would take quadratic time.
_ANSWER = re.compile(
    r"Answer[*_]*+:[*_]*+|^[ \t]*+(?:\#++[ \t]*+Answer|(?:\*\*|__)Answer(?:\*\*|__))[ \t]*+$", re.MULTILINE
)
_EXPLANATION = re.compile(r"(?:(?<![*_])[*_]++|(?<!\#)\#++ *+)?Explanation")
# The start of the explanation's own line is not part of the answer: "2. Explanation", "Brief Explanation".
_LABEL_ON_LAST_LINE = re.compile(
    r"\n[ \t]*+[*_#>-]*+(?:(?<=_)[.)]|[ \t]*+(?:\(?\w{1,2}[.)]|(?:[A-Z][a-z]++[ \t]*+){1,2})?)[*_#]*+[ \t]*+\Z"
)


def extract_answer(reply: str) -> Answer:
    """The text after the last 'Answer:' and before 'Explanation'; both markers may be bold or headings.

    A thought is no part of the reply.

    >>> extract_answer("Answer: Time is a thief. **Explanation:** so")
    Answer(text='Time is a thief.', status='fine')
    """
    said = without_thought(reply)
    if said is None:
        return Answer("", CUT_IN_THOUGHT)
    reply = said
    marker = _end_of_last_marker(reply)
    text = reply if marker is None else reply[marker:]
    explanation = _start_of_explanation(text)
    if explanation is not None:
        text = text[:explanation]
        text = _LABEL_ON_LAST_LINE.sub("", text) if "\n" in text else text
    if marker is not None:
        return plain_answer(text)
    answer = plain_answer(text)
    return answer if answer.status == "empty" else Answer(answer.text, "no marker")


def _end_of_last_marker(reply: str) -> int | None:
    # A data set reads a million replies; most have the plain form, which needs no search.
    if reply.startswith("Answer: ") and reply.find("Answer", 1) < 0:
        return len("Answer:")
    markers = list(_ANSWER.finditer(reply))
    return markers[-1].end() if markers else None


def _start_of_explanation(text: str) -> int | None:
    position = text.find("Explanation")
    if position < 0:
        return None
    if position == 0 or text[position - 1] not in "*_# ":
        return position
    explanation = _EXPLANATION.search(text)
    return explanation.start() if explanation else None


def plain_answer(text: str) -> Answer:
    """Make an answer of a text without markers."""
    text = text.strip()
    return Answer(text, "fine") if _SOMETHING.search(text) else Answer("", "empty")


_SOMETHING = re.compile(r"\w")


def names_skill(text: str, skill: str, rule: NameRule = "substring") -> bool:
    """Whether a text contains the name of a skill, without its parenthesis.

    >>> names_skill("Metaphorically speaking", "metaphor"), names_skill("Metaphorically", "metaphor", "word")
    (True, False)
    """
    name = _one_blank(before_parenthesis(skill))
    if rule == "substring":
        return name in _one_blank(text)
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", _one_blank(text)) is not None


@lru_cache(maxsize=4096)  # each text meets several skills, each skill many texts
def _one_blank(text: str) -> str:
    return " ".join(text.casefold().replace("’", "'").replace("‘", "'").split())
