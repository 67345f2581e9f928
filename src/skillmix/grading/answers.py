"""Extract the answer from a student's reply, without thoughts and markers, and count its sentences."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from skillmix.catalog.catalog import before_parenthesis

CUT_IN_THOUGHT: Final = "cut in its thought"
"""The status of a reply that ends inside a thought."""
OPENING: Final = "<think>\n"
"""The start tag to put before a thought whose own start tag is missing."""

_NAMES: Final = r"(?:seed:)?(?:think|thinking|thought|reasoning)"
_OPENS: Final = (
    rf"<{_NAMES}>",
    r"\[THINK\]",
    r"◁think▷",
    r"<\|START_THINKING\|>",
    r"<\|begin_of_thought\|>",
    r"<\|channel>(?:thought)?",
    r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)[^<>]{0,99}<\|message\|>",
    r"\Aanalysis(?=[A-Z])",  # gpt-oss without its special tokens
)
_CLOSES: Final = (
    rf"</{_NAMES}>",
    r"\[/THINK\]",
    r"◁/think▷",
    r"<\|END_THINKING\|>",
    r"<\|end_of_thought\|>",
    r"<channel\|>",
    r"(?:<\|start\|>assistant)?<\|channel\|>final[^<>]{0,99}<\|message\|>",
    r"assistantfinal",
)
_TAG: Final = re.compile(rf"(?P<opens>{'|'.join(_OPENS)})|(?:{'|'.join(_CLOSES)})")
_OPENS_LAST: Final = re.compile(rf"(?:{'|'.join(_OPENS)})\s*\Z")
_SIGNS: Final = ("hink", "hought", "easoning", "THINK", "channel", "analysis", "assistantfinal")
_END_OF_TURN: Final = re.compile(r"(?:<\|(?:end|return)\|>\s*)+\Z")


def without_thought(reply: str) -> str | None:
    """Remove the thoughts from a reply; None if the reply ends inside a thought.

    A template may open the thought in the prompt, so all text before an end tag without a start tag is also a thought.

    >>> without_thought("<think>Hm.</think>Answer: x"), without_thought("Hm. Answer: y</think>Answer: x")
    ('Answer: x', 'Answer: x')
    >>> without_thought("<think>Answer: perhaps y")
    """
    has_tag = "<" in reply or "[" in reply or "◁" in reply or "assistantfinal" in reply or reply.startswith("analysis")
    if not (has_tag and any(sign in reply for sign in _SIGNS)):
        return reply
    said: list[str] = []
    is_thought, start = False, 0
    for tag in _TAG.finditer(reply):
        if tag["opens"] is None:
            if not is_thought:
                said.clear()
            is_thought, start = False, tag.end()
        elif not is_thought:
            said.append(reply[start : tag.start()])
            is_thought = True
    if is_thought:
        return None
    rest = reply[start:]
    return "".join((*said, _END_OF_TURN.sub("", rest) if start else rest))


def opens_thought(prompt: str) -> bool:
    """Return whether a prompt ends at the start of a thought, which the reply continues."""
    return _OPENS_LAST.search(prompt) is not None


def is_thought_tag(token: str) -> bool:
    """Return whether a special token of a chat format starts or ends a thought."""
    return _TAG.fullmatch(token) is not None


SentenceCounter = Literal["original", "robust"]


def count_sentences(text: str, counter: SentenceCounter = "robust") -> int:
    """Count the sentences in a text.

    >>> count_sentences("Fruit, e.g. Apples."), count_sentences("Fruit, e.g. Apples.", "original")
    (1, 2)
    """
    if counter == "robust":
        return len(sentence_spans(text))
    # This repeats the original evaluation code with its errors. For example, an empty text counts as one sentence.
    return len(_ORIGINAL_BREAK.split(_GLUED_TITLES.sub(r"\1.", text)))


# The dots match any character, as in the original expressions.
_GLUED_TITLES = re.compile(r"(Mrs|Mr|Ms|Dr|Prof). ")
_ORIGINAL_BREAK = re.compile(r"[.!?]['\"]* ['\"]*[A-Z]")


_SOMETHING = re.compile(r"\w")
_TERMINATOR = re.compile(
    r"(?<![.!?…。！？])(?P<mark>[.!?…。！？]+)(?P<close>[\"'”’»)\]*_]*)(?=\s|$|(?<=[。！？])|(?<=[a-z]{2}[.!?])[A-Z][a-z])"
)
_OPENERS: Final = "\"'“‘«([*_"
_CARRIES_ON: Final = (",", ";", ":", "-", "–", "—", "(", "/")
_LIST_NUMBER = re.compile(r"\s*\(?\d{1,2}$")
_QUOTE_CLOSED = re.compile(r"[\"'”’»)]")

# Abbreviations: a full stop after one of these words does not necessarily end a sentence.
_NEVER_LAST = re.compile(
    r"\b(?:(?:Mr|Mrs|Ms|Mx|Dr|Prof|Rev|Hon|Gen|Col|Sgt|Capt|Lt|St|Mt)|(?i:e\.g|i\.e|cf|vs|viz|approx|ca))$"
)
_BEFORE_A_NUMBER = re.compile(r"\b(?i:no|nos|fig|figs|vol|p|pp|ch|sec|eq)$")
_MAY_BE_LAST = re.compile(r"\b(?:Jr|Sr|Inc|Ltd|Co|Corp|Jan|Feb|Aug|Sept?|Oct|Nov|Dec|al)$|(?:\b[A-Za-z]\.)+[A-Za-z]$")
_CAPITAL = re.compile(r"(?:^|[\s(\"“'.])[A-HJ-Z]$")
_SENTENCE_START = re.compile(
    r"[\"'“‘«(]*(?:the|a|an|he|she|it|we|they|i|you|this|that|these|those|my|his|her|our|their|your|but|and|so|then|when"
    r"|if|in|on|at|for|there|here|what|who|why|how|not|no|yes|as|after|before|because|although)\b",
    re.IGNORECASE,
)


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Find the span of each sentence. A line break can end a sentence, but an abbreviation cannot.

    >>> sentence_spans("Stop! It is e.g. Tom's.")
    [(0, 5), (6, 23)]
    """
    return [span for start, line in _joined_lines(text) for span in _spans_in_line(line, start)]


_LINE = re.compile(r"[^\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")


def _joined_lines(text: str) -> list[tuple[int, str]]:
    """Return each line with its start; join a line to the previous one if the sentence seems to continue."""
    joined: list[tuple[int, list[str]]] = []
    end = 0
    for match in _LINE.finditer(text):
        line = match[0].strip()
        if not _SOMETHING.search(line):
            continue
        start = match.start() + len(match[0]) - len(match[0].lstrip())
        if joined and (
            not _BLANK_LINE.search(text[end:start]) and (joined[-1][1][-1].endswith(_CARRIES_ON) or line[0].islower())
        ):
            joined[-1][1].extend((" " * (start - end), line))
        else:
            joined.append((start, [line]))
        end = start + len(line)
    return [(start, "".join(parts)) for start, parts in joined]


_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


def _spans_in_line(line: str, offset: int) -> list[tuple[int, int]]:
    spans = []
    last = 0
    end_of_words = len(line)
    while end_of_words and not (line[end_of_words - 1].isalnum() or line[end_of_words - 1] == "_"):
        end_of_words -= 1
    first_word = _next_word(line, 0)
    # Use positions, not slices, because a line may contain thousands of marks, and copying the rest each time is slow.
    for terminator in _TERMINATOR.finditer(line):
        if terminator.end() >= end_of_words:
            break
        start = terminator.start()
        if first_word >= start or _LIST_NUMBER.match(line, last, start):
            continue
        following = terminator.end()
        while line[following].isspace():  # a word follows, so the sentence ends here
            following += 1
        if _ends_sentence(line[max(last, start - _LONGEST_ABBREVIATION) : start], terminator, following):
            spans.append((offset + last, offset + terminator.end()))
            last = following
            first_word = _next_word(line, last)
    return [*spans, (offset + last, offset + len(line))]


def _next_word(line: str, position: int) -> int:
    following = _SOMETHING.search(line, position)
    return following.start() if following else len(line)


def _ends_sentence(before: str, terminator: re.Match[str], following: int) -> bool:
    """Return whether a mark ends a sentence, given the characters before it and the position of the next word."""
    line, mark, opened = terminator.string, terminator["mark"], following
    while line[opened : opened + 1] and line[opened] in _OPENERS:
        opened += 1
    next_letter = line[opened : opened + 1]
    starts_small = next_letter.islower()
    if mark == "." and _is_abbreviation(before, line, following, next_letter):
        return False
    if starts_small and ("…" in mark or ".." in mark):
        return False
    # "Stop!" he said: after a closed quotation, a lower-case letter continues the sentence.
    return not (starts_small and _QUOTE_CLOSED.search(terminator["close"]))


def _is_abbreviation(before: str, line: str, following: int, next_letter: str) -> bool:
    """Return whether the full stop after these words only marks an abbreviation."""
    if _NEVER_LAST.search(before):
        return True
    if _BEFORE_A_NUMBER.search(before):
        return next_letter.isdigit()
    if before.endswith("etc"):
        return next_letter.islower()
    # 'at 5 p.m. The bell' but 'J. K. Rowling': after such a word, only a common first word starts a sentence.
    if not _MAY_BE_LAST.search(before):
        words = before[:-1].split()
        # 'George W' and 'J. K' end in an initial, but 'plan B' does not.
        is_name = not words or words[-1].endswith(".") or words[-1].lstrip(_OPENERS)[:1].isupper()
        if not _CAPITAL.search(before) or not is_name:
            return False
    return _SENTENCE_START.match(line, following) is None


_LONGEST_ABBREVIATION: Final = 40
"""The number of characters searched before a full stop. Without this limit, the searches would take quadratic time."""


AnswerStatus = Literal["fine", "no marker", "empty", "refused", "cut in its thought"]
NameRule = Literal["substring", "word"]
MissingMarker = Literal["whole", "zero"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The text to grade, and whether the reply followed the format."""

    text: str
    status: AnswerStatus


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

# A reply can be one character repeated 40,000 times. Each search enters a sequence of characters only at its start and
# never backtracks ("*+"), because it would otherwise take quadratic time.
_ANSWER = re.compile(r"Answer[*_]*+:[*_]*+")
_ENDS_LINE = re.compile(r"Answer[*_]*+[ \t]*+$", re.MULTILINE)
_ANSWER_HEADING = re.compile(r"^[ \t]*+(?:\#++[ \t]*+Answer|(?:\*\*|__)Answer(?:\*\*|__))[ \t]*+$", re.MULTILINE)
"""Applied only if `_ENDS_LINE` matches, because the search for its fixed first letter is much faster."""
# The words before "Explanation" on its line are not part of the answer, as in "2. Explanation".
_LABEL_ON_LAST_LINE = re.compile(
    r"\n[ \t]*+[*_#>-]*+(?:(?<=_)[.)]|[ \t]*+(?:\(?\w{1,2}[.)]|(?:[A-Z][a-z]++[ \t]*+){1,2})?)[*_#]*+[ \t]*+\Z"
)


def extract_answer(reply: str) -> Answer:
    """Extract the text after the last 'Answer:' and before 'Explanation', where both markers may be bold or headings.

    Thoughts are removed first.

    >>> extract_answer("Answer: Time is a thief. **Explanation:** so")
    Answer(text='Time is a thief.', status='fine')
    """
    text = without_thought(reply)
    if text is None:
        return Answer("", CUT_IN_THOUGHT)
    ends = [marker.end() for marker in _ANSWER.finditer(text)]
    if _ENDS_LINE.search(text):
        ends += [marker.end() for marker in _ANSWER_HEADING.finditer(text)]
    text, explanation, _ = text[max(ends, default=0) :].partition("Explanation")
    if explanation:
        unmarked = text.rstrip("*_")
        if unmarked == text and text.rstrip(" ").endswith("#"):
            unmarked = text.rstrip(" ").rstrip("#")
        text = _LABEL_ON_LAST_LINE.sub("", unmarked) if "\n" in unmarked else unmarked
    if ends:
        return plain_answer(text)
    answer = plain_answer(text)
    return answer if answer.status == "empty" else Answer(answer.text, "no marker")


def plain_answer(text: str) -> Answer:
    """Convert a text without markers to an Answer, which is "empty" if the text has no word."""
    text = text.strip()
    return Answer(text, "fine") if _SOMETHING.search(text) else Answer("", "empty")


def names_skill(text: str, skill: str, rule: NameRule = "substring") -> bool:
    """Return whether a text contains the name of a skill, without its parenthesis.

    >>> names_skill("Metaphorically speaking", "metaphor"), names_skill("Metaphorically", "metaphor", "word")
    (True, False)
    """
    name = _one_blank(before_parenthesis(skill))
    if rule == "substring":
        return name in _one_blank(text)
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", _one_blank(text)) is not None


@lru_cache(maxsize=4096)  # each text is compared with several skills, and each skill with many texts
def _one_blank(text: str) -> str:
    return " ".join(text.casefold().replace("’", "'").replace("‘", "'").split())
