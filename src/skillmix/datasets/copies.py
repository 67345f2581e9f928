"""Find copies among texts: of earlier kept texts, exact or near, and of the examples in the prompts."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skillmix.datasets.corpus import Corpus, Runs, bucketed, corpus_of, run_buckets

RUN: Final = 3
"""Texts are compared by their sets of three-word runs."""
FOLLOWS: Final = 0.5
"""A text follows an example if it has this share of the example's three-word runs, or more.

One changed word breaks three runs at most: half of the runs of an example with eight words, fewer of a longer one.
"""
_FEWEST_COMMON: Final = 3
"""A text with fewer runs of an example does not follow it, however short the example is."""


def earlier_copies(corpus: Corpus, *, threshold: float | None) -> NDArray[np.int64]:
    """For each text, the index of the earlier kept text that it repeats; -1 for kept texts.

    Two texts repeat each other if they have the same words in the same order, or if the Jaccard overlap of their
    sets of three-word runs reaches the threshold. The result is exact, not an estimate: two sets that overlap enough
    always share one of their rarest members, so no such pair is missed.
    """
    copy_of = _exact_copies(corpus)
    if threshold is None:
        return copy_of
    candidates = np.flatnonzero((copy_of < 0) & _may_overlap(corpus, threshold))
    copy_of[candidates] = _near_copies(corpus.part(candidates), candidates, threshold)
    return _roots(copy_of)


def _exact_copies(corpus: Corpus) -> NDArray[np.int64]:
    """For each text, the first text with the same words; -1 if the text itself is the first.

    Words are compared by hashes of 16 bytes, which are equal for no two texts that anybody could write.
    """
    hashes = np.empty((len(corpus), 2), np.uint64)
    for first, last in corpus.blocks():
        starts = corpus.starts[first : last + 1]
        words = corpus.words[int(starts[0]) : int(starts[-1])].tobytes()
        places = (4 * (starts - starts[0])).tolist()
        digests = [blake2b(words[a:b], digest_size=16).digest() for a, b in pairwise(places)]
        hashes[first:last] = np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
    # A stable sort keeps texts with the same words in their order, so that the first text comes first.
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    ordered = hashes[order]
    is_new = np.concatenate(([True], (ordered[1:] != ordered[:-1]).any(axis=1))) if len(order) else np.empty(0, bool)
    firsts = order[np.flatnonzero(is_new)[np.cumsum(is_new) - 1]] if len(order) else order
    copy_of = np.full(len(corpus), -1, np.int64)
    copy_of[order] = np.where(firsts == order, -1, firsts)
    return copy_of


def _roots(copy_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """Point each exact copy of a near copy to the kept text."""
    copies = np.flatnonzero(copy_of >= 0)
    target = copy_of[copy_of[copies]]
    copy_of[copies] = np.where(target >= 0, target, copy_of[copies])
    return copy_of


def _may_overlap(corpus: Corpus, threshold: float) -> NDArray[np.bool_]:
    """Which texts may overlap enough with another: at most 1 - threshold of their runs occur nowhere else."""
    alone = np.zeros(len(corpus), np.int64)
    for runs, texts in run_buckets(corpus, RUN):
        order = np.argsort(runs)
        ordered = runs[order]
        is_other = np.concatenate(([True], ordered[1:] != ordered[:-1], [True])) if len(ordered) else np.ones(1, bool)
        np.add.at(alone, texts[order[is_other[1:] & is_other[:-1]]], 1)
    every = np.maximum(corpus.sizes - (RUN - 1), 0)
    return alone <= (1 - threshold) * every + 1e-9


def _near_copies(corpus: Corpus, numbers: NDArray[np.int64], threshold: float) -> NDArray[np.int64]:
    """For each of some texts with different words, the number of the first kept one that it repeats, or -1.

    Texts are looked at in order, each beside the kept texts that share one of its rarest runs. A copy is not kept, so
    that a thousand copies of one text take a thousand comparisons and not a million.
    """
    sizes, texts, groups = _shared_rare_runs(corpus, threshold)
    copy_of = np.full(len(corpus), -1, np.int64)
    ends = np.cumsum(np.bincount(groups)) if len(groups) else np.empty(0, np.int64)
    # For each shared run the kept texts that have it, in order; there is room for all texts that have it.
    members = np.empty(len(groups), np.uint32)
    starts = ends - np.bincount(groups) if len(groups) else ends
    filled = starts.copy()
    sets = _RunSets(corpus)
    bounds = np.append(starts_of(texts), len(texts)).tolist()
    for begin, end in pairwise(bounds):
        text, own = int(texts[begin]), groups[begin:end]
        near = {other for group in own.tolist() for other in members[starts[group] : filled[group]].tolist()}
        size = int(sizes[text])
        for other in sorted(near):
            larger, smaller = max(size, int(sizes[other])), min(size, int(sizes[other]))
            if smaller >= threshold * larger - 1e-9 and sets.overlap(text, other) >= threshold:
                copy_of[text] = numbers[other]
                break
        else:
            members[filled[own]] = text
            filled[own] += 1
    return copy_of


def _shared_rare_runs(
    corpus: Corpus, threshold: float
) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint32]]:
    """The number of distinct runs of each text; and, ordered by text, the texts and numbers of rare runs they share."""
    frequency = _frequencies(corpus)
    sizes = np.zeros(len(corpus), np.int64)

    def rare_runs() -> Iterator[Runs]:
        for first, last in corpus.blocks():
            runs, texts = _run_sets(*corpus.runs(RUN, first=first, last=last))
            sizes[first:last] = np.bincount(texts - first, minlength=last - first)
            yield _rarest(runs, texts, frequency[_places(runs, frequency)], threshold)

    found_texts, found_groups, count = [], [], 0
    for runs, texts in bucketed(rare_runs(), len(corpus.words)):
        order = np.argsort(runs, kind="stable")
        runs, texts = runs[order], texts[order]
        starts = starts_of(runs)
        counts = np.diff(np.append(starts, len(runs)))
        is_shared = np.repeat(counts > 1, counts)
        shared = counts[counts > 1]
        found_texts.append(texts[is_shared].astype(np.uint32))
        found_groups.append(np.repeat(np.arange(count, count + len(shared), dtype=np.uint32), shared))
        count += len(shared)
    if not found_texts:
        return sizes, np.empty(0, np.uint32), np.empty(0, np.uint32)
    owners, groups = np.concatenate(found_texts), np.concatenate(found_groups)
    order = np.argsort(owners, kind="stable")
    return sizes, owners[order], groups[order]


def _frequencies(corpus: Corpus) -> NDArray[np.uint8]:
    """Count runs by a remainder of their hash, up to 255, with repeats included.

    A collision makes a run look more frequent than it is, never rarer.
    """
    frequency = np.zeros(1 << min(_MOST_COUNTERS, len(corpus.words).bit_length() + 2), np.uint8)
    for first, last in corpus.blocks():
        runs, _ = corpus.runs(RUN, first=first, last=last)
        places = np.sort(_places(runs, frequency))
        starts = starts_of(places)
        counts = np.diff(np.append(starts, len(places)))
        used = places[starts]
        frequency[used] = np.minimum(frequency[used] + counts, 255)
    return frequency


_MOST_COUNTERS: Final = 26
"""The number of counters is two to this power at most."""


def _places(runs: NDArray[np.uint64], frequency: NDArray[np.uint8]) -> NDArray[np.uint32]:
    return (runs & np.uint64(len(frequency) - 1)).astype(np.uint32)


def starts_of(values: NDArray[Any]) -> NDArray[np.int64]:
    """The start of each group of equal values."""
    if not len(values):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


def _run_sets(runs: NDArray[np.uint64], texts: NDArray[np.int64]) -> Runs:
    """The distinct runs of each text, ordered by hash."""
    order = np.lexsort((runs, texts))
    runs, texts = runs[order], texts[order]
    is_new = np.ones(len(runs), np.bool_)
    is_new[1:] = (runs[1:] != runs[:-1]) | (texts[1:] != texts[:-1])
    return runs[is_new], texts[is_new]


def _rarest(runs: NDArray[np.uint64], texts: NDArray[np.int64], often: NDArray[np.uint8], threshold: float) -> Runs:
    """The rarest runs of each text, enough that two overlapping texts share one, without runs of a single text."""
    # A stable sort keeps runs of equal frequency in the order of their hashes, which is the same in every text.
    order = np.argsort(texts << 8 | often, kind="stable")
    runs, texts, often = runs[order], texts[order], often[order]
    starts = starts_of(texts)
    sizes = np.diff(np.append(starts, len(texts)))
    rank = np.arange(len(texts)) - np.repeat(starts, sizes)
    # The small allowance keeps rounding from shortening a prefix.
    prefix = sizes - np.ceil(threshold * sizes - 1e-9).astype(np.int64) + 1
    chosen = (rank < np.repeat(prefix, sizes)) & (often > 1)
    return runs[chosen], texts[chosen]


class _RunSets:
    """The sets of runs of the texts that were compared last."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._sets: dict[int, frozenset[int]] = {}

    def overlap(self, one: int, other: int) -> float:
        """The Jaccard overlap of the runs of two texts."""
        first, second = self._runs(one), self._runs(other)
        common = len(first & second)
        return common / (len(first) + len(second) - common)

    def _runs(self, number: int) -> frozenset[int]:
        found = self._sets.get(number)
        if found is None:
            if len(self._sets) >= _MOST_SETS:
                self._sets.clear()
            runs, _ = self._corpus.runs(RUN, first=number, last=number + 1)
            found = self._sets[number] = frozenset(runs.tolist())
        return found


_MOST_SETS: Final = 20_000


def example_shares(corpus: Corpus, examples: Sequence[str]) -> NDArray[np.float64]:
    """For each text, the largest share of the three-word runs of one example that the text has."""
    shares = np.zeros(len(corpus), np.float64)
    if not examples:
        return shares
    runs, owners = corpus_of(examples, vocabulary=corpus.vocabulary).runs(RUN)
    pairs = np.unique(np.stack((runs, owners.astype(np.uint64)), axis=1), axis=0)
    runs, owners = pairs[:, 0], pairs[:, 1].astype(np.int64)
    sizes = np.bincount(owners, minlength=len(examples))
    for first, last in corpus.blocks():
        found, texts = corpus.runs(RUN, first=first, last=last)
        inside = np.isin(found, runs)
        found, texts = _run_sets(found[inside], texts[inside])
        # Each run of a text counts once for every example that has it.
        start, end = np.searchsorted(runs, found, "left"), np.searchsorted(runs, found, "right")
        counts = end - start
        indices = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - start, counts)
        keys, common = np.unique(np.repeat(texts, counts) * len(examples) + owners[indices], return_counts=True)
        keys, common = keys[common >= _FEWEST_COMMON], common[common >= _FEWEST_COMMON]
        np.maximum.at(shares, keys // len(examples), common / sizes[keys % len(examples)])
    return shares
