"""The study's claims: which students each claim compares, and at which settings and k.

Lineage decides who is compared. Students of one run that differ only in their training seed repeat one comparison, as
do students of several runs that share everything but run, seed and partition.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Final, Literal

from skillmix.experiment.step_base import label_parts
from skillmix.scores.cells import CellKey
from skillmix.scores.compare import EQUAL, Cells, ComparableStudent, are_close, base_of, families, practice_of

Claim = Literal["composition", "trained k", "held-out", "larger k", "efficiency", "control", "planned"]
"""`planned` claims nothing: it is the comparison that a report leads with if no claim is supported."""
CLAIMS: Final[tuple[Claim, ...]] = ("composition", "trained k", "held-out", "larger k", "efficiency", "control")
"""In the order in which they are shown, and in which a report prefers one as its main result."""
TRAIN: Final = "train"
"""The setting of the skills that students were trained on."""


@dataclass(frozen=True, slots=True)
class StudentPair:
    """Two students, and whether the claim's match of conversations and steps holds between them."""

    first: ComparableStudent
    second: ComparableStudent
    is_matched: bool = False
    practice: ComparableStudent | None = None
    """If the first is a base: the student of single skills that practised as much as the second."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A claim's two students of one run, under one grader and setting, at some k."""

    claim: Claim
    setting: str
    grader: str
    pair: StudentPair
    ks: tuple[int, ...]
    generations: int

    @property
    def first(self) -> ComparableStudent:
        """The student that is compared with."""
        return self.pair.first

    @property
    def second(self) -> ComparableStudent:
        """The student that the claim is about."""
        return self.pair.second

    @property
    def signature(self) -> tuple[object, ...]:
        """Everything but data, seed and partition that comparisons must share to be pooled."""
        first, second = self.first, self.second
        protocol = (second.catalog, second.prompts, second.decoding, second.graders.get(self.grader), self.generations)
        training = (first.k, second.k, first.recipe, second.recipe, self.pair.is_matched)
        setting, catalog, _ = label_parts(self.setting)
        return (self.claim, first.base, self.grader, setting, catalog, *protocol, *training)

    @property
    def data(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Hashes of the data sets of both students."""
        return self.first.data, self.second.data


def comparisons_to_pool(students: Sequence[ComparableStudent], cells: Cells) -> Iterator[list[Comparison]]:
    """Groups of comparisons that repeat each other over runs, seeds and partitions; the planned one is among them.

    Without a base and a student tuned on it, the first two students of a run are compared.
    """
    found = sorted(_comparisons(students, cells), key=lambda c: str(c.signature))
    for _, same in groupby(found, key=lambda c: c.signature):
        yield from _by_data(list(same))
    if not any(c.claim == "planned" for c in found):
        firsts: dict[str, StudentPair] = {}
        for one, other in combinations(students, 2):
            if one.run == other.run:
                firsts.setdefault(one.run, StudentPair(one, other))
        planned = [
            comparison
            for pair in firsts.values()
            for context in _contexts([pair.first, pair.second], cells)
            for comparison in _comparison("planned", pair, context, cells)
        ]
        for _, same in groupby(sorted(planned, key=_as_planned), key=_as_planned):
            yield list(same)


def _as_planned(comparison: Comparison) -> tuple[str, str, str, str]:
    """The comparisons of students without lineage that partitions of one run repeat."""
    run = comparison.first.run.partition(" under ")[0]
    first, second = (student.family or student.student for student in (comparison.first, comparison.second))
    return run, first, second, f"{comparison.grader} {comparison.setting}"


def _by_data(comparisons: list[Comparison]) -> Iterable[list[Comparison]]:
    """One group if each partition has one data set of the same size, and else a group for each data set.

    The data sets of two partitions cannot be equal, because their train skills differ.
    """
    by_partition: dict[str, set[object]] = {}
    by_data: dict[object, list[Comparison]] = {}
    for comparison in comparisons:
        by_partition.setdefault(comparison.second.partition, set()).add(comparison.data)
        by_data.setdefault(comparison.data, []).append(comparison)
    sizes = [(c.first.rows, c.second.rows) for c in comparisons]
    is_one = all(len(data) == 1 for data in by_partition.values()) and all(
        are_close(rows, other) for size in sizes for rows, other in zip(size, sizes[0], strict=True) if rows and other
    )
    return [comparisons] if is_one else list(by_data.values())


def _comparisons(students: Sequence[ComparableStudent], cells: Cells) -> Iterator[Comparison]:
    for family in families(students).values():
        for claim, choice in _CHOICES.items():
            for pair in _with_repeats(choice(family), family):
                for context in _contexts(family, cells):
                    yield from _comparison(claim, pair, context, cells)


def _contexts(students: Sequence[ComparableStudent], cells: Cells) -> list[tuple[str, str]]:
    """The graders and settings of some students."""
    names = {(c.run, c.student) for c in students}
    return sorted({(key.grader, key.setting) for key in cells if (key.run, key.student) in names})


def _comparison(claim: Claim, pair: StudentPair, context: tuple[str, str], cells: Cells) -> Iterator[Comparison]:
    """The comparison in one grader and setting, if the second student has cells that the claim is about."""
    grader, setting = context
    if label_parts(setting).setting != _SETTINGS.get(claim, label_parts(setting).setting):
        return
    second = pair.second
    ks = sorted({key.k for key in cells if key[:4] == (second.run, second.student, grader, setting)})
    tested = tuple(k for k in ks if _IS_TESTED[claim](k, second))
    if tested:
        points = cells[CellKey(second.run, second.student, grader, setting, tested[0])].points
        yield Comparison(claim, setting, grader, pair, tested, max(map(len, points), default=0))


def _with_repeats(pairs: Iterable[StudentPair], family: Sequence[ComparableStudent]) -> Iterator[StudentPair]:
    """Each pair, and the pairs of the family whose trainings differ from its trainings by the seed alone.

    Two tuned students are paired by seed or, where they have no seed in common, in the order of their seeds.
    """
    for pair in pairs:
        firsts, seconds = ({c.seed: c for c in family if _repeats(c, of)} for of in (pair.first, pair.second))
        if not pair.first.k:
            twins = [(pair.first, second) for second in seconds.values()]
        elif common := sorted(firsts.keys() & seconds.keys()):
            twins = [(firsts[seed], seconds[seed]) for seed in common]
        else:
            twins = [(firsts[a], seconds[b]) for a, b in zip(sorted(firsts), sorted(seconds), strict=False)]
        for first, second in twins:
            yield StudentPair(first, second, pair.is_matched, None if first.k else practice_of(second, family))


def _repeats(student: ComparableStudent, other: ComparableStudent) -> bool:
    training, same = ((c.k, c.asks_one, c.data, c.recipe, c.partition, c.rows, c.steps) for c in (student, other))
    return training == same


def _richest(family: Sequence[ComparableStudent], *, is_composed: bool) -> ComparableStudent | None:
    """The student trained on the most skills in one text, then on the most numbers of skills and conversations."""
    tuned = [c for c in family if c.k and (c.is_composed or not is_composed)]
    return max(tuned, key=lambda c: (max(c.k), len(c.k), c.rows or 0), default=None)


def _base_and(second: ComparableStudent | None, family: Sequence[ComparableStudent]) -> list[StudentPair]:
    base = base_of(family)
    return [StudentPair(base, second)] if base and second else []


def _practice_and_composed(family: Sequence[ComparableStudent]) -> list[StudentPair]:
    """The richest student against one that practised single skills as much or, without one, against the base."""
    richest = _richest(family, is_composed=True)
    practice = practice_of(richest, family) if richest else None
    return [StudentPair(practice, richest, is_matched=True)] if richest and practice else _base_and(richest, family)


def _base_and_richest(family: Sequence[ComparableStudent]) -> list[StudentPair]:
    return _base_and(_richest(family, is_composed=False), family)


def _base_and_single_skills(family: Sequence[ComparableStudent]) -> list[StudentPair]:
    return _base_and(_most_practised([c for c in family if c.k == (1,)]), family)


def _single_skills_and_composed(family: Sequence[ComparableStudent]) -> list[StudentPair]:
    """The richest student against one of single skills with equal texts and steps, and against the largest other."""
    richest = _richest(family, is_composed=True)
    if richest is None:
        return []
    matched = practice_of(richest, family)
    other = _most_practised([c for c in family if c.k == (1,) and practice_of(richest, [c]) is None])
    return [
        StudentPair(single, richest, is_matched) for single, is_matched in ((matched, True), (other, False)) if single
    ]


def _most_practised(students: Sequence[ComparableStudent]) -> ComparableStudent | None:
    return max(students, key=lambda c: (c.rows or 0, c.steps or 0), default=None)


def _richer_of_no_more_data(family: Sequence[ComparableStudent]) -> list[StudentPair]:
    """A student with a larger k, and one with a smaller k and no fewer conversations.

    A pair with no more steps comes first, then the largest k, then the closest size.
    """
    sized = [(c, c.rows) for c in family if c.k and c.rows is not None]
    pairs = [
        (not _has_no_more_steps(first, second), -max(second.k), rows - fewer, number, StudentPair(first, second))
        for number, (first, rows) in enumerate(sized)
        for second, fewer in sized
        if max(first.k) >= 2 and max(second.k) > max(first.k) and fewer <= rows
    ]
    if not pairs:
        return []
    is_unmatched, *_, pair = min(pairs, key=lambda p: p[:4])
    return [StudentPair(pair.first, pair.second, not is_unmatched)]


def _has_no_more_steps(first: ComparableStudent, second: ComparableStudent) -> bool:
    if first.steps is None or second.steps is None:
        return False
    return second.steps <= first.steps * (1 + EQUAL)


_CHOICES: Final[Mapping[Claim, Callable[[Sequence[ComparableStudent]], list[StudentPair]]]] = {
    "composition": _single_skills_and_composed,
    "trained k": _base_and_richest,
    "held-out": _practice_and_composed,
    "larger k": _practice_and_composed,
    "efficiency": _richer_of_no_more_data,
    "control": _base_and_single_skills,
    "planned": _base_and_richest,
}
_SETTINGS: Final[Mapping[Claim, str]] = {"trained k": TRAIN, "held-out": "held-out"}
"""The setting of a claim that is about one setting."""
_IS_TESTED: Final[Mapping[Claim, Callable[[int, ComparableStudent], bool]]] = {
    "composition": lambda k, second: k >= 2,
    "trained k": lambda k, second: k in second.k,
    "held-out": lambda k, second: k >= 2,
    "larger k": lambda k, second: k > max(second.k),
    "efficiency": lambda k, second: k >= 2,
    "control": lambda k, second: k >= 2,
    "planned": lambda k, second: True,
}
