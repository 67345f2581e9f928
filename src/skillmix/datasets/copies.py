"""Find kept texts that are exact or near copies of earlier texts, or copies of the examples in the prompts."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmix.catalog.combinations import Combination
from skillmix.datasets.corpus import Corpus, Runs, corpus_of, holds_run_of, joined, run_sets, starts_of
from skillmix.hashing import digest

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
"""The tolerance that keeps rounding from hiding an overlap that equals the threshold."""


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
    candidates = np.flatnonzero(copy_of < 0)
    near = _near_copies(corpus.part(candidates), threshold)
    copy_of[candidates] = np.where(near < 0, -1, candidates[near])
    # Exact copies of a near-copy repeat the text that the near-copy repeats.
    targets = copy_of[copy_of]
    return np.where((copy_of >= 0) & (targets >= 0), targets, copy_of)


def _near_copies(corpus: Corpus, threshold: float) -> NDArray[np.int64]:
    """Return, for each text, the index of the first kept text that it nearly repeats, or -1; all texts must differ.

    Texts are processed in order, and each is compared with the kept texts that share one of its rarest n-grams. Copies
    are not kept, so a thousand copies of one text require a thousand comparisons and not a million.
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


COPIED_WORDS: Final = 8
"""The number of consecutive words from an example that count as a copy."""


@dataclass(frozen=True, slots=True)
class KeptText:
    """A conversation whose final text received full marks from every selected grader, with its provenance."""

    run: str
    writer: str
    combination: Combination
    generation: int
    answer_span: tuple[int, int]
    """The start and end of the graded text in the last reply; storing the text would take a fifth more memory."""
    text_id: str
    replies: tuple[str, ...]
    first_status: str
    """The status of the first reply's answer: 'fine', or the reason why it cannot be parsed."""
    model: str
    requests: tuple[str, ...]
    """Hashes of the requests, one per turn."""
    written_with: str
    """The writer's prompt set and its hash."""
    graders: tuple[str, ...]
    votes: tuple[str, ...]
    """For each grader, the points from each round as JSON."""

    @property
    def text(self) -> str:
        """The graded text."""
        return self.replies[-1][self.answer_span[0] : self.answer_span[1]]

    @property
    def key(self) -> str:
        """The key of the conversation in its journal."""
        return f"generate/{self.writer}/{self.combination.id}/{self.generation}"

    @property
    def provenance(self) -> str:
        """Return the run and the key of the conversation."""
        return f"{self.run}#{self.key}"

    @property
    def identity(self) -> str:
        """Return an identity that does not depend on the run's path."""
        return f"{self.writer}/{self.combination.id}/{self.generation}/{self.text_id}"


@dataclass(frozen=True, slots=True)
class Removal:
    """A text excluded because it is a copy."""

    text_index: int
    why: Literal["repeats an example", "exact copy", "near copy"]
    copy_of: int | None = None
    """The index of the earlier text that it repeats; None if it repeats an example."""


def removals(
    corpus: Corpus, *, examples: Sequence[str], threshold: float | None, keeps_exact: bool = False
) -> list[Removal]:
    """Return the texts that are copies, in order.

    Each text is compared only with earlier texts, so later texts do not affect the result.

    A text repeats an example if it contains eight consecutive words or half of the 3-grams of the example. With
    `keeps_exact`, texts are compared only with the examples.
    """
    copied = holds_run_of(corpus, examples, length=COPIED_WORDS) | (example_shares(corpus, examples) >= FOLLOWS)
    found = [Removal(index, "repeats an example") for index in np.flatnonzero(copied).tolist()]
    if keeps_exact:
        return found
    own = np.flatnonzero(~copied)
    copy_of = earlier_copies(corpus.part(own), threshold=threshold)
    copies = np.flatnonzero(copy_of >= 0)
    for index, earlier in zip(own[copies].tolist(), own[copy_of[copies]].tolist(), strict=True):
        is_exact = np.array_equal(corpus.text(index), corpus.text(earlier))
        found.append(Removal(index, "exact copy" if is_exact else "near copy", earlier))
    return sorted(found, key=lambda removal: removal.text_index)


class CopyFound(NamedTuple):
    """An excluded text, and the text that it repeats."""

    why: str
    text: str
    repeats: str


class TextsSoFar:
    """A growing set of texts without copies.

    Each text is compared only with earlier texts, so that it does not matter how many texts are added at a time.
    """

    def __init__(self, find: Callable[[Corpus], list[Removal]]) -> None:
        self.texts: list[KeptText] = []
        self.corpus = corpus_of([])
        self._find = find

    def add(self, new: Sequence[KeptText]) -> list["int | CopyFound"]:
        """For each new text, return its number in `texts`, or the text that it copies."""
        if not new:
            return []
        added = corpus_of((kept.text for kept in new), vocabulary=self.corpus.vocabulary)
        # A new text can repeat only a text that shares an n-gram with it or is too short for n-grams.
        runs, owners = self.corpus.runs(RUN)
        is_near = self.corpus.sizes < RUN
        is_near[owners[np.isin(runs, added.runs(RUN)[0])]] = True
        near = np.flatnonzero(is_near)
        texts = [*(self.texts[number] for number in near.tolist()), *new]
        copies = {
            removal.text_index - len(near): CopyFound(
                removal.why,
                texts[removal.text_index].text,
                "an example" if removal.copy_of is None else texts[removal.copy_of].text,
            )
            for removal in self._find(joined(self.corpus.part(near), added))
        }
        own = [index for index in range(len(new)) if index not in copies]
        numbers = {index: len(self.texts) + number for number, index in enumerate(own)}
        self.texts += [new[index] for index in own]
        self.corpus = joined(self.corpus, added.part(own))
        return [copies[index] if index in copies else numbers[index] for index in range(len(new))]

    def keep_only(self, numbers: Sequence[int]) -> None:
        """Drop all texts except the texts with these numbers."""
        self.texts = [self.texts[number] for number in numbers]
        self.corpus = self.corpus.part(numbers)


def span_of(text: str, reply: str) -> tuple[int, int]:
    """Return the start and end of an answer in the reply that contains it."""
    start = reply.rfind(text)
    return start, start + len(text)


def is_for_validation(combination: str, share: float) -> bool:
    """Return whether a combination belongs to the validation split, which is the same in every data set."""
    return int.from_bytes(digest("validation", combination, size=6)) < share * 2**48
