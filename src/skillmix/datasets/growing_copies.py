"""Find the copies among texts of which more and more come, as the waves of a dataset step bring them.

A text is compared with earlier texts only, so that what was found before stays true. New texts are therefore compared
with each other and with those kept texts that share a three-word run with one of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from skillmix.datasets.copies import RUN
from skillmix.datasets.corpus import Corpus, Runs, bucketed, corpus_of, joined
from skillmix.datasets.kept_texts import Removal

_MOST_MARKS: Final = 26
"""The number of marks is two to this power at most."""


class GrowingCopies:
    """The copies among texts, learned piece by piece."""

    def __init__(self, find: Callable[[Corpus], list[Removal]]) -> None:
        self._find = find
        self._corpus = corpus_of([])
        self._is_kept: NDArray[np.bool_] = np.empty(0, np.bool_)

    def __len__(self) -> int:
        return len(self._corpus)

    def learn(self, texts: Iterable[str]) -> list[Removal]:
        """The copies among new texts, which come after those that are known."""
        known = len(self)
        added = corpus_of(texts, vocabulary=self._corpus.vocabulary)
        if not len(added):
            return []
        near = self._kept_near(added)
        places = np.concatenate((near, np.arange(known, known + len(added))))
        found = [
            Removal(int(places[one.text_index]), one.why, None if one.copy_of is None else int(places[one.copy_of]))
            for one in self._find(joined(self._corpus.part(near), added))
        ]
        is_kept = np.ones(len(added), np.bool_)
        is_kept[[one.text_index - known for one in found]] = False
        self._is_kept = np.concatenate((self._is_kept, is_kept))
        self._corpus = joined(self._corpus, added)
        return found

    def keep_only(self, numbers: Sequence[int]) -> None:
        """Go on with some of the texts, none of them a copy, as if the others had not come."""
        self._corpus = self._corpus.part(np.asarray(numbers, np.int64))
        self._is_kept = np.ones(len(numbers), np.bool_)

    def _kept_near(self, added: Corpus) -> NDArray[np.int64]:
        """The kept texts that share a run with a new text, or are too short to have a run."""
        is_near = self._corpus.sizes < RUN
        known = len(self)
        if known:
            at_most = len(self._corpus.words) + len(added.words)
            for runs, texts in bucketed(self._runs_to_compare(added), at_most):
                is_new = texts >= known
                old = ~is_new
                is_near[texts[old][np.isin(runs[old], runs[is_new])]] = True
        return np.flatnonzero(is_near & self._is_kept)

    def _runs_to_compare(self, added: Corpus) -> Iterator[Runs]:
        """The runs of new texts, and those of kept texts that are probably among them."""
        marks = np.zeros(1 << min(_MOST_MARKS, len(added.words).bit_length() + 3), np.bool_)
        mask = np.uint64(len(marks) - 1)
        for first, last in added.blocks():
            runs, texts = added.runs(RUN, first=first, last=last)
            marks[runs & mask] = True
            yield runs, texts + len(self)
        for first, last in self._corpus.blocks():
            runs, texts = self._corpus.runs(RUN, first=first, last=last)
            chosen = marks[runs & mask] & self._is_kept[texts]
            yield runs[chosen], texts[chosen]
