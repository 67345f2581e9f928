"""Find copies among texts: of earlier kept texts, exact or near, and of the examples in the prompts."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skillmix.datasets.corpus import Corpus, corpus_of

RUN: Final = 3
"""Texts are compared by their sets of three-word runs."""
FOLLOWS: Final = 0.5
"""A text follows an example if it has this share of the example's three-word runs, or more.

One changed word breaks three runs at most: half of the runs of an example with eight words, fewer of a longer one.
"""
_FEWEST_COMMON: Final = 3
"""A text with fewer runs of an example does not follow it, however short the example is."""
_CHUNK: Final = 50_000
_MOST_BUCKETS: Final = 26


def earlier_copies(corpus: Corpus, *, threshold: float | None) -> list[int | None]:
    """For each text, the index of the earlier kept text that it repeats; None for kept texts.

    Two texts repeat each other if they have the same words in the same order, or if the Jaccard overlap of their
    sets of three-word runs reaches the threshold. The result is exact, not an estimate: two sets that overlap enough
    always share one of their rarest members, so no such pair is missed.
    """
    copy_of = _exact_copies(corpus)
    if threshold is None:
        return [None if index < 0 else int(index) for index in copy_of]
    pairs = _pairs(corpus, copy_of < 0, threshold)
    sets: dict[int, frozenset[int]] = {}
    for later, earlier in pairs:
        if copy_of[later] < 0 and copy_of[earlier] < 0 and _overlap(corpus, sets, later, earlier) >= threshold:
            copy_of[later] = earlier
    return [None if index < 0 else int(index) for index in _roots(copy_of)]


def _exact_copies(corpus: Corpus) -> NDArray[np.int64]:
    """For each text, the first text with the same words; -1 if the text itself is the first."""
    seen: dict[bytes, int] = {}
    copy_of = np.full(len(corpus), -1, np.int64)
    for number in range(len(corpus)):
        first = seen.setdefault(corpus.text(number).tobytes(), number)
        if first != number:
            copy_of[number] = first
    return copy_of


def _roots(copy_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """Point each exact copy of a near copy to the kept text."""
    for number in np.flatnonzero(copy_of >= 0):
        target = copy_of[copy_of[number]]
        if target >= 0:
            copy_of[number] = target
    return copy_of


def _pairs(corpus: Corpus, is_first: NDArray[np.bool_], threshold: float) -> list[tuple[int, int]]:
    """Pairs of texts (later, earlier) that may overlap enough, ordered by the later text."""
    if not len(corpus.words):
        return []
    frequency = _frequencies(corpus)
    sizes = np.zeros(len(corpus), np.int64)
    kept_runs, kept_texts = [], []
    for first in range(0, len(corpus), _CHUNK):
        last = min(first + _CHUNK, len(corpus))
        runs, texts = corpus.runs(RUN, first=first, last=last)
        often = frequency[_buckets(runs, frequency)]
        candidates = is_first[first : first + _CHUNK] & _may_overlap(texts - first, often, last - first, threshold)
        inside = candidates[texts - first]
        runs, texts, often = _run_sets(runs[inside], texts[inside], often[inside])
        chunk = np.bincount(texts - first)
        sizes[first : first + len(chunk)] = chunk
        runs, texts = _rarest(runs, texts, often, threshold)
        kept_runs.append(runs)
        kept_texts.append(texts)
    runs, texts = np.concatenate(kept_runs), np.concatenate(kept_texts)
    order = np.lexsort((texts, runs))
    runs, texts = runs[order], texts[order]
    return _grouped_pairs(runs, texts, sizes, threshold)


def _frequencies(corpus: Corpus) -> NDArray[np.uint8]:
    """Count runs by a remainder of their hash, up to 255, with repeats and copies included.

    A collision makes a run look more frequent than it is, never rarer.
    """
    frequency = np.zeros(1 << min(_MOST_BUCKETS, len(corpus.words).bit_length() + 2), np.uint8)
    for first in range(0, len(corpus), _CHUNK):
        runs, _ = corpus.runs(RUN, first=first, last=min(first + _CHUNK, len(corpus)))
        buckets = np.sort(_buckets(runs, frequency))
        starts = _starts(buckets)
        counts = np.diff(np.append(starts, len(buckets)))
        used = buckets[starts]
        frequency[used] = np.minimum(frequency[used] + counts, 255)
    return frequency


def _buckets(runs: NDArray[np.uint64], frequency: NDArray[np.uint8]) -> NDArray[np.uint32]:
    return (runs & np.uint64(len(frequency) - 1)).astype(np.uint32)


def _starts(values: NDArray[Any]) -> NDArray[np.int64]:
    """The start of each group of equal values."""
    if not len(values):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


def _may_overlap(texts: NDArray[np.int64], often: NDArray[np.uint8], count: int, threshold: float) -> NDArray[np.bool_]:
    """Which texts may overlap enough with another: at most 1 - threshold of their runs occur nowhere else."""
    alone = np.bincount(texts[often == 1], minlength=count)
    return alone <= (1 - threshold) * np.bincount(texts, minlength=count) + 1e-9


def _run_sets(
    runs: NDArray[np.uint64], texts: NDArray[np.int64], often: NDArray[np.uint8]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint8]]:
    """The distinct runs of each text, ordered by hash."""
    order = np.lexsort((runs, texts))
    runs, texts, often = runs[order], texts[order], often[order]
    is_new = np.ones(len(runs), np.bool_)
    is_new[1:] = (runs[1:] != runs[:-1]) | (texts[1:] != texts[:-1])
    return runs[is_new], texts[is_new], often[is_new]


def _rarest(
    runs: NDArray[np.uint64], texts: NDArray[np.int64], often: NDArray[np.uint8], threshold: float
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The rarest runs of each text, enough that two overlapping texts share one, without runs of a single text."""
    # A stable sort keeps runs of equal frequency in the order of their hashes, which is the same in every text.
    order = np.argsort(texts << 8 | often, kind="stable")
    runs, texts, often = runs[order], texts[order], often[order]
    starts = _starts(texts)
    sizes = np.diff(np.append(starts, len(texts)))
    rank = np.arange(len(texts)) - np.repeat(starts, sizes)
    # The small allowance keeps rounding from shortening a prefix.
    prefix = sizes - np.ceil(threshold * sizes - 1e-9).astype(np.int64) + 1
    chosen = (rank < np.repeat(prefix, sizes)) & (often > 1)
    return runs[chosen], texts[chosen]


def _grouped_pairs(
    runs: NDArray[np.uint64], texts: NDArray[np.int64], sizes: NDArray[np.int64], threshold: float
) -> list[tuple[int, int]]:
    pairs: set[tuple[int, int]] = set()
    starts = _starts(runs)
    ends = np.append(starts[1:], len(runs))
    for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
        group = texts[start:end].tolist()
        group_sizes = sizes[texts[start:end]].tolist()
        for index in range(1, len(group)):
            size = group_sizes[index]
            for before in range(index):
                other = group_sizes[before]
                if other >= threshold * size - 1e-9 and size >= threshold * other - 1e-9:
                    pairs.add((group[index], group[before]))
    return sorted(pairs)


def _overlap(corpus: Corpus, sets: dict[int, frozenset[int]], one: int, other: int) -> float:
    """The Jaccard overlap of the runs of two texts."""
    for number in (one, other):
        if number not in sets:
            runs, _ = corpus.runs(RUN, first=number, last=number + 1)
            sets[number] = frozenset(runs.tolist())
    common = len(sets[one] & sets[other])
    return common / (len(sets[one]) + len(sets[other]) - common)


def example_shares(corpus: Corpus, examples: Sequence[str]) -> NDArray[np.float64]:
    """For each text, the largest share of the three-word runs of one example that the text has."""
    shares = np.zeros(len(corpus), np.float64)
    if not examples:
        return shares
    runs, owners = corpus_of(examples, vocabulary=corpus.vocabulary).runs(RUN)
    pairs = np.unique(np.stack((runs, owners.astype(np.uint64)), axis=1), axis=0)
    runs, owners = pairs[:, 0], pairs[:, 1].astype(np.int64)
    sizes = np.bincount(owners, minlength=len(examples))
    for first in range(0, len(corpus), _CHUNK):
        found, texts = corpus.runs(RUN, first=first, last=min(first + _CHUNK, len(corpus)))
        inside = np.isin(found, runs)
        found, texts, _ = _run_sets(found[inside], texts[inside], np.zeros(np.count_nonzero(inside), np.uint8))
        # Each run of a text counts once for every example that has it.
        start, end = np.searchsorted(runs, found, "left"), np.searchsorted(runs, found, "right")
        counts = end - start
        indices = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - start, counts)
        keys, common = np.unique(np.repeat(texts, counts) * len(examples) + owners[indices], return_counts=True)
        keys, common = keys[common >= _FEWEST_COMMON], common[common >= _FEWEST_COMMON]
        np.maximum.at(shares, keys // len(examples), common / sizes[keys % len(examples)])
    return shares
