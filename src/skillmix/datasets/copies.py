"""Find exact and near copies of earlier kept texts, and copies of the examples in the prompts."""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from skillmix.datasets.corpus import Corpus, Runs, corpus_of, run_sets, starts_of

RUN: Final = 3
"""The length of the n-grams by which texts are compared."""
FOLLOWS: Final = 0.5
"""A text that contains this share of an example's 3-grams counts as a near-copy.

One changed word affects at most three 3-grams, which is half of the 3-grams in an example with eight words, and a
smaller share in a longer example.
"""
_FEWEST_COMMON: Final = 3
"""A text that shares fewer n-grams with an example is not a near-copy, however short the example is."""
_SETS_AT_HAND: Final = 20_000
_ROUNDING: Final = 1e-9
"""A tolerance, so that rounding does not hide an overlap that equals the threshold."""


def earlier_copies(corpus: Corpus, *, threshold: float | None) -> NDArray[np.int64]:
    """Return, for each text, the index of the earlier kept text that it repeats; -1 for kept texts.

    Two texts repeat each other if they have the same words in the same order, or if the Jaccard overlap of their sets
    of 3-grams reaches the threshold. The result is exact and not an estimate, because two sets that overlap enough
    always share one of their rarest members.
    """
    copy_of = np.full(len(corpus), -1, np.int64)
    first_with: dict[bytes, int] = {}
    for number, (start, end) in enumerate(pairwise(corpus.starts.tolist())):
        # Two different texts practically never have the same 16-byte hash.
        first = first_with.setdefault(blake2b(corpus.words[start:end].tobytes(), digest_size=16).digest(), number)
        copy_of[number] = first if first < number else -1
    if threshold is None:
        return copy_of
    # Skip texts with too many n-grams that occur nowhere else, which most texts have.
    runs, texts = corpus.runs(RUN)
    alone = np.bincount(texts[_counts(runs) == 1], minlength=len(corpus))
    may_overlap = alone <= (1 - threshold) * np.maximum(corpus.sizes - (RUN - 1), 0) + _ROUNDING
    candidates = np.flatnonzero((copy_of < 0) & may_overlap)
    near = _near_copies(corpus.part(candidates), threshold)
    copy_of[candidates] = np.where(near < 0, -1, candidates[near])
    # Exact copies of a near-copy repeat the text that the near-copy repeats.
    targets = copy_of[copy_of]
    return np.where((copy_of >= 0) & (targets >= 0), targets, copy_of)


def _near_copies(corpus: Corpus, threshold: float) -> NDArray[np.int64]:
    """Return, for each of some texts with different words, the index of the first kept text that it repeats, or -1.

    Texts are processed in order, and each is compared with the kept texts that share one of its rarest n-grams. A copy
    is not kept, so that a thousand copies of one text require a thousand comparisons and not a million.
    """
    runs, texts = run_sets(*corpus.runs(RUN))
    sizes = np.bincount(texts, minlength=len(corpus))
    ends = np.cumsum(sizes)
    copy_of = np.full(len(corpus), -1, np.int64)
    kept_with: defaultdict[int, list[int]] = defaultdict(list)
    """For each n-gram, the kept texts that contain it, in order."""

    @lru_cache(_SETS_AT_HAND)
    def run_set(text: int) -> frozenset[int]:
        return frozenset(runs[ends[text] - sizes[text] : ends[text]].tolist())

    rare_runs, owners = _rarest(runs, texts, threshold)
    for start, end in pairwise([*starts_of(owners).tolist(), len(owners)]):
        text, own = int(owners[start]), rare_runs[start:end].tolist()
        for other in sorted({other for run in own for other in kept_with[run]}):
            smaller, larger = sorted((int(sizes[text]), int(sizes[other])))
            if smaller >= threshold * larger - _ROUNDING:
                common = len(run_set(text) & run_set(other))
                if common / (smaller + larger - common) >= threshold:
                    copy_of[text] = other
                    break
        else:
            for run in own:
                kept_with[run].append(text)
    return copy_of


def _counts(runs: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Count how often each n-gram occurs."""
    order = np.argsort(runs)
    starts = starts_of(runs[order])
    counts = np.diff(np.append(starts, len(runs)))
    often = np.empty(len(runs), np.int64)
    often[order] = np.repeat(counts, counts)
    return often


def _rarest(runs: NDArray[np.uint64], texts: NDArray[np.int64], threshold: float) -> Runs:
    """Return enough of the rarest n-grams of each text that two overlapping texts share at least one.

    An n-gram that occurs in a single text is omitted.
    """
    often = _counts(runs)
    # n-grams of equal frequency are in the same order in every text
    order = np.lexsort((runs, often, texts))
    runs, texts, often = runs[order], texts[order], often[order]
    starts = starts_of(texts)
    sizes = np.diff(np.append(starts, len(texts)))
    rank = np.arange(len(texts)) - np.repeat(starts, sizes)
    prefix = sizes - np.ceil(threshold * sizes - _ROUNDING).astype(np.int64) + 1
    chosen = (rank < np.repeat(prefix, sizes)) & (often > 1)
    return runs[chosen], texts[chosen]


def example_shares(corpus: Corpus, examples: Sequence[str]) -> NDArray[np.float64]:
    """Return, for each text, the largest share of any example's 3-grams that the text contains."""
    runs, owners = run_sets(*corpus_of(examples, vocabulary=corpus.vocabulary).runs(RUN))
    found, texts = corpus.runs(RUN)
    inside = np.isin(found, runs)
    found, texts = run_sets(found[inside], texts[inside])
    shares = np.zeros(len(corpus), np.float64)
    for own in np.split(runs, starts_of(owners)[1:]):
        near, common = np.unique(texts[np.isin(found, own)], return_counts=True)
        near, common = near[common >= _FEWEST_COMMON], common[common >= _FEWEST_COMMON]
        shares[near] = np.maximum(shares[near], common / len(own))
    return shares
