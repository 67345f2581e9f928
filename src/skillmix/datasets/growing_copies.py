"""Find the copies among texts of which more and more come, as the waves of a dataset step bring them.

A text is compared with earlier texts only, so that what was found before stays true. New texts are therefore compared
with each other and with those kept texts that share a three-word run with one of them.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from skillmix.datasets.copies import RUN
from skillmix.datasets.corpus import Corpus, corpus_of, joined
from skillmix.datasets.kept_texts import KeptText, Removal


class GrowingCopies:
    """The copies among texts, learned piece by piece."""

    def __init__(self, find: Callable[[Corpus], list[Removal]]) -> None:
        self._find = find
        self._start()

    def _start(self) -> None:
        self._texts: list[KeptText] = []
        self._corpus = corpus_of([])
        self._is_kept: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._removals: list[Removal] = []

    def removals(self, texts: Sequence[KeptText]) -> list[Removal]:
        """The copies among texts, in order; texts that do not begin with those of the last call are compared anew."""
        known = len(self._texts)
        if len(texts) < known or any(one is not other for one, other in zip(self._texts, texts, strict=False)):
            self._start()
            known = 0
        if len(texts) > known:
            self._learn(texts[known:])
        return list(self._removals)

    def _learn(self, texts: Sequence[KeptText]) -> None:
        known = len(self._texts)
        added = corpus_of((text.text for text in texts), vocabulary=self._corpus.vocabulary)
        near = self._kept_near(added)
        places = [*near.tolist(), *range(known, known + len(added))]
        found = [
            Removal(places[one.text_index], one.why, None if one.copy_of is None else places[one.copy_of])
            for one in self._find(joined(self._corpus.part(near), added))
        ]
        is_kept = np.ones(len(added), np.bool_)
        is_kept[[one.text_index - known for one in found]] = False
        self._removals += found
        self._is_kept = np.concatenate((self._is_kept, is_kept))
        self._corpus = joined(self._corpus, added)
        self._texts += texts

    def _kept_near(self, added: Corpus) -> NDArray[np.int64]:
        """The kept texts that share a run with a new text, or are too short to have a run."""
        wanted = np.unique(added.runs(RUN)[0])
        is_near = self._corpus.sizes < RUN
        for first, last in self._corpus.blocks():
            runs, texts = self._corpus.runs(RUN, first=first, last=last)
            is_near[texts[np.isin(runs, wanted)]] = True
        return np.flatnonzero(is_near & self._is_kept)
