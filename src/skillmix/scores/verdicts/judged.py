"""The verdict on a difference between two students: one function decides, and everything that is shown asks it.

All settings and k in which two students under one grader share complete combinations are one family of tests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from skillmix.grading.points import FULL_MARKS
from skillmix.render.numbers import p_value
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.statistics.differences import Gain, gain, holm
from skillmix.scores.statistics.intervals import ROUNDING

Place = tuple[str, int]
"""A setting and a k."""
Values = Mapping[Place, Mapping[str, tuple[float, float]]]
"""The scores of two students on the combinations that both have complete."""
LEVEL: Final = 0.05
SMALLEST_GAIN: Final = 0.05
"""The smallest gain worth claiming."""
_FEWEST_DIFFERING: Final = 6
"""If fewer combinations differ, no permutation of signs reaches p = .05."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The second student minus the first in one setting, at one k."""

    setting: str
    k: int
    gain: Gain
    p_corrected: float
    """Holm's correction over the family."""
    tests: int
    """The comparisons that the correction counts."""
    explained_by: str | None = None
    """The student of single skills that gains as well, and that the second student is not found to surpass."""

    @property
    def verdict(self) -> str:
        """A difference is found if its corrected p is below .05 and its interval excludes 0."""
        if self.gain.low is None:
            return f"too few {self.gain.unit}"
        if self.p_corrected < LEVEL and self.gain.is_above_zero:
            return "a gain"
        return "a loss" if self.p_corrected < LEVEL and self.gain.is_below_zero else "within noise"

    @property
    def words(self) -> str:
        """The verdict with its p-value."""
        return verdict_words(self.verdict, self.p_corrected, self.tests)

    @property
    def found(self) -> float:
        """The difference if one is found, and else 0."""
        return self.gain.mean if self.verdict in ("a gain", "a loss") else 0.0

    @property
    def is_gain(self) -> bool:
        """Whether a gain worth claiming is found."""
        return self.verdict == "a gain" and self.gain.mean >= SMALLEST_GAIN - ROUNDING

    @property
    def is_loss(self) -> bool:
        """Whether a loss is found."""
        return self.verdict == "a loss"

    @property
    def excludes_gain(self) -> bool:
        """Whether the interval ends below the smallest gain worth claiming."""
        return self.gain.high is not None and self.gain.high < SMALLEST_GAIN


def verdict_words(verdict: str, p: float, tests: int) -> str:
    """A verdict with its p-value, as every output states it.

    >>> verdict_words("a gain", 0.0312, 3), verdict_words("within noise", 0.4, 1)
    ('a gain, p = .031 after correction for 3 comparisons', 'within noise, p = .400')
    """
    text = p_value(p)
    value = f"p {text[0]} {text[1:]}" if text.startswith("<") else f"p = {text}"
    return f"{verdict}, {value}" + (f" after correction for {tests} comparisons" if tests > 1 else "")


def judged(gains: Mapping[Place, Gain]) -> dict[Place, Judged]:
    """Judge the family of differences between two students under one grader, by setting and k.

    Holm's correction counts the differences that can reach p = .05. Whether one can depends on how many combinations
    differ, and not on which student they favour, so leaving out the others keeps the level.
    """
    counted = [place for place, found in gains.items() if _can_be_found(found)]
    corrected = dict(zip(counted, holm([gains[place].p for place in counted]), strict=True))
    return {
        (setting, k): Judged(setting, k, found, corrected.get((setting, k), found.p), len(counted))
        for (setting, k), found in gains.items()
    }


def _can_be_found(found: Gain) -> bool:
    differing = sum(abs(value) > ROUNDING for value in found.values)
    return differing >= (_FEWEST_DIFFERING if found.unit == "combinations" else 1)


def explained(
    family: Mapping[Place, Judged],
    practice: str,
    of_practice: Mapping[Place, Judged],
    beyond: Mapping[Place, Judged],
) -> dict[Place, Judged]:
    """The family of a student against its base, where its gains name a student of single skills that gains as well.

    `of_practice` compares that student with the base, and `beyond` compares the first student with it.
    """
    as_well = {place for place, one in of_practice.items() if one.verdict == "a gain"}
    no_better = {place for place, one in beyond.items() if one.verdict in ("within noise", "a loss")}
    return {
        place: replace(one, explained_by=practice)
        if one.k >= 2 and one.verdict == "a gain" and place in as_well & no_better
        else one
        for place, one in family.items()
    }


def explanations(second: str, rows: "Iterable[Judged | PairRow]") -> list[str]:
    """A sentence for each student of single skills that gains as well where the second student does not surpass it."""
    places: dict[str, list[str]] = {}
    for row in rows:
        if row.explained_by:
            places.setdefault(row.explained_by, []).append(f"{row.setting}, k = {row.k}")
    return [
        f"{practice}, with as many texts and steps of single skills, gains as well, and {second} is not found to do "
        f"better: practice on single skills explains this gain ({'; '.join(where)})."
        for practice, where in places.items()
    ]


@dataclass(frozen=True, slots=True)
class PairRow:
    """The second student minus the first under one grader, in one setting, at one k."""

    grader: str
    setting: str
    k: int
    first_value: float
    """The first student's mean over the shared combinations, best of the generations."""
    second_value: float
    difference: float
    low: float | None
    """None, as is `high`, if the students share too few combinations for an interval."""
    high: float | None
    p: float
    p_corrected: float
    """Holm's correction over the settings and k of the two students under one grader."""
    combinations: int
    """Combinations that both students have complete."""
    wins: int
    """Combinations on which the second student scores higher."""
    ties: int
    losses: int
    still_needed: int | None
    """Further combinations for 80 % power at this difference; None if that cannot be estimated."""
    verdict: str
    tests: int
    """The comparisons that the correction counts."""
    explained_by: str | None = None
    """The student of single skills that gains as well, and that the second student is not found to surpass."""

    @property
    def words(self) -> str:
        """The verdict with its p-value."""
        return verdict_words(self.verdict, self.p_corrected, self.tests)

    @property
    def found(self) -> float:
        """The difference if one is found, and else 0."""
        return self.difference if self.verdict in ("a gain", "a loss") else 0.0


def compare_cells(
    run: str,
    first: str,
    second: str,
    cells: Mapping[CellKey, Cell],
    *,
    metric: str = FULL_MARKS,
    practice: str | None = None,
) -> list[PairRow]:
    """One row for each grader, setting and k in which two students of a run share complete combinations.

    `practice` names the student of single skills that is matched with the second, if the first is their base.
    """
    rows: dict[CellKey, PairRow] = {}
    for grader in dict.fromkeys(key.grader for key in cells if (key.run, key.student) == (run, second)):
        values = paired_values(run, (first, second), grader, cells, metric)
        family = family_of([("", 0, values)])
        if practice is not None:
            pairs = (first, practice), (practice, second)
            others = [family_of([("", 0, paired_values(run, pair, grader, cells, metric))]) for pair in pairs]
            family = explained(family, practice, *others)
        rows |= {
            CellKey(run, second, grader, *place): _row(grader, one, values[place]) for place, one in family.items()
        }
    return [rows[key] for key in cells if key in rows]


def paired_values(
    run: str, students: tuple[str, str], grader: str, cells: Mapping[CellKey, Cell], metric: str = FULL_MARKS
) -> Values:
    """The scores of two students of a run by setting, k and combination, best of the generations."""
    first, second = students
    values = {}
    for key in cells:
        other = key._replace(student=first)
        if key[:3] == (run, second, grader) and other in cells:
            before, after = cells[other].best(metric), cells[key].best(metric)
            shared = {c: (before[c], after[c]) for c in sorted(before.keys() & after.keys())}
            if shared:
                values[key.setting, key.k] = shared
    return values


def family_of(repeats: Iterable[tuple[str, int, Values]]) -> dict[Place, Judged]:
    """Judge a comparison that several partitions and seeds repeat; a training that several runs evaluate counts once.

    A repeat is a partition, a seed and the values of its two students.
    """
    lists: dict[Place, dict[str, dict[int, dict[str, list[float]]]]] = {}
    for partition, seed, values in repeats:
        for place, by_id in values.items():
            training = lists.setdefault(place, {}).setdefault(partition, {}).setdefault(seed, {})
            for combination, (before, after) in by_id.items():
                training.setdefault(combination, []).append(after - before)
    return judged(
        {
            place: gain(
                {
                    partition: {seed: {c: fmean(d) for c, d in by_id.items()} for seed, by_id in seeds.items()}
                    for partition, seeds in partitions.items()
                }
            )
            for place, partitions in lists.items()
        }
    )


def _row(grader: str, one: Judged, values: Mapping[str, tuple[float, float]]) -> PairRow:
    found, n = one.gain, len(values)
    wins, losses = sum(d > 0 for d in found.values), sum(d < 0 for d in found.values)
    needed = found.needed()
    return PairRow(
        grader=grader,
        setting=one.setting,
        k=one.k,
        first_value=sum(before for before, _ in values.values()) / n,
        second_value=sum(after for _, after in values.values()) / n,
        difference=found.mean,
        low=found.low,
        high=found.high,
        p=found.p,
        p_corrected=one.p_corrected,
        combinations=n,
        wins=wins,
        ties=n - wins - losses,
        losses=losses,
        still_needed=None if needed is None else max(0, needed - n),
        verdict=one.verdict,
        tests=one.tests,
        explained_by=one.explained_by,
    )
