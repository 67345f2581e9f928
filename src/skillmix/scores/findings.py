"""The study's claims, each judged by paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from skillmix.catalog.catalog import SETTINGS
from skillmix.experiment.step_base import label_parts
from skillmix.scores.claims import CLAIMS, Claim, Comparison, comparisons_to_pool
from skillmix.scores.compare import Cells, ComparableStudent, paired
from skillmix.scores.statistics.differences import Gain, gain, holm
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS, ROUNDING
from skillmix.scores.statistics.more_data import MoreData, largest, more_to_exclude, more_to_find, smallest
from skillmix.scores.verdicts.one_run import apart, together

Verdict = Literal["supported", "not supported", "too little data"]
LEVEL: Final = 0.05
SMALLEST_GAIN: Final = 0.05
"""The smallest gain worth claiming."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The second student minus the first at one k."""

    k: int
    gain: Gain
    p_corrected: float

    @property
    def is_gain(self) -> bool:
        """Whether the corrected test finds a gain worth claiming."""
        return self._is_found and self.gain.is_above_zero and self.gain.mean >= SMALLEST_GAIN - ROUNDING

    @property
    def is_loss(self) -> bool:
        """Whether the corrected test finds a loss."""
        return self._is_found and self.gain.is_below_zero

    @property
    def excludes_gain(self) -> bool:
        """Whether the interval ends below the smallest gain worth claiming."""
        return self.gain.high is not None and self.gain.high < SMALLEST_GAIN

    @property
    def _is_found(self) -> bool:
        return self.p_corrected < LEVEL


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
    compared: tuple[Compared, ...]
    verdict: Verdict
    more: MoreData
    """What would probably decide an open claim."""


def findings(students: Sequence[ComparableStudent], cells: Cells) -> list[Finding]:
    """Judge every claim that the runs have data for; p-values are corrected over all k and settings of a claim."""
    students, cells = apart(students, cells)
    compared = [_finding(group, cells) for group in comparisons_to_pool(students, cells)]
    runs = list(dict.fromkeys(student.run for student in students))
    judged = sorted(
        _judged([f for f in compared if f is not None]),
        key=lambda f: (
            CLAIMS.index(f.claim),
            f.base,
            f.grader,
            not f.is_matched,
            _rank(f.setting),
            runs.index(f.runs[0]),
        ),
    )
    return [together(f, students) for f in judged]


def _rank(setting: str) -> int:
    return (*SETTINGS, setting).index(setting)


_Values = dict[int, dict[str, float]]
"""Differences by k and combination."""


def _finding(comparisons: Sequence[Comparison], cells: Cells) -> Finding | None:
    values = [_values(comparison, cells) for comparison in comparisons]
    compared = []
    for k in sorted({k for by_k in values for k in by_k}):
        difference = gain(_nested(comparisons, [by_k.get(k, {}) for by_k in values]))
        compared.append(Compared(k, difference, difference.p))
    if not compared:
        return None
    pair, labels = comparisons[0].pair, list(dict.fromkeys(c.setting for c in comparisons))
    return Finding(
        claim=comparisons[0].claim,
        base=pair.first.base,
        grader=comparisons[0].grader,
        setting=labels[0] if len(labels) == 1 else label_parts(labels[0]).setting,
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
        repeated=_repeated(comparisons, values),
        compared=tuple(compared),
        verdict="too little data",
        more=MoreData(),
    )


def _values(comparison: Comparison, cells: Cells) -> _Values:
    where = {k: (comparison.grader, comparison.setting, k) for k in comparison.ks}
    values = {k: paired(comparison.first, comparison.second, cell, cells) for k, cell in where.items()}
    return {k: by_id for k, by_id in values.items() if by_id}


def _nested(
    comparisons: Sequence[Comparison], values: Sequence[dict[str, float]]
) -> dict[str, dict[int, dict[str, float]]]:
    """Differences by partition, seed and combination; a model that several runs evaluate counts once, by its mean."""
    lists: dict[str, dict[int, dict[str, list[float]]]] = {}
    for comparison, by_id in zip(comparisons, values, strict=True):
        for combination, value in by_id.items():
            seeds = lists.setdefault(comparison.second.partition, {})
            seeds.setdefault(comparison.second.seed, {}).setdefault(combination, []).append(value)
    return {
        partition: {seed: {c: sum(v) / len(v) for c, v in by_id.items()} for seed, by_id in seeds.items()}
        for partition, seeds in lists.items()
    }


def _repeated(comparisons: Sequence[Comparison], values: Sequence[_Values]) -> tuple[str, ...]:
    """Runs in which a training of an earlier run has the same differences on the same combinations."""
    names = []
    earlier: list[tuple[object, _Values]] = []
    for comparison, by_k in zip(comparisons, values, strict=True):
        training = (comparison.second.partition, comparison.second.seed)
        if by_k and (training, by_k) in earlier:
            names.append(comparison.second.run)
        earlier.append((training, by_k))
    return tuple(dict.fromkeys(names))


def _judged(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with corrected p-values and verdicts."""
    result = []
    for family in sorted({(f.claim, f.base, f.grader) for f in findings}):
        members = [f for f in findings if (f.claim, f.base, f.grader) == family]
        p_values = holm([c.gain.p for f in members for c in f.compared])
        tests = len(p_values)
        for finding in members:
            compared = tuple(replace(c, p_corrected=p_values.pop(0)) for c in finding.compared)
            verdict = _verdict(finding.claim, compared)
            more = _more(compared, tests) if verdict == "too little data" else MoreData()
            result.append(replace(finding, compared=compared, verdict=verdict, more=more))
    return result


def _verdict(claim: Claim, compared: Sequence[Compared]) -> Verdict:
    """A gain somewhere supports a claim, and intervals that all exclude one contradict it; for the control vice versa.

    A loss at one k does not undo a gain at another; the sentence of the finding names it.
    """
    if any(c.is_gain for c in compared):
        return "not supported" if claim == "control" else "supported"
    if all(c.excludes_gain for c in compared):
        return "supported" if claim == "control" else "not supported"
    return "too little data"


def _more(compared: Sequence[Compared], tests: int) -> MoreData:
    """What would find the gain at some k or, if no gain is worth claiming, exclude one at every k."""
    promising = [c.gain for c in compared if c.gain.mean >= SMALLEST_GAIN - ROUNDING]
    if promising:
        return smallest(_at_least(more_to_find(g, level=LEVEL / tests), g) for g in promising)
    undecided = [c.gain for c in compared if not c.excludes_gain]
    return largest(_at_least(more_to_exclude(g, SMALLEST_GAIN), g) for g in undecided)


def _at_least(more: MoreData, observed: Gain) -> MoreData:
    """The need, and at least enough combinations for a verdict."""
    missing = FEWEST_COMBINATIONS - observed.combinations
    return replace(more, combinations=max(more.combinations or 0, missing)) if missing > 0 else more
