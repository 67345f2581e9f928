"""The record of a kept text, and the choice of which texts are copies or for validation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from skillmix.catalog.combinations import Combination
from skillmix.datasets.copies import FOLLOWS, RUN, earlier_copies, example_shares
from skillmix.datasets.corpus import Corpus, corpus_of, holds_run_of, joined
from skillmix.hashing import digest

COPIED_WORDS: Final = 8
"""The number of consecutive words of an example that make a copy."""


@dataclass(frozen=True, slots=True)
class KeptText:
    """A conversation whose final text got full marks from every chosen grader, with its provenance."""

    run: str
    writer: str
    combination: Combination
    generation: int
    answer_span: tuple[int, int]
    """The start and end of the graded text in the last reply; a copy would take a fifth more memory."""
    text_id: str
    replies: tuple[str, ...]
    first_status: str
    """The status of the first reply's answer: 'fine', or why it cannot be read."""
    model: str
    requests: tuple[str, ...]
    """Hashes of the requests, turn by turn."""
    written_with: str
    """The writer's prompt set and its hash."""
    graders: tuple[str, ...]
    votes: tuple[str, ...]
    """For each grader, the points of each round as JSON."""

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
        """The run and the key of the conversation."""
        return f"{self.run}#{self.key}"

    @property
    def identity(self) -> str:
        """An identity that does not depend on the run's path."""
        return f"{self.writer}/{self.combination.id}/{self.generation}/{self.text_id}"


@dataclass(frozen=True, slots=True)
class Removal:
    """A text left out because it is a copy."""

    text_index: int
    why: Literal["repeats an example", "exact copy", "near copy"]
    copy_of: int | None = None
    """Index of the earlier text that it repeats; None for an example."""


def removals(
    corpus: Corpus, *, examples: Sequence[str], threshold: float | None, keeps_exact: bool = False
) -> list[Removal]:
    """The copies among texts, in order; each text is compared with earlier ones only, so later texts change nothing.

    A text repeats an example if it has eight words of it in a row, or half of its three-word runs. With `keeps_exact`,
    texts are compared with the examples only.
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
    """A text that is left out, and what it repeats."""

    why: str
    text: str
    repeats: str


class TextsSoFar:
    """Texts of which none is a copy, while more and more come.

    Each text is compared with earlier ones only, so that it does not matter how many come at a time.
    """

    def __init__(self, find: Callable[[Corpus], list[Removal]]) -> None:
        self.texts: list[KeptText] = []
        self.corpus = corpus_of([])
        self._find = find

    def add(self, new: Sequence[KeptText]) -> list["int | CopyFound"]:
        """The number of each new text among `texts`, or what it copies."""
        if not new:
            return []
        added = corpus_of((kept.text for kept in new), vocabulary=self.corpus.vocabulary)
        # Only texts that share a run of words with a new one, or are too short to have one, can be repeated.
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
        """Forget all other texts."""
        self.texts = [self.texts[number] for number in numbers]
        self.corpus = self.corpus.part(numbers)


def span_of(text: str, reply: str) -> tuple[int, int]:
    """The start and end of an answer in the reply that it was taken from."""
    start = reply.rfind(text)
    return start, start + len(text)


def is_for_validation(combination: str, share: float) -> bool:
    """Whether a combination belongs to the validation split, which is the same in every data set."""
    return int.from_bytes(digest("validation", combination, size=6)) < share * 2**48
