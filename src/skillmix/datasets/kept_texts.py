"""The record of a kept text, and the selection of copies and of the validation split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from skillmix.catalog.combinations import Combination
from skillmix.datasets.corpus import (
    FOLLOWS,
    RUN,
    Corpus,
    corpus_of,
    earlier_copies,
    example_shares,
    holds_run_of,
    joined,
)
from skillmix.hashing import digest

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

    A text repeats an example if it contains eight consecutive words from the example, or half of its 3-grams. With
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
        """Drop all texts except those with these numbers."""
        self.texts = [self.texts[number] for number in numbers]
        self.corpus = self.corpus.part(numbers)


def span_of(text: str, reply: str) -> tuple[int, int]:
    """Return the start and end of an answer in the reply that contains it."""
    start = reply.rfind(text)
    return start, start + len(text)


def is_for_validation(combination: str, share: float) -> bool:
    """Return whether a combination belongs to the validation split, which is the same in every data set."""
    return int.from_bytes(digest("validation", combination, size=6)) < share * 2**48
