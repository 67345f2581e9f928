"""Sampling to a target in waves: which conversations to write next, and which of the accepted texts to take.

Everything here is a function of the candidates in their order and of what became of the earlier ones, never of when
an answer arrived: a run that was killed goes on to the same set.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from typing import Final, NamedTuple

from skillmix.catalog.combinations import Combination

_SMALLEST_WAVE: Final = 16
_GROWTH: Final = 4
"""A wave is at most so many times what was tried before: an early yield is a guess."""
_TRIES_FOR_A_FLOOR: Final = 100
"""Conversations for each text of a floor, after which a skill is given up."""


class Candidate(NamedTuple):
    """A conversation that may be written."""

    combination: Combination
    generation: int


@dataclass(frozen=True, slots=True)
class Target:
    """What is wanted of one k."""

    kept: int
    most: int
    """Conversations at most."""
    floor: int = 0
    ceiling: int | None = None
    skills: tuple[str, ...] = ()
    """All that candidates are made of; those for which there is a floor."""


class Candidates:
    """Every combination so many times, then all of them again with new generations, for ever; drawn as needed."""

    def __init__(self, combinations: Iterable[Combination], *, generations: int = 1) -> None:
        self._source = iter(combinations)
        self._drawn: list[Combination] = []
        self._is_whole = False
        self._generations = generations

    def __getitem__(self, index: int) -> Candidate:
        """Raises IndexError only if there is no combination at all."""
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
    """Whether no more candidates may be written, or none that could be taken is found."""
    _next: int = 0

    @property
    def taken(self) -> list[int]:
        """Places among the tried, in their order, of the texts that are taken."""
        given_up = self.target.skills if self.is_exhausted else self.hopeless
        return take(self.tried, self.accepted, self.target, hopeless=given_up)

    @property
    def below_floor(self) -> dict[str, int]:
        """Skills with fewer taken texts than the floor, and how many they have."""
        counts = _counts(self.tried[index] for index in self.taken)
        return {skill: counts[skill] for skill in _lacking(counts, self.target, ())}

    @property
    def yielded(self) -> float | None:
        """Share of the conversations that were accepted; None before the first."""
        return sum(self.accepted) / len(self.accepted) if self.accepted else None

    @property
    def hopeless(self) -> frozenset[str]:
        """Skills whose floor is out of reach: tried often, and still below it."""
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
        """The conversations to write next; none if the target is met or no more may be written."""
        taken = self.taken
        missing = self.target.kept - len(taken)
        room = self.target.most - len(self.tried)
        if missing <= 0 or room <= 0:
            self.is_exhausted = missing > 0
            return []
        counts = _counts(self.tried[index] for index in taken)
        wanted = self._wanted_skills(counts, missing)
        size = min(room, self._wave_size(missing))
        wave = list(islice(self._useful(counts, wanted), size))
        self.is_exhausted = not wave
        self.tried += wave
        return wave

    def learn(self, accepted: Iterable[bool]) -> None:
        """What became of every candidate that was tried, in order; later waves may change what an earlier one is."""
        self.accepted = list(accepted)

    def _wave_size(self, missing: int) -> int:
        if not self.accepted:
            return missing
        share = (sum(self.accepted) + 1) / (len(self.accepted) + 2)
        return max(_SMALLEST_WAVE, min(ceil(missing / share), _GROWTH * len(self.accepted)))

    def _wanted_skills(self, counts: "Counter[str]", missing: int) -> frozenset[str] | None:
        """The skills below their floor, once all that is missing must be theirs; None while anything will do."""
        lacking = _lacking(counts, self.target, self.hopeless)
        k = self.tried[0].combination.k if self.tried else 1
        return frozenset(lacking) if lacking and missing <= ceil(sum(lacking.values()) / k) else None

    def _useful(self, counts: "Counter[str]", wanted: frozenset[str] | None) -> Iterator[Candidate]:
        """The candidates that follow, without those of a full skill or, where some are wanted, of none of them."""
        ceiling = self.target.ceiling
        in_vain = 0
        while in_vain < _SEARCH:
            try:
                candidate = self.candidates[self._next]
            except IndexError:
                return
            self._next += 1
            skills = candidate.combination.skills
            is_wanted = wanted is None or not wanted.isdisjoint(skills)
            if is_wanted and (ceiling is None or all(counts[s] < ceiling for s in skills)):
                in_vain = 0
                yield candidate
            else:
                in_vain += 1


_SEARCH: Final = 20_000
"""Candidates passed over in a row, before nothing useful is thought to be left."""


def take(
    tried: Sequence[Candidate], accepted: Sequence[bool], target: Target, *, hopeless: Collection[str] = ()
) -> list[int]:
    """The places of the texts to take: the first accepted ones, with room held back for skills below their floor."""
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
    """Texts that skills are short of their floor."""
    if not target.floor:
        return {}
    return {s: target.floor - counts[s] for s in target.skills if s not in hopeless and counts[s] < target.floor}


def _counts(chosen: Iterable[Candidate]) -> "Counter[str]":
    return Counter(skill for candidate in chosen for skill in candidate.combination.skills)
