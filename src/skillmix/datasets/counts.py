"""Count the texts in a data set, measure their variety, and count the excluded texts by reason."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median
from typing import TypeVar

from skillmix.catalog.combinations import is_reserved
from skillmix.datasets.corpus import Corpus, distinct_share, example_shares, repeated_frames
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


class DatasetCounts:
    """The counts on a data set's card."""

    def __init__(
        self,
        texts: Sequence[KeptText],
        corpus: Corpus,
        plan: DatasetPlan,
        named: list[NamedSkill],
        shown: dict[str, int],
    ) -> None:
        lengths = corpus.sizes.tolist()
        lengths_by_k: dict[int, array[int]] = {}
        skills, topics, writers, first_answers = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        sets: Counter[tuple[str, ...]] = Counter()
        for kept, length in zip(texts, lengths, strict=True):
            combination = kept.combination
            lengths_by_k.setdefault(combination.k, array("q")).append(length)
            skills.update(combination.skills)
            topics[combination.topic] += 1
            writers[f"{kept.writer} in {kept.run}: {kept.model}"] += 1
            first_answers[kept.first_status] += 1
            sets[tuple(sorted(combination.skills))] += 1
        pairs: Counter[tuple[str, str]] = Counter()
        self.holding_reserved = 0
        """Texts whose skill set contains a smaller, reserved set."""
        for own, count in sets.items():
            pairs.update(dict.fromkeys(combinations(own, 2), count))
            parts = (part for size in (2, 3) if size < len(own) for part in combinations(own, size))
            self.holding_reserved += count if any(is_reserved(part, plan.bars.reserved) for part in parts) else 0
        self.texts = len(texts)
        self.by_k = {k: len(lengths_by_k[k]) for k in sorted(lengths_by_k)}
        self.by_skill, self.by_topic, self.by_pair = _by_count(skills), _by_count(topics), _by_count(pairs)
        self.by_writer = _by_count(writers)
        self.written_with = tuple(sorted({kept.written_with for kept in texts}))
        """The prompt sets of the writers, with their hashes."""
        self.graders = tuple(sorted({grader for kept in texts for grader in kept.graders}))
        self.first_answers = _by_count(first_answers)
        self.words = (min(lengths), median(lengths), max(lengths)) if lengths else None
        """The numbers of words in the shortest, median and longest text."""
        self.words_by_k = {k: median(lengths_by_k[k]) for k in self.by_k}
        """The median number of words, by k."""
        self.distinct_4 = distinct_share(corpus, 4)
        self.frames, self.framed = repeated_frames(corpus, 6, most=10)
        """The most frequently shared 6-grams, and the number of texts with a 6-gram that three or more texts share."""
        self.named = named
        self.near_examples = int((example_shares(corpus, plan.examples) >= 0.25).sum())
        """Texts that contain a quarter or more of an example's 3-grams."""
        self.shown = shown
        """Kept texts that show forbidden content, by reason; empty if such texts are excluded."""


def _by_count(counts: "Counter[_Name]") -> dict[_Name, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
