"""Checkers of figures of sound: how words begin and end."""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from skillmix.checkers.passage import Checker, Passage, Sentence, Span, Word, Words, span_between
from skillmix.checkers.words import GRAMMAR, LITTLE, word_set

_CONSONANTS: Final = frozenset("bcdfghjklmnpqrstvwxyz")
_VOWEL = re.compile(r"[aeiouy]")
_SUFFIXES: Final = re.compile(
    r"(?:ically|ations|ation|ising|izing|ments?|ness|ings?|ions?|able|ible|less|[ai]bly|[ae]nce|ingly|fully|ers|ie[sd]|ity"
    r"|ous|ful|est|(?<=[^aeiou])e[dr]|ly)$"
)


def alliteration(passage: Passage) -> Span | None:
    """Find three different content words with the same first consonant, with at most one word between."""
    for sentence in passage.sentences:
        initials = [
            (index, word.lower[0])
            for index, word in enumerate(sentence.words)
            if word.lower[0] in _CONSONANTS and word.lower not in GRAMMAR and not _is_name(sentence.words, index)
        ]
        span = _chain(sentence, initials, 2)
        if span:
            return span
    return None


def _is_name(words: Words, index: int) -> bool:
    """Whether a word is part of a longer name, whose initials agree by chance."""
    neighbours = words[max(index - 1, 0) : index + 2]
    return index > 1 and sum(word.text[0].isupper() for word in neighbours) > 1 and words[index].text[0].isupper()


def homoioteleuton(passage: Passage) -> Span | None:
    """Find three different words of five or more letters with the same last three, at most two words between."""
    for sentence in passage.sentences:
        endings = [
            (index, word.lower[-3:])
            for index, word in enumerate(sentence.words)
            if word.end - word.start >= _LONG and word.lower not in _NO_ENDING and word.lower[-3:].isalpha()
        ]
        span = _chain(sentence, endings, 3)
        if span:
            return span
    return None


_LONG: Final = 5
_NO_ENDING: Final = LITTLE | word_set("morning evening during ceiling")
"""Words whose last letters do not form an ending."""


def _chain(sentence: Sentence, keyed: list[tuple[int, str]], step: int) -> Span | None:
    """Find three different words with the same key, each at most `step` words after the previous one."""
    chains: dict[str, list[Word]] = {}
    last: dict[str, int] = {}
    for index, key in keyed:
        word = sentence.words[index]
        if key in chains and index - last[key] <= step:
            if all(word.lower != other.lower for other in chains[key]):
                chains[key].append(word)
            if len(chains[key]) == _ENOUGH:
                return span_between(chains[key][0], word)
        else:
            chains[key] = [word]
        last[key] = index
    return None


_ENOUGH: Final = 3


def end_rhyme(passage: Passage) -> Span | None:
    """Find two neighboring pieces of three or more words whose last words share their last three letters."""
    for first, second in pairwise(passage.pieces):
        if len(first) >= _ENOUGH and len(second) >= _ENOUGH and _rhymes(first[-1].lower, second[-1].lower):
            return span_between(first[0], second[-1])
    return None


def _rhymes(first: str, second: str) -> bool:
    if first[-3:] != second[-3:] or first == second or min(len(first), len(second)) < _ENOUGH:
        return False
    if not first[-3:].isalpha():
        return False
    suffix = _SUFFIXES.search(first)
    rests = (first[: suffix.start()], second[: suffix.start() - len(first)]) if suffix else ("", "")
    if suffix and second.endswith(suffix[0]) and all(_VOWEL.search(rest) for rest in rests):
        return rests[0][-2:] == rests[1][-2:]
    return True


def abecedarian_run(passage: Passage) -> Span | None:
    """Find four consecutive words whose first letters follow each other in the alphabet."""
    for sentence in passage.sentences:
        words = sentence.words
        run = 1
        before = 0
        for index, word in enumerate(words):
            initial = ord(word.lower[0])
            run = run + 1 if initial == before + 1 and word.lower[0] in _LETTERS else 1
            before = initial
            if run == _RUN:
                return span_between(words[index - _RUN + 1], word)
    return None


_RUN: Final = 4
_LETTERS: Final = frozenset("bcdefghijklmnopqrstuvwxyz")
"""Letters that may follow another letter of the alphabet; "a" cannot."""

CHECKERS: Final[Mapping[str, Checker]] = {
    "alliteration": alliteration,
    "end rhyme": end_rhyme,
    "homoioteleuton": homoioteleuton,
    "abecedarian run": abecedarian_run,
}
