"""Sample to a target in waves: choose which conversations to write next, and which accepted texts to take.

Every choice depends only on the order of the candidates and on the outcome of earlier ones, never on when an answer
arrived. A run that was killed therefore continues to the same set.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from math import ceil
from typing import Final, NamedTuple

from skillmix.catalog.combinations import Combination

_SMALLEST_WAVE: Final = 16
_GROWTH: Final = 4
"""A wave is at most this many times the number of earlier conversations, since an early yield is a guess."""
_TRIES_FOR_A_FLOOR: Final = 100
"""Conversations for each text of the floor after which the sampler gives up on a skill."""


class Candidate(NamedTuple):
    """A conversation that may be written."""

    combination: Combination
    generation: int


@dataclass(frozen=True, slots=True)
class Target:
    """The target for one k."""

    kept: int
    most: int
    """The most conversations to write."""
    floor: int = 0
    ceiling: int | None = None
    skills: tuple[str, ...] = ()
    """All skills of the candidates; the floor applies to each."""


class Candidates:
    """An endless sequence: every combination `generations` times, then all again with new generations; drawn lazily."""

    def __init__(self, combinations: Iterable[Combination], *, generations: int = 1) -> None:
        self._source = iter(combinations)
        self._drawn: list[Combination] = []
        self._is_whole = False
        self._generations = generations

    def __getitem__(self, index: int) -> Candidate:
        """The candidate at an index; IndexError only if no combination exists."""
        wanted, generation = divmod(index, self._generations)
        while not self._is_whole and len(self._drawn) <= wanted:
            combination = next(self._source, None)
            if combination is None:
                self._is_whole = True
            else:
                self._drawn.append(combination)
        if not self._drawn:
            raise IndexError(index)
        turn, number = divmod(wanted, len(self._drawn)) if self._is_whole else (0, wanted)
        return Candidate(self._drawn[number], turn * self._generations + generation)


@dataclass(slots=True)
class Sampler:
    """Plans waves of one k and takes texts from them."""

    candidates: Candidates
    target: Target
    tried: list[Candidate] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    is_exhausted: bool = False
    """Whether no more candidates may be written, or none of them could be taken."""
    _next: int = 0

    @property
    def taken(self) -> list[int]:
        """The indices of the taken texts among the tried ones, in order."""
        given_up = self.target.skills if self.is_exhausted else self.hopeless
        return take(self.tried, self.accepted, self.target, hopeless=given_up)

    @property
    def below_floor(self) -> dict[str, int]:
        """Skills with fewer taken texts than the floor, with their counts."""
        counts = _counts(self.tried[index] for index in self.taken)
        return {skill: counts[skill] for skill in _lacking(counts, self.target, ())}

    @property
    def yielded(self) -> float | None:
        """The share of conversations that were accepted; None before the first."""
        return sum(self.accepted) / len(self.accepted) if self.accepted else None

    @property
    def hopeless(self) -> frozenset[str]:
        """Skills that are still below their floor after many conversations."""
        if not self.target.floor:
            return frozenset()
        enough = _TRIES_FOR_A_FLOOR * self.target.floor
        tries = Counter(skill for candidate in self.tried for skill in candidate.combination.skills)
        kept = Counter(
            skill
            for candidate, is_accepted in zip(self.tried, self.accepted, strict=True)
            if is_accepted
            for skill in candidate.combination.skills
        )
        return frozenset(s for s in self.target.skills if tries[s] >= enough and kept[s] < self.target.floor)

    def next_wave(self) -> list[Candidate]:
        """The conversations to write next; none if the target is met or the limit is reached."""
        taken = self.taken
        missing = self.target.kept - len(taken)
        room = self.target.most - len(self.tried)
        if missing <= 0 or room <= 0:
            self.is_exhausted = missing > 0
            return []
        size = min(room, self._wave_size(missing))
        chosen = list(islice(self._useful(taken, self._next), size))
        wave = [candidate for _, candidate in chosen]
        self._next = chosen[-1][0] + 1 if chosen else self._next
        self.is_exhausted = not wave
        self.tried += wave
        return wave

    def upcoming(self, taken: Sequence[int], start: int = 0) -> Iterator[tuple[int, Candidate]]:
        """Candidates of later waves, with their indices in the draw, by what is known now.

        Without floors and ceilings they are exactly the next candidates. `start` is the first index to look at.
        """
        return self._useful(taken, max(start, self._next))

    def learn(self, accepted: Iterable[bool]) -> None:
        """Record the outcome of every tried candidate, in order; a later wave may change earlier outcomes."""
        self.accepted = list(accepted)

    def _wave_size(self, missing: int) -> int:
        if not self.accepted:
            return missing
        share = (sum(self.accepted) + 1) / (len(self.accepted) + 2)
        return max(_SMALLEST_WAVE, min(ceil(missing / share), _GROWTH * len(self.accepted)))

    def _wanted_skills(self, counts: "Counter[str]", missing: int) -> frozenset[str] | None:
        """The skills below their floor, once every missing text must have one of them; None before."""
        lacking = _lacking(counts, self.target, self.hopeless)
        k = self.tried[0].combination.k if self.tried else 1
        return frozenset(lacking) if lacking and missing <= ceil(sum(lacking.values()) / k) else None

    def _useful(self, taken: Sequence[int], start: int) -> Iterator[tuple[int, Candidate]]:
        """Candidates with their indices, without those that have a skill at its ceiling or no skill that is wanted."""
        counts = _counts(self.tried[index] for index in taken)
        wanted = self._wanted_skills(counts, self.target.kept - len(taken))
        ceiling = self.target.ceiling
        at_ceiling = frozenset(skill for skill, number in counts.items() if ceiling is not None and number >= ceiling)
        in_vain = 0
        for index in count(start):
            if in_vain == _SEARCH:
                return
            try:
                candidate = self.candidates[index]
            except IndexError:
                return
            skills = candidate.combination.skills
            is_wanted = wanted is None or not wanted.isdisjoint(skills)
            if is_wanted and at_ceiling.isdisjoint(skills):
                in_vain = 0
                yield index, candidate
            else:
                in_vain += 1


_SEARCH: Final = 20_000
"""Consecutive candidates to skip before the sampler assumes that no useful one is left."""


def take(
    tried: Sequence[Candidate], accepted: Sequence[bool], target: Target, *, hopeless: Collection[str] = ()
) -> list[int]:
    """The indices of the texts to take: the first accepted ones, with room reserved for skills below their floor."""
    taken: list[int] = []
    counts: Counter[str] = Counter()
    floors = frozenset(target.skills) - frozenset(hopeless) if target.floor else frozenset[str]()
    short = target.floor * len(floors)
    for index, candidate in enumerate(tried[: len(accepted)]):
        if len(taken) == target.kept:
            break
        skills = candidate.combination.skills
        if not accepted[index] or (target.ceiling is not None and any(counts[s] >= target.ceiling for s in skills)):
            continue
        gain = sum(s in floors and counts[s] < target.floor for s in skills)
        if gain or target.kept - len(taken) - 1 >= ceil(short / len(skills)):
            taken.append(index)
            counts.update(skills)
            short -= gain
    return taken


def _lacking(counts: "Counter[str]", target: Target, hopeless: Collection[str]) -> dict[str, int]:
    """The number of texts that skills lack to reach the floor."""
    if not target.floor:
        return {}
    return {s: target.floor - counts[s] for s in target.skills if s not in hopeless and counts[s] < target.floor}


def _counts(chosen: Iterable[Candidate]) -> "Counter[str]":
    return Counter(skill for candidate in chosen for skill in candidate.combination.skills)
