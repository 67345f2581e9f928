"""The study's claims, each judged by paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from skillmix.catalog.catalog import SETTINGS
from skillmix.grading.points import FULL_MARKS
from skillmix.scores.cells import CellKey
from skillmix.scores.claims import CLAIMS, TRAIN, Claim, Comparison, comparisons_to_pool
from skillmix.scores.compare import Cells, ComparableStudent
from skillmix.scores.statistics.differences import Gain
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS, ROUNDING
from skillmix.scores.statistics.more_data import MoreData, largest, more_to_exclude, more_to_find, smallest
from skillmix.scores.verdicts.judged import (
    LEVEL,
    SMALLEST_GAIN,
    Judged,
    Place,
    explained,
    family_of,
    paired_values,
)
from skillmix.scores.verdicts.one_run import apart, together

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
    ordered = sorted(
        [replace(f, explained=_explained(f, planned.get((f.runs, f.second, f.grader, f.setting), ()))) for f in found],
        key=lambda f: (
            order.index(f.claim),
            f.base,
            f.grader,
            not f.is_matched,
            _rank(f.setting),
            runs.index(f.runs[0]),
        ),
    )
    return [together(f, students) for f in ordered]


def _explained(finding: Finding, planned: Sequence[Judged]) -> tuple[Judged, ...]:
    """Those gains of the planned comparison at k of the finding that practice on single skills explains."""
    if finding.claim in ("efficiency", "control"):
        return ()
    ks = {c.k for c in finding.compared}
    return tuple(c for c in planned if c.explained_by and c.k in ks)


def _rank(setting: str) -> int:
    return (*SETTINGS, setting).index(setting)


def _finding(
    comparisons: Sequence[Comparison], cells: Cells, families: dict[object, dict[Place, Judged]]
) -> Finding | None:
    of = comparisons[0]
    pair, claim, setting, grader = of.pair, of.claim, of.setting, of.grader
    family = _family(comparisons, cells, families)
    compared = [family[setting, k] for k in sorted({k for c in comparisons for k in c.ks}) if (setting, k) in family]
    if not compared:
        return None
    verdict = _verdict(claim, compared)
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


def _verdict(claim: Claim, compared: Sequence[Judged]) -> ClaimVerdict:
    """A gain somewhere supports a claim, and intervals that all exclude one contradict it; for the control vice versa.

    A loss at one k does not undo a gain at another; the sentence of the finding names it.
    """
    if any(c.is_gain for c in compared):
        return "not supported" if claim == "control" else "supported"
    if all(c.excludes_gain for c in compared):
        return "supported" if claim == "control" else "not supported"
    return "too little data"


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
