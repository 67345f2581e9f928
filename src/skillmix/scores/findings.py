"""The study's claims: which students each compares, at which settings and k, and the verdict on each.

Lineage decides who is compared. Students of one run that differ only in their training seed repeat one comparison, as
do students of several runs that share everything but run, seed and partition. Each partition of a run counts as a run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from statistics import fmean
from typing import Any, Final, Literal, TypeVar

from skillmix.catalog.catalog import SETTINGS
from skillmix.experiment.step_base import label_parts
from skillmix.grading.points import FULL_MARKS
from skillmix.scores.cells import CellKey
from skillmix.scores.compare import (
    EQUAL,
    LEVEL,
    SMALLEST_GAIN,
    Cells,
    ComparableStudent,
    Judged,
    Place,
    are_close,
    base_of,
    explained,
    families,
    family_of,
    paired_values,
    practice_of,
)
from skillmix.scores.statistics.differences import Gain, MoreData, largest, more_to_exclude, more_to_find, smallest
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS, ROUNDING

_Finding = TypeVar("_Finding", bound=Any)
_UNDER = " under "
"""Between the name of a run, which has no blanks, and a partition."""


def apart(students: Sequence[ComparableStudent], cells: Cells) -> tuple[list[ComparableStudent], Cells]:
    """Students and cells with a run for each partition that steps of a run name, and settings without partitions."""
    places: dict[tuple[str, str], dict[str | None, None]] = {}
    own = {}
    for key, cell in cells.items():
        partition = label_parts(key.setting).partition
        places.setdefault((key.run, key.student), {})[partition] = None
        setting = key.setting.removesuffix(f"{_UNDER}{partition}")
        own[key._replace(run=_joined(key.run, partition), setting=setting)] = cell
    split = [
        replace(student, run=_joined(student.run, partition), partition=partition or student.partition)
        for student in students
        for partition in places.get((student.run, student.student), {None: None})
    ]
    return split, own


def _joined(run: str, partition: str | None) -> str:
    return f"{run}{_UNDER}{partition}" if partition else run


def together(finding: _Finding, students: Sequence[ComparableStudent]) -> _Finding:
    """A finding with the runs that there are; over several partitions, its students have their names in the file."""
    partitions = {run.partition(_UNDER)[2] for run in finding.runs}
    runs, repeated = (
        tuple(dict.fromkeys(run.partition(_UNDER)[0] for run in names)) for names in (finding.runs, finding.repeated)
    )
    if len(partitions) == 1:
        setting = _joined(finding.setting, partitions.pop())
        return replace(finding, runs=runs, repeated=repeated, setting=setting)
    names: Mapping[tuple[str, str], str] = {(s.run, s.student): s.family or s.student for s in students}
    first, second = (names[finding.runs[0], student] for student in (finding.first, finding.second))
    return replace(finding, runs=runs, repeated=repeated, first=first, second=second)


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
        first, second = _training(pair.first), _training(pair.second)
        firsts = {c.seed: c for c in family if _training(c) == first}
        seconds = {c.seed: c for c in family if _training(c) == second}
        if not pair.first.k:
            twins = [(pair.first, other) for other in seconds.values()]
        elif common := sorted(firsts.keys() & seconds.keys()):
            twins = [(firsts[seed], seconds[seed]) for seed in common]
        else:
            twins = [(firsts[a], seconds[b]) for a, b in zip(sorted(firsts), sorted(seconds), strict=False)]
        for one, other in twins:
            yield StudentPair(one, other, pair.is_matched, None if one.k else practice_of(other, family))


def _training(student: ComparableStudent) -> tuple[object, ...]:
    """What a training is, apart from its seed."""
    return tuple(getattr(student, name) for name in ("k", "asks_one", "data", "recipe", "partition", "rows", "steps"))


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
    pairs = []
    for number, (first, rows) in enumerate(sized):
        for second, fewer in sized:
            if max(first.k) >= 2 and max(second.k) > max(first.k) and fewer <= rows:
                known = first.steps is not None and second.steps is not None
                is_matched = known and (second.steps or 0) <= (first.steps or 0) * (1 + EQUAL)
                rank = not is_matched, -max(second.k), rows - fewer, number
                pairs.append((rank, StudentPair(first, second, is_matched)))
    return [min(pairs, key=lambda p: p[0])[1]] if pairs else []


_CHOICES: Final[Mapping[Claim, Callable[[Sequence[ComparableStudent]], list[StudentPair]]]] = {
    "composition": _single_skills_and_composed,
    "trained k": lambda family: _base_and(_richest(family, is_composed=False), family),
    "held-out": _practice_and_composed,
    "larger k": _practice_and_composed,
    "efficiency": _richer_of_no_more_data,
    "control": lambda family: _base_and(_most_practised([c for c in family if c.k == (1,)]), family),
    "planned": lambda family: _base_and(_richest(family, is_composed=False), family),
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


ClaimVerdict = Literal["supported", "not supported", "not taught", "too little data"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim for one base model, grader and setting."""

    claim: Claim
    base: str
    grader: str
    setting: str
    first: str
    second: str
    """The names of the two students, in the first run if there are several."""
    first_k: tuple[int, ...]
    second_k: tuple[int, ...]
    first_rows: int | None
    second_rows: int | None
    first_steps: int | None
    second_steps: int | None
    is_matched: bool
    """Composition: both trained on equal texts and steps. Efficiency: the second trained for no more steps."""
    runs: tuple[str, ...]
    repeated: tuple[str, ...]
    """Those of the runs that hold the same scores of the same models as another of them; they count once."""
    compared: tuple[Judged, ...]
    verdict: ClaimVerdict
    more: MoreData
    """What would probably decide an open claim."""
    explained: tuple[Judged, ...] = ()
    """Gains on the base at k of this finding that practice on single skills explains."""


def findings(students: Sequence[ComparableStudent], cells: Cells) -> list[Finding]:
    """Judge every claim that the runs have data for, and then the planned comparison in each setting.

    A comparison has one p-value, whatever claims it belongs to.
    """
    students, cells = apart(students, cells)
    families: dict[object, dict[Place, Judged]] = {}
    compared = [_finding(group, cells, families) for group in comparisons_to_pool(students, cells)]
    found = [f for f in compared if f is not None]
    planned = {(f.runs, f.second, f.grader, f.setting): f.compared for f in found if f.claim == "planned"}
    runs = list(dict.fromkeys(student.run for student in students))
    order = (*CLAIMS, "planned")
    for number, f in enumerate(found):
        # Gains of the planned comparison at k of the finding that practice on single skills explains.
        ks = {c.k for c in f.compared} if f.claim not in ("efficiency", "control") else set()
        gains = planned.get((f.runs, f.second, f.grader, f.setting), ())
        found[number] = replace(f, explained=tuple(c for c in gains if c.explained_by and c.k in ks))
    ordered = sorted(
        found,
        key=lambda f: (
            order.index(f.claim),
            f.base,
            f.grader,
            not f.is_matched,
            (*SETTINGS, f.setting).index(f.setting),
            runs.index(f.runs[0]),
        ),
    )
    return [together(f, students) for f in ordered]


def _finding(
    comparisons: Sequence[Comparison], cells: Cells, families: dict[object, dict[Place, Judged]]
) -> Finding | None:
    of = comparisons[0]
    pair, claim, setting, grader = of.pair, of.claim, of.setting, of.grader
    family = _family(comparisons, cells, families)
    compared = [family[setting, k] for k in sorted({k for c in comparisons for k in c.ks}) if (setting, k) in family]
    if not compared:
        return None
    verdict: ClaimVerdict = "too little data"
    # A gain somewhere supports a claim, and intervals that all exclude one contradict it; for the control vice versa.
    # A loss at one k does not undo a gain at another; the sentence of the finding names it.
    if any(c.is_gain for c in compared):
        verdict = "not supported" if claim == "control" else "supported"
    elif all(c.excludes_gain for c in compared):
        verdict = "supported" if claim == "control" else "not supported"
    if verdict == "not supported" and _is_not_taught(comparisons, cells):
        verdict = "not taught"
    return Finding(
        claim=claim,
        base=pair.first.base,
        grader=grader,
        setting=setting,
        first=pair.first.student,
        second=pair.second.student,
        first_k=pair.first.k,
        second_k=pair.second.k,
        first_rows=pair.first.rows,
        second_rows=pair.second.rows,
        first_steps=pair.first.steps,
        second_steps=pair.second.steps,
        is_matched=pair.is_matched,
        runs=tuple(dict.fromkeys(c.first.run for c in comparisons)),
        repeated=_repeated(comparisons, cells),
        compared=tuple(compared),
        verdict=verdict,
        more=_more(compared) if verdict == "too little data" else MoreData(),
    )


def _family(
    comparisons: Sequence[Comparison], cells: Cells, known: dict[object, dict[Place, Judged]]
) -> dict[Place, Judged]:
    """The differences between two students in all settings and at all k, over the runs that repeat the comparison."""
    grader = comparisons[0].grader

    def between(pairs: Sequence[tuple[ComparableStudent, ComparableStudent]]) -> dict[Place, Judged]:
        key = (grader, tuple((first.run, first.student, second.student) for first, second in pairs))
        if key not in known:
            values = [paired_values(a.run, (a.student, b.student), grader, cells) for a, b in pairs]
            known[key] = family_of((b.partition, b.seed, v) for (_, b), v in zip(pairs, values, strict=True))
        return known[key]

    family = between([(c.first, c.second) for c in comparisons])
    controls = [(c.first, c.pair.practice, c.second) for c in comparisons if c.pair.practice]
    if len(controls) < len(comparisons):
        return family
    of_practice, beyond = between([(a, b) for a, b, _ in controls]), between([(b, c) for _, b, c in controls])
    return explained(family, controls[0][1].student, of_practice, beyond)


def _is_not_taught(comparisons: Sequence[Comparison], cells: Cells) -> bool:
    """Whether a claim about what lies beyond training fails because the student cannot do what it was trained on.

    It has full marks on less than the smallest gain worth claiming, at the largest k or, for the claim about held-out
    skills, at every k of 2 or more that it was trained on.
    """
    trained = comparisons[0].second.k
    ks = {"larger k": trained[-1:], "held-out": [k for k in trained if k >= 2]}.get(comparisons[0].claim, ())
    keys = [[CellKey(c.second.run, c.second.student, c.grader, TRAIN, k) for c in comparisons] for k in ks]
    scores = [[v for key in own if key in cells for v in cells[key].best(FULL_MARKS).values()] for own in keys]
    return bool(ks) and all(len(own) >= FEWEST_COMBINATIONS and fmean(own) < SMALLEST_GAIN for own in scores)


def _repeated(comparisons: Sequence[Comparison], cells: Cells) -> tuple[str, ...]:
    """Runs in which a training of an earlier run has the same scores on the same combinations."""
    names = []
    earlier: list[object] = []
    for c in comparisons:
        values = paired_values(c.first.run, (c.first.student, c.second.student), c.grader, cells)
        own = {place: of for place, of in values.items() if place[0] == c.setting and place[1] in c.ks}
        training = (c.second.partition, c.second.seed, own)
        if own and training in earlier:
            names.append(c.second.run)
        earlier.append(training)
    return tuple(dict.fromkeys(names))


def _more(compared: Sequence[Judged]) -> MoreData:
    """What would find the gain at some k or, if no gain is worth claiming, exclude one at every k."""
    promising = [c.gain for c in compared if c.gain.mean >= SMALLEST_GAIN - ROUNDING]
    if promising:
        return smallest(_at_least(more_to_find(g, level=LEVEL / max(1, compared[0].tests)), g) for g in promising)
    undecided = [c.gain for c in compared if not c.excludes_gain]
    return largest(_at_least(more_to_exclude(g, SMALLEST_GAIN), g) for g in undecided)


def _at_least(more: MoreData, observed: Gain) -> MoreData:
    """The need, and at least enough combinations for a verdict."""
    missing = FEWEST_COMBINATIONS - observed.combinations
    return replace(more, combinations=max(more.combinations or 0, missing)) if missing > 0 else more
