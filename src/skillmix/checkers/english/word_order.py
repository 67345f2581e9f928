"""Score how usual the order of words is, by log-odds of neighbouring word classes, counted in prose.

A frequent word is a class of its own. Other known words belong to a few classes of words with the same neighbours.
Unknown words are classed by their endings. `bench/word_order.py` makes the table.
"""

import json
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import Final, NamedTuple

from skillmix.checkers.english.verbs import is_finite
from skillmix.checkers.passage import Sentence, Words

DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The data file writes each log-odds value as one of these characters, lowest first."""
STEP: Final = 0.125
LOWEST: Final = -len(DIGITS) // 2 * STEP

ENDINGS: Final = ("ing", "ed", "ly", "tion", "ness", "ment", "ful", "ous", "able", "ive", "ity", "al", "er", "s", "y")
OTHER_CLASSES: Final = (".", "?", ",", ";", '"', "number", "name", "other", *(f"-{ending}" for ending in ENDINGS))
"""Classes that are not words: marks (the end mark also stands before the first word), numbers, endings.

A question has its own mark, since it has its own order: "Were you", "do they?".
"""

_VERB: Final = "makes"
"""A word in the class of verbs in -s."""
_HARDLY: Final = -2.0
_DOUBT: Final = 5
"""The number of neutral pairs added to each sentence, since a few words prove little."""


class WordOrder(NamedTuple):
    """Word classes and the log-odds of each pair of neighbouring classes."""

    classes: dict[str, int]
    """The class of each lower-case word, and of each other class by its name."""
    log_odds: tuple[tuple[float, ...], ...]


@cache
def word_order() -> WordOrder:
    """The table of the package."""
    stored = json.loads((files("skillmix.checkers.english") / "word_order.json").read_text(encoding="utf-8"))
    classes = {word: number for number, words in enumerate(stored["classes"]) for word in words.split()}
    values = {digit: _weighed(LOWEST + STEP * index) for index, digit in enumerate(DIGITS)}
    return WordOrder(classes, tuple(tuple(values[digit] for digit in row) for row in stored["log_odds"]))


def _weighed(log_odds: float) -> float:
    """Give nearly impossible pairs ("the of") more weight than unusual ones."""
    return log_odds + min(log_odds - _HARDLY, 0)


def order_score(sentence: Sentence) -> float:
    """The mean log-odds of a sentence's neighbouring words: above 0 for prose, below 0 for shuffled words."""
    classes, log_odds = word_order()
    order = tuple(symbols(sentence, classes))
    # Each pair counts once: a figure of repetition does not make an unusual phrase more unusual.
    pairs = set(pairwise(order))
    return sum([log_odds[before][after] for before, after in pairs]) / (len(pairs) + _DOUBT)


def symbols(sentence: Sentence, classes: dict[str, int]) -> Iterator[int]:
    """The classes of a sentence's words and marks, in order, between two end marks."""
    ends = classes["?" if "?" in sentence.text[-_LONGEST_END_MARK:] else "."]
    yield ends
    offset = sentence.start
    end = offset
    text = sentence.text
    for index, (_, lower, start, word_end) in enumerate(sentence.words):
        if index and start - end > 1:
            gap = text[end - offset : start - offset]
            mark = "," if gap == ", " else mark_class(gap)
            if mark:
                yield classes[mark]
        known = classes.get(lower)
        yield classes[_unknown(sentence.words, index, classes)] if known is None else known
        end = word_end
    yield ends


_LONGEST_END_MARK: Final = 3
"""Characters at the end of a sentence that may hold its end mark and closing quotes."""


def mark_class(gap: str) -> str:
    """The class of the strongest mark between two words; empty for blanks alone."""
    if any(mark in gap for mark in ".!…"):
        return "."
    if "?" in gap:
        return "?"
    if any(mark in gap for mark in ";:—–-"):
        return ";"
    if "," in gap:
        return ","
    return "" if gap.isspace() else '"'


def _unknown(words: Words, index: int, classes: dict[str, int]) -> str:
    word = words[index]
    if word.text[0].isdigit():
        return "number"
    if index and word.text[0].isupper():
        return "name"
    ending = _by_ending(word.lower[-_LONGEST_END:])
    # "checks" has the neighbours of "makes", not those of "charts".
    return _VERB if ending == "-s" and _VERB in classes and is_finite(words, index) else ending


_LONGEST_END: Final = 8
"""More letters than any ending and the letters required before it."""


@lru_cache(maxsize=4096)
def _by_ending(word: str) -> str:
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return f"-{ending}"
    return "other"
