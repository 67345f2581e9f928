"""The study's four claims, each judged by lineage and paired differences."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Literal

from skillmix.catalog.catalog import SETTINGS
from skillmix.scores.cells import CellKey
from skillmix.scores.compare import Cells, ComparableStudent, base_of, families, paired
from skillmix.scores.statistics.differences import Gain, gain, holm, more_to_exclude, more_to_find

Claim = Literal["held-out", "larger k", "efficiency", "control"]
Verdict = Literal["supported", "not supported", "too little data"]
LEVEL: Final = 0.05
SMALLEST_GAIN: Final = 0.05
"""The smallest gain worth claiming; a claim is not supported if all its intervals end below it."""
CONTROL_MARGIN: Final = 0.10
"""The control claim holds if single-skill data raise full marks by less than this."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The second student minus the first at one k."""

    k: int
    gain: Gain
    p_corrected: float

    @property
    def is_found(self) -> bool:
        """Whether the corrected test finds a difference."""
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
    runs: tuple[str, ...]
    compared: tuple[Compared, ...]
    verdict: Verdict
    more: int | None
    """How many more units (`Gain.unit`) would probably decide the claim; None if that cannot be estimated."""


@dataclass(frozen=True, slots=True)
class _Pair:
    claim: Claim
    setting: str
    grader: str
    first: ComparableStudent
    second: ComparableStudent
    ks: tuple[int, ...]

    @property
    def signature(self) -> tuple[object, ...]:
        """Pairs from several runs that share a signature repeat one comparison."""
        return (self.claim, self.first.base, self.grader, self.setting, self.first.k, self.second.k)


def findings(contenders: Sequence[ComparableStudent], cells: Cells) -> list[Finding]:
    """Judge every claim that the runs have data for; p-values are corrected over all k and settings of a claim."""
    pairs = sorted(_pairs(contenders, cells), key=lambda p: str(p.signature))
    compared = [_finding(list(same), cells) for _, same in groupby(pairs, key=lambda p: p.signature)]
    return sorted(
        _judged([f for f in compared if f is not None]),
        key=lambda f: (_CLAIMS.index(f.claim), f.base, f.grader, _rank(f.setting)),
    )


def _rank(setting: str) -> int:
    return (*SETTINGS, setting).index(setting)


_CLAIMS: Final[tuple[Claim, ...]] = ("held-out", "larger k", "efficiency", "control")


def _pairs(contenders: Sequence[ComparableStudent], cells: Cells) -> Iterable[_Pair]:
    ks = sorted({key.k for key in cells})
    for (run, *_), group in families(contenders).items():
        students = {c.student for c in group}
        contexts = sorted({(key.grader, key.setting) for key in cells if key.run == run and key.student in students})
        for claim in _CLAIMS:
            chosen = _CHOICES[claim](group)
            if chosen is None:
                continue
            first, second = chosen
            for grader, setting in contexts:
                if claim == "held-out" and setting != "held-out":
                    continue
                evaluated = [k for k in ks if CellKey(run, second.student, grader, setting, k) in cells]
                wanted = tuple(k for k in evaluated if _IS_TESTED[claim](k, second))
                if wanted:
                    yield _Pair(claim, setting, grader, first, second, wanted)


def _base_and_richest(group: Sequence[ComparableStudent]) -> tuple[ComparableStudent, ComparableStudent] | None:
    base = base_of(group)
    composed = [c for c in group if c.k and max(c.k) >= 2]
    richest = max(composed, key=lambda c: (max(c.k), len(c.k), c.rows or 0), default=None)
    return (base, richest) if base and richest else None


def _richer_of_no_more_data(group: Sequence[ComparableStudent]) -> tuple[ComparableStudent, ComparableStudent] | None:
    """The student with the largest k, and one with a smaller k and no fewer conversations, closest in size."""
    sized = [c for c in group if c.k and c.rows is not None]
    pairs = [
        (first, second)
        for first in sized
        for second in sized
        if max(first.k) >= 2 and max(second.k) > max(first.k) and (second.rows or 0) <= (first.rows or 0)
    ]
    return min(pairs, key=lambda p: (-max(p[1].k), (p[0].rows or 0) - (p[1].rows or 0)), default=None)


def _base_and_single_skills(group: Sequence[ComparableStudent]) -> tuple[ComparableStudent, ComparableStudent] | None:
    base = base_of(group)
    single = next((c for c in group if c.k == (1,)), None)
    return (base, single) if base and single else None


_CHOICES: Final[
    Mapping[Claim, Callable[[Sequence[ComparableStudent]], tuple[ComparableStudent, ComparableStudent] | None]]
] = {
    "held-out": _base_and_richest,
    "larger k": _base_and_richest,
    "efficiency": _richer_of_no_more_data,
    "control": _base_and_single_skills,
}
_IS_TESTED: Final[Mapping[Claim, Callable[[int, ComparableStudent], bool]]] = {
    "held-out": lambda k, second: k >= 2,
    "larger k": lambda k, second: k > max(second.k),
    "efficiency": lambda k, second: k >= 2,
    "control": lambda k, second: k >= 3,
}


def _finding(pairs: Sequence[_Pair], cells: Cells) -> Finding | None:
    compared = []
    for k in sorted({k for pair in pairs for k in pair.ks}):
        nested: dict[str, dict[int, list[float]]] = {}
        for pair in pairs:
            differences = paired(pair.first, pair.second, (pair.grader, pair.setting, k), cells)
            if differences:
                seeds = nested.setdefault(pair.second.partition, {})
                seeds.setdefault(pair.second.seed, []).extend(differences)
        if nested:
            difference = gain(nested)
            compared.append(Compared(k, difference, difference.p))
    if not compared:
        return None
    first, second = pairs[0].first, pairs[0].second
    return Finding(
        claim=pairs[0].claim,
        base=first.base,
        grader=pairs[0].grader,
        setting=pairs[0].setting,
        first=first.student,
        second=second.student,
        first_k=first.k,
        second_k=second.k,
        first_rows=first.rows,
        second_rows=second.rows,
        runs=tuple(dict.fromkeys(pair.first.run for pair in pairs)),
        compared=tuple(compared),
        verdict="too little data",
        more=None,
    )


def _judged(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with corrected p-values and verdicts."""
    result = []
    for family in sorted({(f.claim, f.base, f.grader) for f in findings}):
        members = [f for f in findings if (f.claim, f.base, f.grader) == family]
        p_values = holm([c.gain.p for f in members for c in f.compared])
        tests = len(p_values)
        for finding in members:
            compared = tuple(replace(c, p_corrected=p_values.pop(0)) for c in finding.compared)
            judge = _judge_control if finding.claim == "control" else _judge_gain
            verdict, more = judge(compared, tests)
            result.append(replace(finding, compared=compared, verdict=verdict, more=more))
    return result


def _judge_gain(compared: Sequence[Compared], tests: int) -> tuple[Verdict, int | None]:
    better = [c for c in compared if c.is_found and c.gain.mean > 0]
    worse = [c for c in compared if c.is_found and c.gain.mean < 0]
    if better and not worse:
        return "supported", None
    if worse or all(c.gain.high < SMALLEST_GAIN for c in compared):
        return "not supported", None
    needed_to_find = [more_to_find(c.gain, level=LEVEL / tests) for c in compared if c.gain.mean > 0]
    known = [more for more in needed_to_find if more is not None]
    if known:
        return "too little data", min(known)
    needed_to_exclude = [more_to_exclude(c.gain, SMALLEST_GAIN) for c in compared if c.gain.high >= SMALLEST_GAIN]
    return "too little data", max((more for more in needed_to_exclude if more is not None), default=None)


def _judge_control(compared: Sequence[Compared], tests: int) -> tuple[Verdict, int | None]:
    if any(c.is_found and c.gain.mean >= CONTROL_MARGIN for c in compared):
        return "not supported", None
    if all(c.gain.high < CONTROL_MARGIN for c in compared):
        return "supported", None
    wide = [c.gain for c in compared if c.gain.high >= CONTROL_MARGIN]
    needed = [
        more_to_find(g, level=LEVEL / tests) if g.mean >= CONTROL_MARGIN else more_to_exclude(g, CONTROL_MARGIN)
        for g in wide
    ]
    return "too little data", max((n for n in needed if n is not None), default=None)
