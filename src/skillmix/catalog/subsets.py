"""Number the sets of k skills that a side allows, so that a draw can name any of them without the others."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache
from math import comb
from typing import Protocol

from skillmix.catalog.catalog import Side


class Subsets(Protocol):
    """The sets of k skills of a side, numbered from 0."""

    total: int

    def at(self, rank: int) -> list[str]:
        """The set of this number."""
        ...

    def rank_of(self, skills: Collection[str]) -> int | None:
        """The number of a set; None if the side does not allow it."""
        ...


@lru_cache(maxsize=256)
def subsets_of(side: Side, k: int) -> Subsets:
    """The sets of k skills of a side."""
    skills = sorted(side.skills)
    figures = {side.one_of_each.get(skill, skill) for skill in skills}
    return _RuledSubsets(side, k) if side.one is not None or len(figures) < len(skills) else _AllSubsets(skills, k)


class _AllSubsets:
    """Every set of k skills, in the combinatorial number system."""

    def __init__(self, skills: Sequence[str], k: int) -> None:
        self._skills, self._k = skills, k
        self._places = {skill: place for place, skill in enumerate(skills)}
        self.total = comb(len(skills), k)

    def at(self, rank: int) -> list[str]:
        """The set of this number."""
        chosen = []
        for size in range(self._k, 0, -1):
            element = _largest_element(rank, size)
            chosen.append(self._skills[element])
            rank -= comb(element, size)
        return chosen

    def rank_of(self, skills: Collection[str]) -> int | None:
        """The number of a set."""
        places = sorted(self._places.get(skill, -1) for skill in skills)
        if places and places[0] < 0:
            return None
        return sum(comb(place, size) for size, place in enumerate(places, start=1))


class _RuledSubsets:
    """The sets with at most one skill of each figure and, if the side says so, exactly one of the skills in `one`.

    Figures come in order of their names; the sets that skip a figure come before those that have a skill of it.
    """

    def __init__(self, side: Side, k: int) -> None:
        by_figure: dict[str, list[str]] = {}
        for skill in sorted(side.skills):
            by_figure.setdefault(side.one_of_each.get(skill, skill), []).append(skill)
        self._figures = [by_figure[name] for name in sorted(by_figure)]
        self._side, self._k = side, k
        self._special = side.one or frozenset()
        self._ones = int(side.one is not None)
        # _ways[i][ones][size]: sets of that many skills of the figures from i on, of which that many must be special.
        self._ways = [[[1] + [0] * k, [0] * (k + 1)]]
        for skills in reversed(self._figures):
            special = sum(skill in self._special for skill in skills)
            none, one = self._ways[-1]
            plain = len(skills) - special
            self._ways.append(
                [
                    [none[size] + (plain * none[size - 1] if size else 0) for size in range(k + 1)],
                    [
                        one[size] + (plain * one[size - 1] + special * none[size - 1] if size else 0)
                        for size in range(k + 1)
                    ],
                ]
            )
        self._ways.reverse()
        self.total = self._ways[0][self._ones][k]

    def at(self, rank: int) -> list[str]:
        """The set of this number."""
        chosen: list[str] = []
        ones = self._ones
        for skills, ways in zip(self._figures, self._ways[1:], strict=True):
            size = self._k - len(chosen)
            if not size:
                break
            if rank < ways[ones][size]:
                continue
            rank -= ways[ones][size]
            for skill in skills:
                left = ones - (skill in self._special)
                with_skill = ways[left][size - 1] if left >= 0 else 0
                if rank < with_skill:
                    chosen.append(skill)
                    ones = left
                    break
                rank -= with_skill
        return chosen

    def rank_of(self, skills: Collection[str]) -> int | None:
        """The number of a set; None if the side does not allow it."""
        if len(skills) != self._k or not self._side.holds(skills):
            return None
        rank, size, ones = 0, self._k, self._ones
        for of_figure, ways in zip(self._figures, self._ways[1:], strict=True):
            chosen = next((skill for skill in of_figure if skill in skills), None)
            if chosen is None:
                continue
            rank += ways[ones][size]
            for skill in of_figure[: of_figure.index(chosen)]:
                left = ones - (skill in self._special)
                rank += ways[left][size - 1] if left >= 0 else 0
            ones -= chosen in self._special
            size -= 1
        return rank


def _largest_element(rank: int, size: int) -> int:
    """The largest n with comb(n, size) <= rank: from a table, or by doubling and halving beyond its end."""
    table = _binomials(size)
    if rank < table[-1]:
        return bisect_right(table, rank) - 1
    low, high = size - 1, size
    while comb(high, size) <= rank:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if comb(middle, size) <= rank else (low, middle)
    return low


@lru_cache(maxsize=64)
def _binomials(size: int) -> list[int]:
    """comb(n, size) for small n."""
    return [comb(n, size) for n in range(128)]
