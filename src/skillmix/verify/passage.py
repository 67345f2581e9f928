"""A text, taken apart once for all checkers: sentences, the pieces between their marks, words with their places."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from skillmix.core.sentences import sentence_spans

_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*|\d+(?:[.,:]\d+)*")
_MARK = re.compile(r"[;!?…()\[\]\"“”«»]|[.,:](?!\d)|(?<!\w)['‘](?=\w)|--+|[–—]| - ")


class Span(NamedTuple):
    """The part of a text that shows a skill."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Word:
    """One word or number."""

    text: str
    lower: str
    """In small letters, with a straight apostrophe."""
    start: int
    end: int


Words = tuple[Word, ...]


@dataclass(frozen=True)
class Sentence:
    """One sentence, its end mark included."""

    text: str
    start: int
    end: int
    words: Words

    @cached_property
    def pieces(self) -> tuple[Words, ...]:
        """Words between marks: clauses, phrases, members of a list; never empty."""
        marks = [self.start + mark.start() for mark in _MARK.finditer(self.text)]
        pieces: list[list[Word]] = [[]]
        place = 0
        for word in self.words:
            while place < len(marks) and marks[place] < word.start:
                place += 1
                if pieces[-1]:
                    pieces.append([])
            pieces[-1].append(word)
        return tuple(tuple(piece) for piece in pieces if piece)


@dataclass(frozen=True)
class Passage:
    """A whole text."""

    text: str
    sentences: tuple[Sentence, ...]

    @cached_property
    def words(self) -> Words:
        """Of all sentences."""
        return tuple(word for sentence in self.sentences for word in sentence.words)

    @cached_property
    def pieces(self) -> tuple[Words, ...]:
        """Of all sentences; a sentence's end always ends a piece."""
        return tuple(piece for sentence in self.sentences for piece in sentence.pieces)

    @cached_property
    def lower(self) -> str:
        """In small letters with straight apostrophes and quotes, character for character at the same places."""
        return _straight(self.text.lower()) if len(self.text.lower()) == len(self.text) else _straight(self.text)


Checker = Callable[[Passage], Span | None]
"""Finds the part of a text that shows one skill, or nothing."""


def passage_of(text: str) -> Passage:
    """Take a text apart.

    >>> [[word.lower for word in piece] for piece in passage_of("Don't go, Ana: it's 5.30 o'clock!").pieces]
    [["don't", 'go'], ['ana'], ["it's", '5.30', "o'clock"]]
    """
    words = [Word(found[0], _straight(found[0].lower()), found.start(), found.end()) for found in _WORD.finditer(text)]
    sentences = []
    place = 0
    for start, end in sentence_spans(text):
        first = place
        while place < len(words) and words[place].start < end:
            place += 1
        sentences.append(Sentence(text[start:end], start, end, tuple(words[first:place])))
    return Passage(text, tuple(sentences))


_STRAIGHT = str.maketrans("’‘“”", "''\"\"")


def _straight(text: str) -> str:
    return text if text.isascii() else text.translate(_STRAIGHT)


def span_of(words: Words) -> Span:
    """From the first word to the last."""
    return Span(words[0].start, words[-1].end)
