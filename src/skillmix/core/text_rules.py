"""Rules about a student's text that code decides: the answer itself, its length, a skill named in it."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from skillmix.core.folding import before_parenthesis

AnswerStatus = Literal["fine", "no marker", "empty", "refused"]
Counter = Literal["original", "robust"]
NameRule = Literal["substring", "word"]
MissingMarker = Literal["whole", "zero"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The text to grade, and whether the student kept to the reply format."""

    text: str
    status: AnswerStatus


@dataclass(frozen=True, slots=True)
class Rules:
    """The choices that turn a reply and its votes into points."""

    name: str
    counter: Counter
    name_rule: NameRule
    missing_marker: MissingMarker


RULES: Final = {
    rules.name: rules
    for rules in (
        Rules(name="default", counter="robust", name_rule="substring", missing_marker="whole"),
        Rules(name="paper", counter="original", name_rule="substring", missing_marker="whole"),
    )
}

_ANSWER = re.compile(r"(?:[*_]+|#+ *)?Answer[*_]*:[*_]*")
_EXPLANATION = re.compile(r"(?:[*_]+|#+ *)?Explanation")


def extract_answer(reply: str) -> Answer:
    """What stands after the last 'Answer:' and before 'Explanation', bold or headed markers included.

    >>> extract_answer("Answer: Time is a thief. **Explanation:** so")
    Answer(text='Time is a thief.', status='fine')
    """
    markers = list(_ANSWER.finditer(reply))
    text = reply[markers[-1].end() :] if markers else reply
    text = _EXPLANATION.split(text, maxsplit=1)[0].strip()
    if not _SOMETHING.search(text):
        return Answer(text="", status="empty")
    return Answer(text=text, status="fine" if markers else "no marker")


_SOMETHING = re.compile(r"\w")


def names_skill(text: str, skill: str, rule: NameRule = "substring") -> bool:
    """Whether a text says the name of a skill (before any parenthesis) instead of only showing it.

    >>> names_skill("Metaphorically speaking", "metaphor"), names_skill("Metaphorically", "metaphor", "word")
    (True, False)
    """
    name = _one_blank(before_parenthesis(skill))
    if rule == "substring":
        return name in _one_blank(text)
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", _one_blank(text)) is not None


def _one_blank(text: str) -> str:
    return " ".join(text.casefold().replace("’", "'").replace("‘", "'").split())


def count_sentences(text: str, counter: Counter = "robust") -> int:
    """How many sentences a text has."""
    return _COUNTERS[counter](text)


_GLUED_TITLES = re.compile(r"(Mrs|Mr|Ms|Dr|Prof). ")
_ORIGINAL_BREAK = re.compile(r"[.!?]['\"]* ['\"]*[A-Z]")


def _count_original(text: str) -> int:
    """The count of the original evaluation code, blind spots included; nothing counts as one sentence."""
    return len(_ORIGINAL_BREAK.split(_GLUED_TITLES.sub(r"\1.", text)))


_CLOSERS: Final = r"[\"'”’»)\]*_]*"
_TERMINATOR = re.compile(rf"(?P<mark>[.!?…。！？]+)(?P<close>{_CLOSERS})(?=\s|$|(?<=[。！？]))")
_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|mx|dr|prof|st|sr|jr|rev|hon|gen|col|sgt|capt|lt|mt|ft|vs|etc|approx|dept|est|fig|no|nos|vol|inc|ltd"
    r"|co|corp|al|ca|cf|ed|eds|pp|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec)|(?:\b\w\.)+\w|\b[A-Z]|\b[ap]\.m)$",
    re.IGNORECASE,
)
_NEVER_LAST = re.compile(
    r"\b(?:mr|mrs|ms|mx|dr|prof|rev|hon|gen|col|sgt|capt|lt|vs|e\.g|i\.e|cf|approx)$", re.IGNORECASE
)
_OPENERS: Final = "\"'“‘«([*_"
_CARRIES_ON: Final = (",", ";", ":", "-", "–", "—", "(", "/")
_LIST_NUMBER = re.compile(r"\s*\(?\d{1,2}$")


def _count_robust(text: str) -> int:
    """Sentence ends by mark, quote and what follows; line breaks count, abbreviations and ellipses do not."""
    return sum(_count_in_line(line) for line in _joined_lines(text))


def _joined_lines(text: str) -> list[str]:
    """Lines, with wrapped ones joined: after a comma or the like, or before a small letter."""
    joined: list[str] = []
    after_blank = True
    for line in text.splitlines():
        line = line.strip()
        if not _SOMETHING.search(line):
            after_blank = after_blank or not line
            continue
        wrapped = joined and not after_blank and (joined[-1].endswith(_CARRIES_ON) or line[0].islower())
        if wrapped:
            joined[-1] += " " + line
        else:
            joined.append(line)
        after_blank = False
    return joined


def _count_in_line(line: str) -> int:
    ends = 0
    last = 0
    for terminator in _TERMINATOR.finditer(line):
        rest = line[terminator.end() :].lstrip()
        if not _SOMETHING.search(rest):
            break
        sentence = line[last : terminator.start()]
        if _SOMETHING.search(sentence) and not _LIST_NUMBER.match(sentence) and _ends_sentence(line, terminator, rest):
            ends += 1
            last = terminator.end()
    return ends + 1


def _ends_sentence(line: str, terminator: re.Match[str], rest: str) -> bool:
    mark, before = terminator["mark"], line[: terminator.start()]
    next_letter = rest.lstrip(_OPENERS)[:1]
    starts_small = next_letter.islower()
    if mark == ".":
        if _NEVER_LAST.search(before):
            return False
        if _ABBREVIATION.search(before):
            return not starts_small and _begins_like_a_sentence(rest)
    if starts_small and ("…" in mark or ".." in mark):
        return False
    # "Stop!" he said: a small letter after a closed quotation carries the sentence on.
    return not (starts_small and _QUOTE_CLOSED.search(terminator["close"]))


_QUOTE_CLOSED = re.compile(r"[\"'”’»)]")
_SENTENCE_START = re.compile(
    r"^[\"'“‘«(]*(?:the|a|an|he|she|it|we|they|i|you|this|that|these|those|my|his|her|our|their|your|but|and|so|then|when"
    r"|if|in|on|at|for|there|here|what|who|why|how|not|no|yes|as|after|before|because|although)\b",
    re.IGNORECASE,
)


def _begins_like_a_sentence(rest: str) -> bool:
    """After an abbreviation only a word that often starts sentences does: 'at 5 p.m. The' but 'J. K. Rowling'."""
    return _SENTENCE_START.match(rest) is not None


_COUNTERS: Final = {"original": _count_original, "robust": _count_robust}
