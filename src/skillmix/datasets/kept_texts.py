"""A conversation with full marks, and which of many go into a data set."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final, Literal

from skillmix.catalog.combinations import Combination
from skillmix.datasets.copies import earlier_copies
from skillmix.datasets.corpus import Corpus, holds_run_of
from skillmix.hashing import digest

COPIED_WORDS: Final = 8
"""So many words in a row of an example make a copy of it."""


@dataclass(frozen=True, slots=True)
class KeptText:
    """A conversation whose final text every chosen grader gave full marks, with all that is known of it."""

    run: str
    writer: str
    combination: Combination
    generation: int
    answer_span: tuple[int, int]
    """Where the graded text stands in the second reply; a second copy would be a fifth of a large set's memory."""
    text_id: str
    replies: tuple[str, str]
    first_status: str
    """What the first reply's answer is like: 'fine', or why a reader could not use it."""
    model: str
    requests: tuple[str, str]
    """Hashes of the two requests."""
    written_with: str
    """The prompt set of the writer, and its hash."""
    graders: tuple[str, ...]
    votes: tuple[str, ...]
    """For each grader, JSON: the points of each round."""

    def __reduce__(self) -> tuple[type["KeptText"], tuple[object, ...]]:
        """They go between processes by the hundred thousand, for which what dataclasses do by themselves is slow."""
        return KeptText, _fields(self)

    @property
    def text(self) -> str:
        """The graded text."""
        return self.replies[1][self.answer_span[0] : self.answer_span[1]]

    @property
    def key(self) -> str:
        """The journal's name for the conversation."""
        return f"generate/{self.writer}/{self.combination.id}/{self.generation}"

    @property
    def provenance(self) -> str:
        """Where it is from, among all runs."""
        return f"{self.run}#{self.key}"

    @property
    def identity(self) -> str:
        """What it is, wherever its run lies."""
        return f"{self.writer}/{self.combination.id}/{self.generation}/{self.text_id}"


_fields: Final = attrgetter(*[f.name for f in fields(KeptText)])


@dataclass(frozen=True, slots=True)
class Removal:
    """A text that is left out for its own sake."""

    text_index: int
    why: Literal["repeats an example", "exact copy", "near copy"]
    copy_of: int | None = None
    """Index of the earlier text that it repeats; None for an example."""


def removals(corpus: Corpus, *, examples: Sequence[str], threshold: float | None) -> list[Removal]:
    """The texts to leave out, in order: each is compared with earlier ones only, so a longer list changes nothing."""
    copied = holds_run_of(corpus, examples, length=COPIED_WORDS)
    own = [index for index in range(len(corpus)) if not copied[index]]
    by_index = {index: Removal(index, "repeats an example") for index in range(len(corpus)) if copied[index]}
    for index, earlier in zip(own, earlier_copies(corpus.part(own), threshold=threshold), strict=True):
        if earlier is not None:
            is_exact = _same_words(corpus, index, own[earlier])
            by_index[index] = Removal(index, "exact copy" if is_exact else "near copy", own[earlier])
    return [by_index[index] for index in sorted(by_index)]


def _same_words(corpus: Corpus, one: int, other: int) -> bool:
    return corpus.text(one).tobytes() == corpus.text(other).tobytes()


def span_of(text: str, reply: str) -> tuple[int, int]:
    """Where an answer stands in the reply that it was taken from."""
    start = reply.rfind(text)
    return start, start + len(text)


def is_for_validation(combination: str, share: float) -> bool:
    """Whether the texts of a combination are for validation; the same in every data set."""
    return int.from_bytes(digest("validation", combination, size=6)) < share * 2**48
