"""Draw combinations of k skills and a topic by hash, without replacement and identically on every machine.

Draws for evaluations and for training data are disjoint: a training draw skips the first fifth of every evaluation draw
of the same catalog and seed.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Final, Literal

from skillmix.catalog.catalog import Setting, Side
from skillmix.errors import UserError
from skillmix.hashing import digest, permuted, ranked, short_id, unpermuted
from skillmix.render import plural


class Subsets:
    """The sets of k skills that a side allows, numbered from 0.

    A set has at most one skill of each figure and, if the side requires it, exactly one skill in `one`. A skill without
    a figure counts as its own figure. Without such rules, the numbering is the combinatorial number system.
    """

    def __init__(self, side: Side, k: int) -> None:
        by_figure: dict[str, list[str]] = {}
        for skill in sorted(side.skills):
            by_figure.setdefault(side.one_of_each.get(skill, skill), []).append(skill)
        self._figures = list(by_figure.values())
        self._places = {skill: place for place, skills in enumerate(self._figures) for skill in skills}
        self._k, self._special, self._ones = k, side.one or frozenset(), int(side.one is not None)
        special = [sum(skill in self._special for skill in skills) for skills in self._figures]
        # By the number of skills in `one`, size and place: the number of sets from the figures before this place.
        self._before = [[[1 - ones] * (len(self._figures) + 1)] for ones in range(self._ones + 1)]
        for size in range(1, k + 1):
            for ones, tables in enumerate(self._before):
                counts = [0]
                for place, skills in enumerate(self._figures):
                    ways = (len(skills) - special[place]) * tables[size - 1][place]
                    ways += special[place] * self._before[0][size - 1][place] if ones else 0
                    counts.append(counts[-1] + ways)
                tables.append(counts)
        self.total = self._before[self._ones][k][-1]

    def at(self, rank: int) -> list[str]:
        """Return the set with this number."""
        chosen, ones = [], self._ones
        for size in range(self._k, 0, -1):
            counts = self._before[ones][size]
            place = bisect_right(counts, rank) - 1
            rank -= counts[place]
            for skill in self._figures[place]:
                with_skill = self._with(skill, ones, size)
                if rank < with_skill:
                    break
                rank -= with_skill
            chosen.append(skill)
            ones -= skill in self._special
        return chosen

    def rank_of(self, skills: Collection[str]) -> int | None:
        """Return the number of a set; None if the side does not allow it."""
        if len(skills) != self._k or not self._places.keys() >= set(skills):
            return None
        rank, ones, last = 0, self._ones, len(self._figures)
        ordered = sorted(skills, key=self._places.__getitem__, reverse=True)
        for size, chosen in zip(range(self._k, 0, -1), ordered, strict=True):
            place = self._places[chosen]
            if place == last or (chosen in self._special and not ones):
                return None
            others = self._figures[place][: self._figures[place].index(chosen)]
            rank += self._before[ones][size][place] + sum(self._with(skill, ones, size) for skill in others)
            ones, last = ones - (chosen in self._special), place
        return None if ones else rank

    def _with(self, skill: str, ones: int, size: int) -> int:
        """Count the sets whose last figure contributes this skill."""
        left = ones - (skill in self._special)
        return self._before[left][size - 1][self._places[skill]] if left >= 0 else 0


@lru_cache(maxsize=2048)
def subsets_of(side: Side, k: int) -> Subsets:
    """Return the sets of k skills that a side allows."""
    return Subsets(side, k)


Purpose = Literal["training", "evaluation"]
EVALUATION_SHARE: Final = 0.2
"""The share at the start of each evaluation draw that training draws avoid."""


@dataclass(frozen=True, slots=True)
class Combination:
    """k different skills, in the order of prompts, and a topic."""

    id: str
    skills: tuple[str, ...]
    topic: str

    @property
    def k(self) -> int:
        """Return the number of skills."""
        return len(self.skills)


@dataclass(frozen=True, slots=True)
class Draw:
    """Everything that determines a sequence of combinations except its length."""

    side: Side
    setting: Setting
    k: int
    seed: int
    purpose: Purpose = "evaluation"
    evaluations: tuple["Draw", ...] = ()
    """The evaluation draws that a training draw avoids."""
    without: frozenset[str] = frozenset()
    """Ids of combinations to skip, because a student was trained on them."""

    def __post_init__(self) -> None:
        if (self.purpose == "training") != bool(self.evaluations):
            raise ValueError("only a training draw lists evaluation draws to avoid")

    @property
    def key(self) -> bytes:
        """Return the key of the permutation that orders the combinations."""
        return digest("draw", self.purpose, self.setting, self.k, self.seed, size=32)

    @property
    def total(self) -> int:
        """Return the number of different combinations."""
        return subsets_of(self.side, self.k).total * len(self.side.topics)


def training_draw(draw: Draw, pools: Iterable[tuple[Setting, Side]]) -> Draw:
    """Convert a draw to a draw for training data, which avoids the evaluation draws of all pools."""
    evaluations = tuple(Draw(side=side, setting=setting, k=draw.k, seed=draw.seed) for setting, side in pools)
    return replace(draw, purpose="training", evaluations=evaluations)


def combination_of(skills: tuple[str, ...] | list[str], topic: str) -> Combination:
    """Make a combination; its id and its order of skills do not depend on the given order.

    >>> combination_of(["a", "b"], "t") == combination_of(["b", "a"], "t")
    True
    """
    if len(set(skills)) != len(skills) or not skills:
        raise UserError(f"A combination needs different skills, not {list(skills)}.", hint="Name each skill once.")
    return _combination(skills, topic)


def _combination(skills: Sequence[str], topic: str) -> Combination:
    """Make a combination, which may be a plain topic with k = 0."""
    identity = combination_id(skills, topic)
    return Combination(id=identity, skills=tuple(ranked(list(skills), "order", identity)), topic=topic)


def single_skills(combination: Combination) -> list[Combination]:
    """Return a combination on the same topic for each skill, or the combination itself if it has no skills."""
    return [combination_of([skill], combination.topic) for skill in combination.skills] or [combination]


def combination_id(skills: Sequence[str], topic: str) -> str:
    """Compute the id of a combination, which does not depend on the order of its skills."""
    return short_id("combination", sorted(skills), topic)


def draw_combinations(draw: Draw, count: int) -> list[Combination]:
    """Return the first `count` combinations of a draw; a longer draw starts with the shorter one.

    Combinations that no text can show are skipped, so the draws before a newly impossible combination do not change.
    """
    return _first(draw, count, all_combinations(draw), "are possible", "")


def _first(draw: Draw, count: int, found: Iterable[Combination], what: str, other: str) -> list[Combination]:
    check_size(draw, count)
    drawn = list(islice(found, count))
    if len(drawn) < count:
        besides = " besides those that a student was trained on" if draw.without else ""
        raise UserError(
            f"Only {len(drawn)} combinations of k = {draw.k} {what}{besides}, but {count} were requested.",
            hint=f"Request at most {len(drawn)}{other}.",
        )
    return drawn


def all_combinations(draw: Draw) -> Iterator[Combination]:
    """Yield all possible combinations of a draw in order, except the combinations that it must skip."""
    check_size(draw, 0)
    key = draw.key
    evaluations = list(map(_begins_with, draw.evaluations))
    subsets, topics = subsets_of(draw.side, draw.k), sorted(draw.side.topics)
    impossible = [group for group in draw.side.impossible if len(group) <= draw.k]
    total = draw.total
    for index in range(total):
        rank, topic = divmod(permuted(index, total, key), len(topics))
        chosen = subsets.at(rank)
        if any(map(set(chosen).issuperset, impossible)):
            continue
        if any(begins_with(chosen, topics[topic]) for begins_with in evaluations):
            continue
        combination = _combination(chosen, topics[topic])
        if combination.id not in draw.without:
            yield combination


def _begins_with(draw: Draw) -> Callable[[Collection[str], str], bool]:
    """Make a predicate for combinations in the part of an evaluation draw that training draws avoid."""
    subsets, total, key = subsets_of(draw.side, draw.k), draw.total, draw.key
    topics = {topic: index for index, topic in enumerate(sorted(draw.side.topics))}

    def begins_with(skills: Collection[str], topic: str) -> bool:
        rank = subsets.rank_of(skills) if topic in topics else None
        if rank is None:
            return False
        return unpermuted(rank * len(topics) + topics[topic], total, key) < int(EVALUATION_SHARE * total)

    return begins_with


def is_reserved(skills: Sequence[str], share: float) -> bool:
    """Return whether a skill set is reserved: excluded from all data sets, and reported separately.

    The choice hashes only the names, so it is the same for every seed, and a larger share only adds sets.

    >>> is_reserved(["a", "b"], 1.0), is_reserved(["a"], 1.0), is_reserved(["a", "b"], 0.0)
    (True, False, False)
    """
    rank = int.from_bytes(digest("reserved", tuple(sorted(skills)), size=6))
    return len(skills) > 1 and share > 0 and rank < share * 2**48


def draw_reserved(draw: Draw, count: int, share: float) -> list[Combination]:
    """Return the first `count` combinations with reserved skill sets; a longer draw starts with the shorter one."""
    if draw.k < 2 or share <= 0:
        hint = "Set k to 2 or more and leakage.reserved above 0."
        raise UserError(f"No skill set of k = {draw.k} is reserved at a share of {share:g}.", hint=hint)
    found = (combination for combination in all_combinations(draw) if is_reserved(combination.skills, share))
    return _first(draw, count, found, "have a reserved skill set", ", or for a larger share in leakage.reserved")


def draw_all(draw: Draw, reserved: float | None = None) -> list[Combination]:
    """Return all combinations of a draw, or only those whose skill sets are reserved at the given share."""
    if draw.total > 100_000:
        raise UserError(
            f"Setting {draw.setting!r} has {draw.total:,} combinations of k = {draw.k}, which are too many to draw.",
            hint="Request a number instead of all.",
        )
    drawn = [c for c in all_combinations(draw) if reserved is None or is_reserved(c.skills, reserved)]
    if not drawn:
        raise UserError(
            f"Setting {draw.setting!r} has no combination of k = {draw.k}.", hint="Remove this setting or k."
        )
    return drawn


def draw_ladder(draw: Draw, count: int) -> list[Combination]:
    """Draw combinations of draw.k skills, the n-th of which adds a skill to the n-th combination of k - 1 skills.

    Scores at different k then differ only by the added skills.
    """
    check_size(draw, count)
    first = replace(draw, k=1, evaluations=tuple(replace(evaluation, k=1) for evaluation in draw.evaluations))
    chains = first.total
    if count > chains:
        raise UserError(
            f"{count} ladders were requested, but there are only {chains} pairs of a skill and a topic to start from.",
            hint=f"Request at most {chains}.",
        )
    rung = draw_combinations(first, count)
    for _ in range(1, draw.k):
        taken: set[str] = set()
        rung = [_extended(c, draw, taken=taken, index=index) for index, c in enumerate(rung)]
    return rung


def _extended(base: Combination, draw: Draw, *, taken: set[str], index: int) -> Combination:
    barred = {s for group in draw.side.impossible if group & set(base.skills) for s in group}
    others = [
        s for s in draw.side.skills if s not in base.skills and s not in barred and draw.side.holds((*base.skills, s))
    ]
    for skill in ranked(others, "ladder", draw.purpose, draw.setting, draw.seed, base.id):
        longer = combination_of([*base.skills, skill], base.topic)
        if longer.id not in taken and longer.id not in draw.without:
            taken.add(longer.id)
            return longer
    raise UserError(
        f"Only {index} different ladders lead to k = {draw.k}.", hint=f"Request at most {index}, or a smaller k."
    )


def check_size(draw: Draw, count: int) -> None:
    """Reject a draw with an impossible k, or of more combinations than exist."""
    available = draw.side.most_skills
    least = 0 if draw.side.may_be_plain else 1
    if not least <= draw.k <= available:
        skills = plural(len(draw.side.skills), "skill")
        raise UserError(
            f"k = {draw.k} is not possible: setting {draw.setting!r} draws from {skills}.",
            hint=f"Choose k from {least} to {available}. Excluded skills, and skills in no group of the partition, are "
            f"never drawn{', and no figure is drawn twice' if draw.side.one_of_each else ''}.",
        )
    if count < 0:
        raise UserError(f"n = {count} is not a number of combinations.", hint="Choose 0 or more.")
    if count > draw.total:
        raise UserError(
            f"{count} combinations of k = {draw.k} were requested, but setting {draw.setting!r} has only {draw.total}.",
            hint=f"Request at most {draw.total}.",
        )
