"""Number the sets of k skills that a side allows, so that a draw can name any of them without the others."""

from bisect import bisect_right
from collections.abc import Collection
from functools import lru_cache

from skillmix.catalog.catalog import Side


class Subsets:
    """The sets of k skills of a side, numbered from 0.

    A set has at most one skill of each figure and, if the side says so, exactly one of the skills in `one`; a skill
    without a figure counts as one of its own. Without such rules this is the combinatorial number system.
    """

    def __init__(self, side: Side, k: int) -> None:
        by_figure: dict[str, list[str]] = {}
        for skill in sorted(side.skills):
            by_figure.setdefault(side.one_of_each.get(skill, skill), []).append(skill)
        self._figures = list(by_figure.values())
        self._places = {skill: place for place, skills in enumerate(self._figures) for skill in skills}
        self._k, self._special, self._ones = k, side.one or frozenset(), int(side.one is not None)
        special = [sum(skill in self._special for skill in skills) for skills in self._figures]
        # By number of special skills, size and place: the sets of that kind from the figures before the place.
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
        """The set of this number."""
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
        """The number of a set; None if the side does not allow it."""
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
        """The number of sets whose last figure is that of a skill, with this skill of it."""
        left = ones - (skill in self._special)
        return self._before[left][size - 1][self._places[skill]] if left >= 0 else 0


@lru_cache(maxsize=2048)
def subsets_of(side: Side, k: int) -> Subsets:
    """The sets of k skills of a side."""
    return Subsets(side, k)
