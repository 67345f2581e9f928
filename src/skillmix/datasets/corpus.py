"""Store many texts as one array of word ids, to find copies and shared phrases."""

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHORTEST_SOURCE = 4
"""A source with fewer words is too short to count as copied."""
Runs = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""The hashes of n-grams, and for each n-gram the index of its text."""


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case and without punctuation.

    >>> words_of("The baker's dough, the dough!")
    ['the', "baker's", 'dough', 'the', 'dough']
    """
    if text.isascii() and "'" not in text:  # string methods are five times as fast as the code below
        return text.encode().translate(_PLAIN_WORDS).decode().split()
    return _WORD.findall(text.casefold().replace("’", "'"))


_PLAIN_WORDS: Final = bytes(ord(c.lower() if c.isalnum() or c == "_" else " ") for c in map(chr, range(128))) * 2
"""A table for `bytes.translate`: lower-case ASCII, with blanks between words.

Only ASCII texts are translated, so the upper half is never used.
"""


@dataclass(frozen=True)
class Corpus:
    """Texts, stored as word numbers in one array."""

    words: NDArray[np.uint32]
    starts: NDArray[np.int64]
    """The index of the first word of each text, and the total number of words at the end."""
    vocabulary: dict[str, int]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the number of words in each text."""
        return np.diff(self.starts)

    def runs(self, length: int) -> Runs:
        """Return the hash of every n-gram of `length` words within a text, and the index of its text."""
        count = len(self.words) - length + 1
        if count <= 0:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        hashes = np.zeros(count, np.uint64)
        with np.errstate(over="ignore"):
            for index in range(length):
                hashes ^= self.words[index : index + count] + np.uint64(1)
                hashes *= _MULTIPLIER
                hashes ^= hashes >> np.uint64(29)
        texts = np.repeat(np.arange(len(self)), self.sizes)
        inside = texts[:count] == texts[length - 1 :]
        return hashes[inside], texts[:count][inside]

    def part(self, numbers: Sequence[int] | NDArray[np.int64]) -> "Corpus":
        """Return the corpus of some texts, in the given order."""
        chosen = np.asarray(numbers, np.int64)
        sizes = self.sizes[chosen]
        ends = np.cumsum(sizes)
        places = np.arange(sizes.sum()) + np.repeat(self.starts[chosen] - ends + sizes, sizes)
        return Corpus(self.words[places], np.concatenate(([0], ends)), self.vocabulary)

    def text(self, number: int) -> NDArray[np.uint32]:
        """Return the word numbers of one text."""
        return self.words[int(self.starts[number]) : int(self.starts[number + 1])]


def corpus_of(texts: Iterable[str], *, vocabulary: Mapping[str, int] | None = None) -> Corpus:
    """Number the words in texts; words in the vocabulary keep their numbers."""
    known: defaultdict[str, int] = defaultdict(count(len(vocabulary or ())).__next__, vocabulary or {})
    words, starts = array("I"), array("q", [0])
    for text in texts:
        words.extend(map(known.__getitem__, words_of(text)))
        starts.append(len(words))
    return Corpus(np.array(words, np.uint32), np.array(starts, np.int64), dict(known))


def joined(first: Corpus, second: Corpus) -> Corpus:
    """Append the texts of another corpus, whose vocabulary contains all words of the first corpus."""
    starts = np.concatenate((first.starts, second.starts[1:] + first.starts[-1]))
    return Corpus(np.concatenate((first.words, second.words)), starts, second.vocabulary)


def starts_of(*values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the start of each group of consecutive elements that are equal in all arrays."""
    is_new = np.ones(len(values[0]), np.bool_)
    is_new[1:] = np.logical_or.reduce([array[1:] != array[:-1] for array in values])
    return np.flatnonzero(is_new)


def run_sets(runs: NDArray[np.uint64], texts: NDArray[np.int64]) -> Runs:
    """Return the distinct n-grams of each text, ordered by text."""
    order = np.lexsort((runs, texts))
    runs, texts = runs[order], texts[order]
    distinct = starts_of(runs, texts)
    return runs[distinct], texts[distinct]


def distinct_share(corpus: Corpus, length: int) -> float | None:
    """Return the share of distinct n-grams of `length` words; None if no text is that long."""
    runs = np.sort(corpus.runs(length)[0])  # np.unique would take thirty times as long
    return len(starts_of(runs)) / len(runs) if len(runs) else None


@dataclass(frozen=True, slots=True)
class Frame:
    """An n-gram that several texts share."""

    words: str
    texts: int


def repeated_frames(corpus: Corpus, length: int, *, most: int, at_least: int = 3) -> tuple[list[Frame], int]:
    """Return the most frequently shared n-grams, and count the texts with an n-gram that `at_least` texts share."""
    runs, texts = corpus.runs(length)
    order = np.lexsort((texts, runs))
    runs, texts = runs[order], texts[order]
    distinct = starts_of(runs, texts)  # an n-gram counts once per text
    runs, texts = runs[distinct], texts[distinct]
    starts = starts_of(runs)
    counts = np.diff(np.append(starts, len(runs)))
    is_shared = counts >= at_least
    framed = len(np.unique(texts[np.repeat(is_shared, counts)]))
    counts, starts = counts[is_shared], starts[is_shared]
    names = {number: word for word, number in corpus.vocabulary.items()} if len(counts) else {}
    frames = []
    for index in np.lexsort((runs[starts], -counts))[: most * 4].tolist():
        first = corpus.part([texts[starts[index]]])
        place = int(np.flatnonzero(first.runs(length)[0] == runs[starts[index]])[0])
        words = " ".join(names[int(word)] for word in first.words[place : place + length])
        frames.append(Frame(words, int(counts[index])))
    return sorted(frames, key=lambda frame: (-frame.texts, frame.words))[:most], framed


def holds_run_of(corpus: Corpus, sources: Sequence[str], *, length: int) -> NDArray[np.bool_]:
    """Find texts that repeat `length` consecutive words of a source, or the whole of a shorter source."""
    is_copy = np.zeros(len(corpus), np.bool_)
    by_length: dict[int, list[str]] = {}
    for source in sources:
        count = len(words_of(source))
        if count >= _SHORTEST_SOURCE:
            by_length.setdefault(min(count, length), []).append(source)
    for size, texts in by_length.items():
        runs, owners = corpus.runs(size)
        is_copy[owners[np.isin(runs, corpus_of(texts, vocabulary=corpus.vocabulary).runs(size)[0])]] = True
    return is_copy
