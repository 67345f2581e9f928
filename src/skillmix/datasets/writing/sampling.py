"""Sample to a target in waves: choose which conversations to write next, and which accepted texts to take.

Every choice depends only on the order of the candidates and on the outcome of earlier ones, never on when an answer
arrived. A run that was killed therefore continues to the same set.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from math import ceil
from typing import Final, NamedTuple, overload

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
        self._numbers: dict[str, int] = {}
        """The number of each combination that was drawn, by its id."""
        self._is_whole = False
        self._generations = generations

    def __getitem__(self, index: int) -> Candidate:
        """The candidate at an index; IndexError only if no combination exists."""
        number, generation = self._place(index)
        return Candidate(self._drawn[number], generation)

    def skills(self, index: int) -> Sequence[str]:
        """The skills of the candidate at an index."""
        return self._drawn[self._place(index)[0]].skills

    def generation(self, index: int) -> int:
        """The generation of the candidate at an index."""
        return self._place(index)[1]

    def _place(self, index: int) -> tuple[int, int]:
        """The number of a candidate's combination, and its generation."""
        if not self.has(index):
            raise IndexError(index)
        wanted, generation = divmod(index, self._generations)
        turn, number = divmod(wanted, len(self._drawn)) if self._is_whole else (0, wanted)
        return number, turn * self._generations + generation

    def has(self, index: int) -> bool:
        """Whether there is a candidate at an index, which is drawn now."""
        wanted = index // self._generations
        while not self._is_whole and len(self._drawn) <= wanted:
            combination = next(self._source, None)
            if combination is None:
                self._is_whole = True
            else:
                self._numbers[combination.id] = len(self._drawn)
                self._drawn.append(combination)
        return len(self._drawn) > 0

    def find(self, combination: str, generation: int) -> int | None:
        """The index of a candidate that was drawn; None if its combination was not."""
        number = self._numbers.get(combination)
        if number is None:
            return None
        turn, rest = divmod(generation, self._generations)
        return (turn * len(self._drawn) + number) * self._generations + rest


class Drawn(Sequence[Candidate]):
    """Some candidates, of which only the indices in the draw are in memory."""

    def __init__(self, candidates: Candidates, indices: "array[int]") -> None:
        self.candidates = candidates
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> "Drawn": ...
    def __getitem__(self, index: int | slice) -> "Candidate | Drawn":
        if isinstance(index, slice):
            return Drawn(self.candidates, self.indices[index])
        return self.candidates[self.indices[index]]

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same candidates."""
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as that of a list

    def by_generation(self) -> dict[int, list[Combination]]:
        """The combinations of the candidates of each generation."""
        found: dict[int, list[Combination]] = {}
        for combination, generation in self:
            found.setdefault(generation, []).append(combination)
        return {number: found[number] for number in sorted(found)}


@dataclass(slots=True)
class Sampler:
    """Plans waves of one k and takes texts from them."""

    candidates: Candidates
    target: Target
    accepted: bytearray = field(default_factory=bytearray)
    """For each tried candidate whose outcome is known, 1 if its text may be taken."""
    is_exhausted: bool = False
    """Whether no more candidates may be written, or none of them could be taken."""
    _tried: "array[int]" = field(default_factory=partial(array, "q"))
    """The indices of the tried candidates in the draw, which ascend."""
    _next: int = 0
    _number_accepted: int = 0
    _tries: Counter[str] = field(default_factory=Counter)
    """With a floor, the number of candidates with a known outcome by skill."""
    _kept: Counter[str] = field(default_factory=Counter)
    """The same for accepted candidates."""
    _last: "_Taking | None" = None

    @property
    def tried(self) -> Drawn:
        """The candidates of all waves so far."""
        return Drawn(self.candidates, self._tried)

    def has_tried(self, index: int) -> bool:
        """Whether a wave had the candidate at an index of the draw."""
        place = bisect_left(self._tried, index)
        return place < len(self._tried) and self._tried[place] == index

    @property
    def taken(self) -> Sequence[int]:
        """The indices of the taken texts among the tried ones, in order."""
        return self._take().taken

    def _take(self) -> "_Taking":
        """Go on where texts were taken last, unless other skills are given up now."""
        given_up = self.target.skills if self.is_exhausted else self.hopeless
        floors = _floors(self.target, given_up)
        if self._last is None or self._last.floors != floors:
            self._last = _Taking(self.target, floors)
        self._last.go_on(self.tried, self.accepted)
        return self._last

    @property
    def below_floor(self) -> dict[str, int]:
        """Skills with fewer taken texts than the floor, with their counts."""
        counts = self._take().counts
        return {skill: counts[skill] for skill in _lacking(counts, self.target, ())}

    @property
    def yielded(self) -> float | None:
        """The share of conversations that were accepted; None before the first."""
        return self._number_accepted / len(self.accepted) if self.accepted else None

    @property
    def hopeless(self) -> frozenset[str]:
        """Skills that are still below their floor after many conversations."""
        if not self.target.floor:
            return frozenset()
        enough = _TRIES_FOR_A_FLOOR * self.target.floor
        return frozenset(
            s for s in self.target.skills if self._tries[s] >= enough and self._kept[s] < self.target.floor
        )

    def next_wave(self) -> Drawn:
        """The conversations to write next; none if the target is met or the limit is reached."""
        missing = self.target.kept - len(self._take().taken)
        room = self.target.most - len(self._tried)
        if missing <= 0 or room <= 0:
            self.is_exhausted = missing > 0
            return Drawn(self.candidates, array("q"))
        size = min(room, self._wave_size(missing))
        chosen = array("q", islice(self._useful(self._next), size))
        self._next = chosen[-1] + 1 if chosen else self._next
        self.is_exhausted = not chosen
        self._tried.extend(chosen)
        return Drawn(self.candidates, chosen)

    def upcoming(self, start: int = 0) -> Iterator[int]:
        """The indices in the draw of candidates of later waves, by what is known now.

        Without floors and ceilings they are exactly the next candidates. `start` is the first index to look at.
        """
        return self._useful(max(start, self._next))

    def learn(self, accepted: Iterable[int]) -> None:
        """Record the outcome of every tried candidate, in order; only outcomes that are new take time."""
        outcomes = bytearray(accepted)
        known = len(self.accepted)
        if outcomes[:known] != self.accepted:
            known, self._number_accepted, self._last = 0, 0, None
            self._tries.clear()
            self._kept.clear()
        self.accepted = outcomes
        self._number_accepted += outcomes.count(1, known)
        if self.target.floor:
            for candidate, is_accepted in zip(self.tried[known:], outcomes[known:], strict=True):
                self._tries.update(candidate.combination.skills)
                self._kept.update(candidate.combination.skills if is_accepted else ())

    def _wave_size(self, missing: int) -> int:
        if not self.accepted:
            return missing
        share = (self._number_accepted + 1) / (len(self.accepted) + 2)
        return max(_SMALLEST_WAVE, min(ceil(missing / share), _GROWTH * len(self.accepted)))

    def _wanted_skills(self, taking: "_Taking") -> frozenset[str] | None:
        """The skills below their floor, once every missing text must have one of them; None before."""
        lacking = _lacking(taking.counts, self.target, self.hopeless)
        k = self.tried[0].combination.k if self._tried else 1
        missing = self.target.kept - len(taking.taken)
        return frozenset(lacking) if lacking and missing <= ceil(sum(lacking.values()) / k) else None

    def _useful(self, start: int) -> Iterator[int]:
        """Indices of candidates, without those that have a skill at its ceiling or no skill that is wanted."""
        taking = self._take()
        wanted = self._wanted_skills(taking)
        ceiling = self.target.ceiling
        at_ceiling = frozenset(s for s, number in taking.counts.items() if ceiling is not None and number >= ceiling)
        in_vain = 0
        for index in count(start):
            if in_vain == _SEARCH or not self.candidates.has(index):
                return
            if wanted is None and not at_ceiling:
                yield index
                continue
            skills = self.candidates.skills(index)
            is_wanted = wanted is None or not wanted.isdisjoint(skills)
            if is_wanted and at_ceiling.isdisjoint(skills):
                in_vain = 0
                yield index
            else:
                in_vain += 1


_SEARCH: Final = 20_000
"""Consecutive candidates to skip before the sampler assumes that no useful one is left."""


class _Taking:
    """Takes texts one after the other: an earlier choice does not depend on later texts."""

    def __init__(self, target: Target, floors: frozenset[str]) -> None:
        self._target = target
        self.floors = floors
        """The skills whose floor counts."""
        self.taken = array("q")
        self.counts: Counter[str] = Counter()
        """The taken texts by skill, if there is a floor or a ceiling."""
        self._short = target.floor * len(floors)
        """How many texts of single skills the floors still lack."""
        self._seen = 0

    def go_on(self, tried: Sequence[Candidate], accepted: bytearray) -> None:
        """Look at the accepted texts that have come since."""
        index = accepted.find(1, self._seen)
        while index >= 0 and len(self.taken) < self._target.kept:
            if self._has_room(tried, index):
                self.taken.append(index)
            index = accepted.find(1, index + 1)
        self._seen = len(accepted)

    def _has_room(self, tried: Sequence[Candidate], index: int) -> bool:
        """Whether floors and ceilings allow a text, which is counted then."""
        target = self._target
        if not target.floor and target.ceiling is None:
            return True
        skills = tried[index].combination.skills
        if target.ceiling is not None and any(self.counts[s] >= target.ceiling for s in skills):
            return False
        gain = sum(s in self.floors and self.counts[s] < target.floor for s in skills)
        if not gain and target.kept - len(self.taken) - 1 < ceil(self._short / len(skills)):
            return False
        self.counts.update(skills)
        self._short -= gain
        return True


def _floors(target: Target, given_up: Collection[str]) -> frozenset[str]:
    """The skills whose floor counts."""
    return frozenset(target.skills).difference(given_up) if target.floor else frozenset()


def _lacking(counts: "Counter[str]", target: Target, hopeless: Collection[str]) -> dict[str, int]:
    """The number of texts that skills lack to reach the floor."""
    if not target.floor:
        return {}
    return {s: target.floor - counts[s] for s in target.skills if s not in hopeless and counts[s] < target.floor}
