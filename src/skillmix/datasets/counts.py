"""Count the texts in a data set, measure their variety, and count the excluded texts by reason."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median
from typing import TypeVar

from skillmix.catalog.combinations import is_reserved
from skillmix.datasets.copies import example_shares
from skillmix.datasets.corpus import Corpus, Frame, distinct_share, repeated_frames
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.datasets.kept_texts import KeptText
from skillmix.datasets.leakage import NamedSkill

_Name = TypeVar("_Name", str, tuple[str, str])


@dataclass(frozen=True, slots=True)
class SamplingYield:
    """The result of writing texts until a target is met, for one k."""

    k: int
    target: int
    written: int
    full_marks: int
    taken: int
    below_floor: dict[str, int] = field(default_factory=dict)
    """Skills with fewer texts than the floor, with their counts."""
    floor: int = 0
    ceiling: int | None = None
    least: int | None = None
    """The number of texts that later steps need; None for the whole target."""

    @property
    def is_enough(self) -> bool:
        """Return whether later steps have enough texts."""
        return self.taken >= (self.target if self.least is None else min(self.least, self.target))

    @property
    def rate(self) -> float | None:
        """Return the share of conversations with full marks."""
        return self.full_marks / self.written if self.written else None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Texts excluded from a data set, counted by reason."""

    less: int = 0
    """Texts with less than full marks."""
    undecided: int = 0
    """Texts about which the graders have not decided."""
    unfinished: int = 0
    """Conversations that are unfinished."""
    not_conversations: int = 0
    """Texts without two turns, such as imported ones."""
    outside: dict[str, int] = field(default_factory=dict)
    """Texts with full marks outside the recipe, by the rule that excludes them."""
    removed: dict[str, int] = field(default_factory=dict)
    """Copies, counted by kind."""
    shown: dict[str, int] = field(default_factory=dict)
    """Texts that show forbidden content, by reason."""
    examples: tuple[tuple[str, str, str], ...] = ()
    """Some of the copies, each as the reason, the text and the text that it repeats."""


@dataclass(frozen=True)
class DatasetCounts:
    """The counts on a data set's card."""

    texts: int
    by_k: dict[int, int]
    by_skill: dict[str, int]
    by_topic: dict[str, int]
    by_pair: dict[tuple[str, str], int]
    by_writer: dict[str, int]
    written_with: tuple[str, ...]
    """The prompt sets of the writers, with their hashes."""
    graders: tuple[str, ...]
    first_answers: dict[str, int]
    words: tuple[int, float, int] | None
    """The numbers of words in the shortest, median and longest text."""
    words_by_k: dict[int, float]
    """The median number of words, by k."""
    distinct_4: float | None
    frames: list[Frame]
    framed: int
    """Texts with a 6-gram that three or more texts share."""
    holding_reserved: int
    """Texts whose skill set contains a smaller, reserved set."""
    named: list[NamedSkill]
    near_examples: int
    """Texts that contain a quarter or more of an example's 3-grams."""
    shown: dict[str, int]
    """Kept texts that show forbidden content, by reason; empty if such texts are excluded."""


def figures_of(
    texts: Sequence[KeptText], corpus: Corpus, plan: DatasetPlan, *, named: list[NamedSkill], shown: dict[str, int]
) -> DatasetCounts:
    """Count the texts of a data set."""
    lengths = corpus.sizes.tolist()
    by_k: dict[int, array[int]] = {}
    skills, topics, writers, first_answers = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    sets: Counter[tuple[str, ...]] = Counter()
    for kept, length in zip(texts, lengths, strict=True):
        combination = kept.combination
        by_k.setdefault(combination.k, array("q")).append(length)
        skills.update(combination.skills)
        topics[combination.topic] += 1
        writers[f"{kept.writer} in {kept.run}: {kept.model}"] += 1
        first_answers[kept.first_status] += 1
        sets[tuple(sorted(combination.skills))] += 1
    pairs: Counter[tuple[str, str]] = Counter()
    holding_reserved = 0
    for own, count in sets.items():
        pairs.update(dict.fromkeys(combinations(own, 2), count))
        parts = (part for size in (2, 3) if size < len(own) for part in combinations(own, size))
        holding_reserved += count if any(is_reserved(part, plan.bars.reserved) for part in parts) else 0
    frames, framed = repeated_frames(corpus, 6, most=10)
    return DatasetCounts(
        texts=len(texts),
        by_k={k: len(by_k[k]) for k in sorted(by_k)},
        by_skill=_by_count(skills),
        by_topic=_by_count(topics),
        by_pair=_by_count(pairs),
        by_writer=_by_count(writers),
        written_with=tuple(sorted({kept.written_with for kept in texts})),
        graders=tuple(sorted({grader for kept in texts for grader in kept.graders})),
        first_answers=_by_count(first_answers),
        words=(min(lengths), median(lengths), max(lengths)) if lengths else None,
        words_by_k={k: median(by_k[k]) for k in sorted(by_k)},
        distinct_4=distinct_share(corpus, 4),
        frames=frames,
        framed=framed,
        holding_reserved=holding_reserved,
        named=named,
        near_examples=int((example_shares(corpus, plan.examples) >= 0.25).sum()),
        shown=shown,
    )


def _by_count(counts: "Counter[_Name]") -> dict[_Name, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
