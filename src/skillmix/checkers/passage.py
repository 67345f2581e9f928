"""Split a text once for all checkers: into sentences, pieces between marks, and words with their positions."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from skillmix.grading.answers import sentence_spans

_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*|\d+(?:[.,:]\d+)*")
_PUNCTUATION = re.compile(r"[.,;:!?…()\[\]\"“”«»–—]|--| - ")
_MARK = re.compile(r"[;!?…()\[\]\"“”«»]|[.,:](?!\d)|(?<!\w)['‘](?=\w)|--+|[–—]| - ")
"""Marks that end a piece, including an opening single quote, but not a comma or a colon inside a number."""


class Span(NamedTuple):
    """The part of a text that shows a skill."""

    start: int
    end: int


class Word(NamedTuple):
    """A word or a number."""

    text: str
    lower: str
    """The word in lower case, with straight apostrophes."""
    start: int
    end: int


Words = tuple[Word, ...]


@dataclass(frozen=True)
class Sentence:
    """A sentence with its end mark."""

    text: str
    start: int
    end: int
    words: Words

    @cached_property
    def pieces(self) -> tuple[Words, ...]:
        """Return the words between marks, that is, clauses, phrases or list members; no piece is empty."""
        text, words = self.text, self.words
        cuts = [0]
        end = words[0].end - self.start if words else 0
        for index, (_, _, word_start, word_end) in enumerate(words):
            start = word_start - self.start
            # A mark lies between two words, and the first character of the next word distinguishes "5, 6" from "5,6".
            if start > end and text[end:start] != " " and _MARK.search(text, end, start + 1):
                cuts.append(index)
            end = word_end - self.start
        return tuple(words[first:last] for first, last in pairwise([*cuts, len(words)]) if first < last)


@dataclass(frozen=True)
class Passage:
    """A text and its sentences."""

    text: str
    sentences: tuple[Sentence, ...]

    @cached_property
    def words(self) -> Words:
        """Return the words of all sentences."""
        return tuple(word for sentence in self.sentences for word in sentence.words)

    @cached_property
    def pieces(self) -> tuple[Words, ...]:
        """Return the pieces of all sentences. The end of a sentence always ends a piece."""
        return tuple(piece for sentence in self.sentences for piece in sentence.pieces)

    @cached_property
    def divisions(self) -> tuple[tuple[Words, ...], ...]:
        """Split the text at every mark, at strong marks only, and at sentence ends only; omit duplicate divisions."""
        pieces = self.pieces
        sentences = tuple(sentence.words for sentence in self.sentences if sentence.words)
        divisions = [pieces]
        if len(pieces) > len(sentences):
            if any(mark in self.text for mark in _STRONG_INSIDE):
                strong = _at_strong_marks(self.text, pieces)
                if len(sentences) < len(strong) < len(pieces):
                    divisions.append(strong)
            if len(sentences) > 1:
                divisions.append(sentences)
        return tuple(divisions)

    @cached_property
    def lower(self) -> str:
        """Return the text in lower case, with straight apostrophes and quotes; every character keeps its position."""
        lower = self.text.lower()
        return _straight(lower if len(lower) == len(self.text) else self.text)


_start: Final = attrgetter("start")
# This does the same as `Word._make`, but without a Python call for each word.
_word: Final[Callable[[tuple[str, str, int, int]], Word]] = partial(tuple.__new__, Word)

Checker = Callable[[Passage], Span | None]
"""A function that finds the part of a text that shows one skill; None if no part does."""
ENTERED: Final[dict[str, Checker]] = {}
"""The checkers of the package by skill, filled by `shows`."""
REPEATING: Final[set[str]] = set()
"""Skills that work by repetition or parallel parts."""


def shows(skill: str, *cues: str, repeats: bool = False) -> Callable[[Callable[[Passage], Iterator[Span]]], Checker]:
    """Register a function that yields spans as a skill's checker; a text without any cue does not show the skill."""

    def enter(find: Callable[[Passage], Iterator[Span]]) -> Checker:
        @wraps(find)
        def check(passage: Passage) -> Span | None:
            if cues and not any(cue in passage.lower for cue in cues):
                return None
            return next(find(passage), None)

        ENTERED[skill] = check
        if repeats:
            REPEATING.add(skill)
        return check

    return enter


def passage_of(text: str) -> Passage:
    """Split a text into sentences and words.

    >>> [[word.lower for word in piece] for piece in passage_of("Don't go, Ana: it's 5.30 o'clock!").pieces]
    [["don't", 'go'], ['ana'], ["it's", '5.30', "o'clock"]]
    """
    words = [_word((word := match[0], word.lower(), match.start(), match.end())) for match in _WORD.finditer(text)]
    if not text.isascii():
        words = [word._replace(lower=_straight(word.lower)) for word in words]
    sentences = []
    first = 0
    for start, end in sentence_spans(text):
        after = bisect_left(words, end, first, key=_start)
        sentences.append(Sentence(text[start:end], start, end, tuple(words[first:after])))
        first = after
    return Passage(text, tuple(sentences))


_STRONG_INSIDE: Final = (";", ":", "—", "–", "--", " - ")
_STRONG = re.compile(r"[.;:!?…–—]|--| - ")


def _at_strong_marks(text: str, pieces: tuple[Words, ...]) -> tuple[Words, ...]:
    parts: list[list[Word]] = []
    for piece in pieces:
        if parts and not _STRONG.search(text, parts[-1][-1].end, piece[0].start):
            parts[-1].extend(piece)
        else:
            parts.append(list(piece))
    return tuple(tuple(part) for part in parts)


_STRAIGHT = str.maketrans("’‘“”", "''\"\"")


def _straight(text: str) -> str:
    return text if text.isascii() else text.translate(_STRAIGHT)


def span_of(words: Words) -> Span:
    """Return the span from the first word to the last."""
    return Span(words[0].start, words[-1].end)


def has_mark(text: str, first: Word, second: Word) -> bool:
    """Return whether a text contains punctuation between two words."""
    return _PUNCTUATION.search(text, first.end, second.start) is not None


def only_comma(text: str, first: Words, second: Words) -> bool:
    """Return whether only a comma separates two pieces of a text."""
    return text[first[-1].end : second[0].start].strip() == ","


def span_between(first: Word, last: Word) -> Span:
    """Return the span from one word to another."""
    return Span(first.start, last.end)
