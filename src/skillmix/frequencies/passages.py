"""Cut documents into passages, and draw a sample of them in one pass.

A passage is a stretch of a document of about `words` words that ends with a sentence. The rank of a passage is a hash
of the seed and its text, and the sample is the passages with the lowest ranks. So the sample depends on the texts
alone: not on the order, the names, the number or the format of the files. A passage that occurs several times is drawn
once; whatever is in the sample at the end was in it since its first occurrence, so its occurrences are counted exactly.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappush, heapreplace
from typing import Final

from skillmix.calls import clean_text, text_id
from skillmix.frequencies.documents import CorpusDocument
from skillmix.grading.sentences import sentence_spans

_CHARACTERS_PER_WORD: Final = 8
"""Text without blanks, as in Chinese or in encoded data, counts as a word for every so many characters."""
FEWEST_WORDS: Final = 5
"""A document with fewer words has no passage."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]+")


def passages_of(paragraphs: Iterable[str], *, words: int) -> Iterator[str]:
    r"""The passages of a document; its paragraphs stay lines of their own.

    A passage ends with the sentence that reaches `words` words. A rest of less than half of that belongs to the passage
    before it.

    >>> list(passages_of(["One two three four. Five six seven.", "Eight nine ten. Eleven."], words=10))
    ['One two three four. Five six seven.\nEight nine ten.\nEleven.']
    """
    before: _Stretch | None = None
    for stretch in _stretches(paragraphs, words):
        if before is None:
            before = stretch
        elif stretch.size * 2 < words:
            before.append(stretch)
        else:
            yield before.text
            before = stretch
    if before is not None and before.size >= FEWEST_WORDS:
        yield before.text


def _stretches(paragraphs: Iterable[str], words: int) -> "Iterator[_Stretch]":
    """Stretches of the wished length, and the rest of the document."""
    current = _Stretch()
    for paragraph in paragraphs:
        current.end_line()
        for piece in _pieces(clean_text(_CONTROLS.sub(" ", paragraph)), words):
            current.add(piece)
            if current.size >= words:
                yield current
                current = _Stretch()
    yield current


class _Stretch:
    """Sentences that follow each other."""

    def __init__(self) -> None:
        self._lines: list[list[str]] = [[]]
        self.size = 0.0
        """In words."""

    def add(self, piece: str) -> None:
        """Add a sentence."""
        self._lines[-1].append(piece)
        self.size += _size(piece)

    def end_line(self) -> None:
        """Begin a new paragraph."""
        if self._lines[-1]:
            self._lines.append([])

    def append(self, other: "_Stretch") -> None:
        """Add the sentences of another stretch, as paragraphs of their own."""
        self._lines += other._lines
        self.size += other.size

    @property
    def text(self) -> str:
        """The sentences, each paragraph on one line."""
        return "\n".join(" ".join(line) for line in self._lines if line)


def _size(piece: str) -> float:
    return max(piece.count(" ") + 1, len(piece) / _CHARACTERS_PER_WORD)


def _pieces(paragraph: str, words: int) -> Iterator[str]:
    """The sentences of a paragraph; one that is twice as long as a passage is cut."""
    for start, end in sentence_spans(paragraph):
        sentence = paragraph[start:end]
        if _size(sentence) <= 2 * words:
            yield sentence
        else:
            yield from _cut(sentence, words)


def _cut(sentence: str, words: int) -> Iterator[str]:
    """Pieces of the length of a passage, cut between words where that is possible."""
    longest = words * _CHARACTERS_PER_WORD
    piece: list[str] = []
    length = 0
    for word in sentence.split():
        for start in range(0, len(word), longest):
            part = word[start : start + longest]
            piece.append(part)
            length += len(part) + 1
            if len(piece) >= words or length > longest:
                yield " ".join(piece)
                piece, length = [], 0
    if piece:
        yield " ".join(piece)


@dataclass(frozen=True, slots=True)
class SampledPassage:
    """A passage of a sample."""

    id: str
    text: str
    document: str
    """The first document, by name, in which it occurs."""
    occurrences: int = 1


@dataclass(frozen=True, slots=True)
class PassageSample:
    """Passages in the order of their ranks; a larger sample of the same corpus begins with a smaller one."""

    passages: tuple[SampledPassage, ...]
    total: int
    """Passages of the corpus, repetitions included."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the passages, in order."""
        return tuple(passage.id for passage in self.passages)


class PassageSampler:
    """Keeps the passages with the lowest ranks."""

    def __init__(self, n: int, seed: int) -> None:
        self._n = n
        self._key = f"passages {seed}".encode()[:64]
        self._heap: list[int] = []
        """The negative ranks of the passages, so that the highest rank comes first."""
        self._kept: dict[int, tuple[str, str, int]] = {}
        """Text, document and occurrences by rank."""
        self.total = 0

    def add(self, text: str, document: str, occurrences: int = 1) -> None:
        """Offer a passage."""
        self.total += occurrences
        rank = int.from_bytes(blake2b(text.encode("utf-8", "replace"), key=self._key, digest_size=16).digest())
        if rank in self._kept:
            _, first, count = self._kept[rank]
            self._kept[rank] = text, min(first, document), count + occurrences
        elif len(self._heap) < self._n:
            heappush(self._heap, -rank)
            self._kept[rank] = text, document, occurrences
        elif rank < -self._heap[0]:
            del self._kept[-heapreplace(self._heap, -rank)]
            self._kept[rank] = text, document, occurrences

    def add_documents(self, documents: Iterable[CorpusDocument], *, words: int) -> None:
        """Offer all passages of documents."""
        for document in documents:
            for text in passages_of(document.paragraphs, words=words):
                self.add(text, document.place)

    def sample(self) -> PassageSample:
        """The sample so far."""
        passages = [
            SampledPassage(text_id(text), text, document, count)
            for _, (text, document, count) in sorted(self._kept.items())
        ]
        return PassageSample(tuple(passages), self.total)


def merged(samples: Iterable[PassageSample], *, n: int, seed: int) -> PassageSample:
    """The sample of several parts of a corpus, each sampled with the same n and seed by a reader of its own."""
    sampler = PassageSampler(n, seed)
    total = 0
    for sample in samples:
        total += sample.total
        for passage in sample.passages:
            sampler.add(passage.text, passage.document, passage.occurrences)
    return PassageSample(sampler.sample().passages, total)
