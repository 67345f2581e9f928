"""Count sentences, as the original evaluation code does or as a reader would."""

import re
from typing import Final, Literal

SentenceCounter = Literal["original", "robust"]


def count_sentences(text: str, counter: SentenceCounter = "robust") -> int:
    """Count the sentences of a text.

    >>> count_sentences("Fruit, e.g. Apples."), count_sentences("Fruit, e.g. Apples.", "original")
    (1, 2)
    """
    return _COUNTERS[counter](text)


# The dots match any character, as in the original expressions.
_GLUED_TITLES = re.compile(r"(Mrs|Mr|Ms|Dr|Prof). ")
_ORIGINAL_BREAK = re.compile(r"[.!?]['\"]* ['\"]*[A-Z]")


def _count_original(text: str) -> int:
    """Count as the original evaluation code does, with its faults; an empty text counts as one sentence."""
    return len(_ORIGINAL_BREAK.split(_GLUED_TITLES.sub(r"\1.", text)))


_SOMETHING = re.compile(r"\w")
_TERMINATOR = re.compile(
    r"(?<![.!?…。！？])(?P<mark>[.!?…。！？]+)(?P<close>[\"'”’»)\]*_]*)(?=\s|$|(?<=[。！？])|(?<=[a-z]{2}[.!?])[A-Z][a-z])"
)
_OPENERS: Final = "\"'“‘«([*_"
_CARRIES_ON: Final = (",", ";", ":", "-", "–", "—", "(", "/")
_LIST_NUMBER = re.compile(r"\s*\(?\d{1,2}$")
_QUOTE_CLOSED = re.compile(r"[\"'”’»)]")

# Words before a full stop that need not end a sentence.
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


def _count_robust(text: str) -> int:
    return len(sentence_spans(text))


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """The span of each sentence, by end marks, quotes and next words; line breaks count, abbreviations do not.

    >>> sentence_spans("Stop! It is e.g. Tom's.")
    [(0, 5), (6, 23)]
    """
    return [span for start, line in _joined_lines(text) for span in _spans_in_line(line, start)]


_LINE = re.compile(r"[^\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")


def _joined_lines(text: str) -> list[tuple[int, str]]:
    """Lines with their start, wrapped lines joined: after a comma or the like, or before a lower-case letter."""
    joined: list[tuple[int, list[str]]] = []
    end = 0
    for match in _LINE.finditer(text):
        line = match[0].strip()
        if not _SOMETHING.search(line):
            continue
        start = match.start() + len(match[0]) - len(match[0].lstrip())
        if joined and _is_wrapped(joined[-1][1][-1], text[end:start], line):
            joined[-1][1].extend((" " * (start - end), line))
        else:
            joined.append((start, [line]))
        end = start + len(line)
    return [(start, "".join(parts)) for start, parts in joined]


_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


def _is_wrapped(before: str, gap: str, line: str) -> bool:
    return not _BLANK_LINE.search(gap) and (before.endswith(_CARRIES_ON) or line[0].islower())


def _spans_in_line(line: str, offset: int) -> list[tuple[int, int]]:
    spans = []
    last = 0
    end_of_words = _end_of_words(line)
    first_word = _next_word(line, 0)
    # Positions instead of slices: a line may have thousands of marks, and copying the rest of it for each is slow.
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


def _end_of_words(line: str) -> int:
    end = len(line)
    while end and not (line[end - 1].isalnum() or line[end - 1] == "_"):
        end -= 1
    return end


def _next_word(line: str, position: int) -> int:
    following = _SOMETHING.search(line, position)
    return following.start() if following else len(line)


def _ends_sentence(before: str, terminator: re.Match[str], following: int) -> bool:
    """Whether a mark ends a sentence, by the characters before it and the position of the next word."""
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
    """Whether the full stop after these words only marks an abbreviation."""
    if _NEVER_LAST.search(before):
        return True
    if _BEFORE_A_NUMBER.search(before):
        return next_letter.isdigit()
    if before.endswith("etc"):
        return next_letter.islower()
    # 'at 5 p.m. The bell' but 'J. K. Rowling': after such a word, only a common first word starts a sentence.
    may_be = _MAY_BE_LAST.search(before) is not None or _is_initial(before)
    return may_be and _SENTENCE_START.match(line, following) is None


_LONGEST_ABBREVIATION: Final = 40
"""Characters searched before a full stop; without a limit the searches would take quadratic time."""


def _is_initial(before: str) -> bool:
    """Whether the last letter is an initial: 'George W' and 'J. K', but not 'plan B'."""
    if not _CAPITAL.search(before):
        return False
    words = before[:-1].split()
    return not words or words[-1].endswith(".") or words[-1].lstrip(_OPENERS)[:1].isupper()


_COUNTERS: Final = {"original": _count_original, "robust": _count_robust}
