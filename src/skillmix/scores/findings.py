"""Judge the study's claims and planned comparisons over one or several runs.

A claim defines which students are compared, in which settings and at which k. Lineages determine which students
qualify. Students of one run that differ only in their training seed repeat one comparison, and so do students of
several runs that share everything except run, seed and partition. Each partition of a run counts as a separate run.

The comparisons that an experiment plans before any score is seen form one family. They are tested in a fixed sequence:
each is tested at .05, and a difference is found only if all earlier comparisons found one. The p-value of a comparison
is therefore the largest up to that comparison. In this family, the score of a combination is the share of its texts
with full marks (pass@1).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from statistics import fmean
from typing import Final, Literal, NamedTuple

from skillmix.catalog.catalog import SETTINGS
from skillmix.experiment.step_base import label_parts
from skillmix.experiment.steps import Contrast, ReportStep
from skillmix.grading.points import FULL_MARKS
from skillmix.render import signed_with_interval
from skillmix.runs.run import Run
from skillmix.scores.cells import CellKey, Cells
from skillmix.scores.comparisons import LEVEL, SMALLEST_GAIN, Judged, Place, explained, family_of, paired_values
from skillmix.scores.scoring import EQUAL, ComparableStudent, are_close, base_of, families, practice_of
from skillmix.scores.statistics.differences import (
    Gain,
    MoreData,
    gain,
    gain_of_means,
    gain_of_two_samples,
    largest,
    more_to_exclude,
    more_to_find,
    smallest,
)
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS, ROUNDING

_UNDER = " under "
"""Separates the name of a run, which contains no spaces, from the name of a partition."""


def _apart(students: Sequence[ComparableStudent], cells: Cells) -> tuple[list[ComparableStudent], Cells]:
    """Treat each partition within a run as a separate run, and remove partitions from the settings."""
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


Claim = Literal["composition", "trained k", "held-out", "larger k", "efficiency", "control", "planned"]
"""The study's claims; `planned` is not a claim but the comparison that leads a report if no claim is supported."""
TRAIN: Final = "train"
"""The setting that contains the skills students were trained on."""


@dataclass(frozen=True, slots=True)
class StudentPair:
    """Two students, and whether they satisfy the claim's requirements on conversations and steps."""

    first: ComparableStudent
    second: ComparableStudent
    is_matched: bool = False
    """Composition: both students had equally many texts and steps. Efficiency: the second had no more steps."""
    practice: ComparableStudent | None = None
    """If the first is a base, the student trained on single skills that had as much practice as the second."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two students of a claim in one run, under one grader, in one setting, at some k."""

    claim: Claim
    setting: str
    grader: str
    pair: StudentPair
    ks: tuple[int, ...]
    generations: int


def _comparisons_to_pool(students: Sequence[ComparableStudent], cells: Cells) -> Iterator[Sequence[Comparison]]:
    """Group comparisons that repeat each other over runs, seeds and partitions, including the planned comparison.

    Without a base and a student tuned on it, the first two students of a run are compared.
    """
    found = [
        comparison
        for family in families(students).values()
        for claim, rule in CLAIMS.items()
        for pair in _with_repeats(rule.pairs(family), family)
        for comparison in _comparisons(claim, pair, cells)
    ]

    def signature(comparison: Comparison) -> str:
        """Encode the properties that pooled comparisons must share; data, seed and partition may differ."""
        first, second = comparison.pair.first, comparison.pair.second
        grader, (setting, catalog, _) = comparison.grader, label_parts(comparison.setting)
        protocol = (second.catalog, second.prompts, second.decoding, second.graders.get(grader), comparison.generations)
        training = (first.k, second.k, first.training.recipe, second.training.recipe, comparison.pair.is_matched)
        return str((comparison.claim, first.base, grader, setting, catalog, *protocol, *training))

    for _, group in groupby(sorted(found, key=signature), key=signature):
        # Make one group if each partition has one data set of the same size, otherwise a group for each data set. Two
        # partitions cannot share a data set, because their train skills differ.
        same = list(group)
        by_data: dict[object, list[Comparison]] = defaultdict(list)
        by_partition: dict[str, set[object]] = defaultdict(set)
        for comparison in same:
            data = comparison.pair.first.training.datasets, comparison.pair.second.training.datasets
            by_data[data].append(comparison)
            by_partition[comparison.pair.second.partition].add(data)
        sizes = [(c.pair.first.training.rows, c.pair.second.training.rows) for c in same]
        has_one_size = all(
            are_close(rows, other)
            for size in sizes
            for rows, other in zip(size, sizes[0], strict=True)
            if rows and other
        )
        is_one = has_one_size and all(len(data) == 1 for data in by_partition.values())
        yield from [same] if is_one else by_data.values()
    if not any(c.claim == "planned" for c in found):
        firsts: dict[str, StudentPair] = {}
        for one, other in combinations(students, 2):
            if one.run == other.run:
                firsts.setdefault(one.run, StudentPair(one, other))
        planned = [comparison for pair in firsts.values() for comparison in _comparisons("planned", pair, cells)]

        def repeated(comparison: Comparison) -> str:
            """Return the properties, apart from lineage, that comparisons must share to repeat over partitions."""
            first, second = comparison.pair.first, comparison.pair.second
            names = [student.family or student.student for student in (first, second)]
            return str((first.run.partition(_UNDER)[0], *names, f"{comparison.grader} {comparison.setting}"))

        for _, group in groupby(sorted(planned, key=repeated), key=repeated):
            yield list(group)


def _comparisons(claim: Claim, pair: StudentPair, cells: Cells) -> Iterator[Comparison]:
    """Yield the comparisons for each grader and setting in which the second student has cells for the claim."""
    second, rule = pair.second, CLAIMS[claim]
    ks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for key in cells:
        if (key.run, key.student) == (second.run, second.student) and rule.is_about(key.k, second):
            ks[key.grader, key.setting].append(key.k)
    for (grader, setting), tested in sorted(ks.items()):
        if rule.setting in (None, label_parts(setting).setting):
            points = cells[CellKey(second.run, second.student, grader, setting, min(tested))].points
            generations = max(map(len, points), default=0)
            yield Comparison(claim, setting, grader, pair, tuple(sorted(tested)), generations)


def _with_repeats(pairs: Iterable[StudentPair], family: Sequence[ComparableStudent]) -> Iterator[StudentPair]:
    """Yield each pair together with the pairs of the family whose training differs only in the seed.

    Two tuned students are paired by seed or, if they have no seed in common, in the order of their seeds.
    """

    def training(student: ComparableStudent) -> tuple[object, ...]:
        own = student.training
        return own.k, student.asks_one, own.datasets, own.recipe, student.partition, own.rows, own.steps

    for pair in pairs:
        firsts = {c.seed: c for c in family if training(c) == training(pair.first)}
        seconds = {c.seed: c for c in family if training(c) == training(pair.second)}
        if not pair.first.k:
            twins = [(pair.first, other) for other in seconds.values()]
        elif common := sorted(firsts.keys() & seconds.keys()):
            twins = [(firsts[seed], seconds[seed]) for seed in common]
        else:
            twins = [(firsts[a], seconds[b]) for a, b in zip(sorted(firsts), sorted(seconds), strict=False)]
        for one, other in twins:
            yield StudentPair(one, other, pair.is_matched, None if one.k else practice_of(other, family))


def _richest(family: Sequence[ComparableStudent], *, is_composed: bool = False) -> ComparableStudent | None:
    """Return the student trained on the largest k; break ties by the number of different k, then of conversations."""
    tuned = [c for c in family if c.k and (c.is_composed or not is_composed)]
    return max(tuned, key=lambda c: (max(c.k), len(c.k), c.training.rows or 0), default=None)


def _most_practised(students: Iterable[ComparableStudent]) -> ComparableStudent | None:
    """Return the student trained on single skills with the most conversations and steps."""
    single = [c for c in students if c.k == (1,)]
    return max(single, key=lambda c: (c.training.rows or 0, c.training.steps or 0), default=None)


def _base_and(second: ComparableStudent | None, family: Sequence[ComparableStudent]) -> list[StudentPair]:
    base = base_of(family)
    return [StudentPair(base, second)] if base and second else []


def _practice_and_composed(family: Sequence[ComparableStudent]) -> list[StudentPair]:
    """Pair the student trained on the largest k with one that practiced single skills as much or, if none, the base."""
    richest = _richest(family, is_composed=True)
    practice = practice_of(richest, family) if richest else None
    return [StudentPair(practice, richest, is_matched=True)] if richest and practice else _base_and(richest, family)


def _single_skills_and_composed(family: Sequence[ComparableStudent]) -> list[StudentPair]:
    """Pair the student trained on the largest k with two single-skill students: a matched one and the best other one.

    The first was trained on as many texts and steps. The second is the one with the most texts among the others.
    """
    richest = _richest(family, is_composed=True)
    if richest is None:
        return []
    matched = practice_of(richest, family)
    other = _most_practised(c for c in family if practice_of(richest, [c]) is None)
    return [
        StudentPair(single, richest, is_matched) for single, is_matched in ((matched, True), (other, False)) if single
    ]


def _richer_of_no_more_data(family: Sequence[ComparableStudent]) -> list[StudentPair]:
    """Pair a student trained on a larger k with one trained on a smaller k and no fewer conversations.

    Prefer a pair with no more steps, then the largest k, then the closest size.
    """
    sized = [(c, c.training.rows) for c in family if c.k and c.training.rows is not None]
    pairs = []
    for number, (first, rows) in enumerate(sized):
        for second, fewer in sized:
            if max(first.k) >= 2 and max(second.k) > max(first.k) and fewer <= rows:
                steps, own = first.training.steps, second.training.steps
                is_matched = steps is not None and own is not None and own <= steps * (1 + EQUAL)
                rank = not is_matched, -max(second.k), rows - fewer, number
                pairs.append((rank, StudentPair(first, second, is_matched)))
    return [min(pairs, key=lambda p: p[0])[1]] if pairs else []


class _ClaimRule(NamedTuple):
    """The student pairs that a claim compares, their values of k, and the setting if only one qualifies."""

    pairs: Callable[[Sequence[ComparableStudent]], list[StudentPair]]
    is_about: Callable[[int, ComparableStudent], bool] = lambda k, second: k >= 2
    setting: str | None = None


CLAIMS: Final[Mapping[Claim, _ClaimRule]] = {
    "composition": _ClaimRule(_single_skills_and_composed),
    "trained k": _ClaimRule(lambda family: _base_and(_richest(family), family), lambda k, second: k in second.k, TRAIN),
    "held-out": _ClaimRule(_practice_and_composed, setting="held-out"),
    "larger k": _ClaimRule(_practice_and_composed, lambda k, second: k > max(second.k)),
    "efficiency": _ClaimRule(_richer_of_no_more_data),
    "control": _ClaimRule(lambda family: _base_and(_most_practised(family), family)),
    "planned": _ClaimRule(lambda family: _base_and(_richest(family), family), lambda k, second: True),
}
"""The claims in the order in which outputs list them and in which a report chooses its main result."""


ClaimVerdict = Literal["supported", "not supported", "not taught", "too little data"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim for one base model, grader and setting."""

    claim: Claim
    grader: str
    setting: str
    first: str
    second: str
    """The names of the two students, as in the first run if there are several."""
    pair: StudentPair
    """The two students of the first run."""
    runs: tuple[str, ...]
    repeated: tuple[str, ...]
    """Runs that are not counted, because they contain the same scores of the same models as an earlier run."""
    compared: tuple[Judged, ...]
    verdict: ClaimVerdict
    more: MoreData
    """The additional data that would probably settle a claim with too little data."""
    explained: tuple[Judged, ...] = ()
    """Gains over the base, at the k of this finding, that practice on single skills may explain."""


def findings(students: Sequence[ComparableStudent], cells: Cells) -> list[Finding]:
    """Judge every claim for which the runs have data, and then the planned comparison in each setting.

    A comparison has only one p-value, even if several claims use it.
    """
    students, cells = _apart(students, cells)
    known: dict[object, dict[Place, Judged]] = {}
    found = [f for group in _comparisons_to_pool(students, cells) if (f := _finding(group, cells, known))]
    planned = {(f.runs, f.second, f.grader, f.setting): f.compared for f in found if f.claim == "planned"}
    runs, order = list(dict.fromkeys(student.run for student in students)), list(CLAIMS)
    for number, f in enumerate(found):
        # Gains of the planned comparison, at the k of the finding, that practice on single skills may explain.
        ks = {c.k for c in f.compared} if f.claim not in ("efficiency", "control") else set()
        gains = planned.get((f.runs, f.second, f.grader, f.setting), ())
        found[number] = replace(f, explained=tuple(c for c in gains if c.explained_by and c.k in ks))
    ordered = sorted(
        found,
        key=lambda f: (
            order.index(f.claim),
            f.pair.first.base,
            f.grader,
            not f.pair.is_matched,
            (*SETTINGS, f.setting).index(f.setting),
            runs.index(f.runs[0]),
        ),
    )
    names: Mapping[tuple[str, str], str] = {(s.run, s.student): s.family or s.student for s in students}
    together = []
    for f in ordered:
        # Each partition was treated as a run above. Over several partitions, use the students' names from the
        # experiment file.
        partitions = {run.partition(_UNDER)[2] for run in f.runs}
        own, repeated = (tuple(dict.fromkeys(r.partition(_UNDER)[0] for r in rs)) for rs in (f.runs, f.repeated))
        if len(partitions) == 1:
            f = replace(f, setting=_joined(f.setting, partitions.pop()))
        else:
            f = replace(f, first=names[f.runs[0], f.first], second=names[f.runs[0], f.second])
        together.append(replace(f, runs=own, repeated=repeated))
    return together


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
    # A gain at any k supports a claim. Intervals that all exclude a gain contradict the claim. The control claim is
    # judged in reverse. A loss at one k does not cancel a gain at another; the finding's sentence mentions the loss.
    if any(c.is_gain for c in compared):
        verdict = "not supported" if claim == "control" else "supported"
    elif all(c.excludes_gain for c in compared):
        verdict = "supported" if claim == "control" else "not supported"
    # A claim beyond training also fails if the student did not learn what it was trained on. A student did not learn if
    # its share of full marks is below the smallest gain worth claiming at the largest k or, for the claim about
    # held-out skills, at every k of 2 or more that it was trained on.
    ks = {"larger k": pair.second.k[-1:], "held-out": [k for k in pair.second.k if k >= 2]}.get(claim, ())
    keys = [[CellKey(c.pair.second.run, c.pair.second.student, grader, TRAIN, k) for c in comparisons] for k in ks]
    trained = [[v for key in own if key in cells for v in cells[key].best(FULL_MARKS).values()] for own in keys]
    is_floor = all(len(own) >= FEWEST_COMBINATIONS and fmean(own) < SMALLEST_GAIN for own in trained)
    if verdict == "not supported" and ks and is_floor:
        verdict = "not taught"
    # Find runs that repeat a training run from an earlier run with the same scores on the same combinations.
    repeated, trainings = list[str](), list[object]()
    for c in comparisons:
        values = paired_values(c.pair.first.run, (c.pair.first.student, c.pair.second.student), grader, cells)
        own = {place: of for place, of in values.items() if place[0] == c.setting and place[1] in c.ks}
        training = (c.pair.second.partition, c.pair.second.seed, own)
        if own and training in trainings:
            repeated.append(c.pair.second.run)
        trainings.append(training)
    return Finding(
        claim=claim,
        grader=grader,
        setting=setting,
        first=pair.first.student,
        second=pair.second.student,
        pair=pair,
        runs=tuple(dict.fromkeys(c.pair.first.run for c in comparisons)),
        repeated=tuple(dict.fromkeys(repeated)),
        compared=tuple(compared),
        verdict=verdict,
        more=_more(compared) if verdict == "too little data" else MoreData(),
    )


def _family(
    comparisons: Sequence[Comparison], cells: Cells, known: dict[object, dict[Place, Judged]]
) -> dict[Place, Judged]:
    """Judge the differences between two students in all settings and at all k, over all runs of the comparison."""
    grader, of = comparisons[0].grader, [c.pair for c in comparisons]

    def between(pairs: Sequence[tuple[ComparableStudent, ComparableStudent]]) -> dict[Place, Judged]:
        key = (grader, tuple((first.run, first.student, second.student) for first, second in pairs))
        if key not in known:
            values = [paired_values(a.run, (a.student, b.student), grader, cells) for a, b in pairs]
            known[key] = family_of((b.partition, b.seed, v) for (_, b), v in zip(pairs, values, strict=True))
        return known[key]

    family = between([(pair.first, pair.second) for pair in of])
    controls = [(pair.first, pair.practice, pair.second) for pair in of if pair.practice]
    if len(controls) < len(of):
        return family
    of_practice, beyond = between([(a, b) for a, b, _ in controls]), between([(b, c) for _, b, c in controls])
    return explained(family, controls[0][1].student, of_practice, beyond)


def _more(compared: Sequence[Judged]) -> MoreData:
    """Estimate the data needed to find a gain at some k or, if none is worth claiming, to exclude a gain at every k."""

    def at_least(more: MoreData, observed: Gain) -> MoreData:
        missing = FEWEST_COMBINATIONS - observed.combinations  # needed for a verdict
        return replace(more, combinations=max(more.combinations or 0, missing)) if missing > 0 else more

    promising = [c.gain for c in compared if c.gain.mean >= SMALLEST_GAIN - ROUNDING]
    if promising:
        return smallest(at_least(more_to_find(g, level=LEVEL / max(1, compared[0].tests)), g) for g in promising)
    undecided = [c.gain for c in compared if not c.excludes_gain]
    return largest(at_least(more_to_exclude(g, SMALLEST_GAIN), g) for g in undecided)


_Units = dict[str, dict[int, tuple[CellKey, dict[str, float]]]]
"""For each partition and seed, the cell of a student and the score of each combination."""


@dataclass(frozen=True, slots=True)
class JudgedContrast:
    """A planned comparison with its scores, its difference and its verdict."""

    contrast: Contrast
    grader: str
    value: float
    """The share of texts with full marks, averaged over partitions."""
    against: float
    judged: Judged
    by_partition: tuple[tuple[str, float, float], ...]
    """The partitions, with the two scores in each."""
    keys: tuple[CellKey, CellKey]
    """The two cells in the first partition."""

    @property
    def title(self) -> str:
        """Describe the comparison in words."""
        plan = self.contrast
        sides = [(plan.student, plan.setting, plan.k), plan.other]
        shown = [0] + [i for i in (1, 2) if sides[0][i] != sides[1][i]]
        names = [" ".join(f"k = {side[i]}" if i == 2 else str(side[i]) for i in shown) for side in sides]
        rest = [f"k = {plan.k}"] if 2 not in shown else []
        rest = [*([plan.setting] if 1 not in shown else []), *rest]
        return f"{names[0]} − {names[1]}" + (f", {', '.join(rest)}" if rest else "")

    @property
    def verdict(self) -> str:
        """Return "supported" for a gain, "not supported" for a loss or an excluded gain, else "too little data"."""
        if self.judged.is_gain:
            return "supported"
        return "not supported" if self.judged.found < 0 or self.judged.excludes_gain else "too little data"

    @property
    def words(self) -> str:
        """Describe the difference with its interval, verdict and p-value."""
        found = self.judged.gain
        return f"{signed_with_interval(found.mean, found.low, found.high)}, {self.judged.words}"


def judged_contrasts(runs: Sequence[Run], students: Sequence[ComparableStudent], cells: Cells) -> list[JudgedContrast]:
    """Judge each comparison planned by report steps, in the planned order."""
    steps = (step for run in runs for step in run.experiment.steps if isinstance(step, ReportStep))
    contrasts = {str(contrast): contrast for step in steps for contrast in step.contrasts}
    return judge_planned(list(contrasts.values()), students, cells)


def judge_planned(
    contrasts: Sequence[Contrast], students: Sequence[ComparableStudent], cells: Cells
) -> list[JudgedContrast]:
    """Judge each planned comparison that has data, under the first grader and in the planned order."""
    if not contrasts or not cells:
        return []
    students, own = _apart(students, cells)
    original = {id(cell): key for key, cell in cells.items()}
    grader, worst, found = next(iter(cells)).grader, 0.0, list[JudgedContrast]()
    for plan in contrasts:
        first = _units((plan.student, plan.setting, plan.k), students, own, grader)
        second = _units(plan.other, students, own, grader)
        partitions = [p for p in first if p in second]
        if not partitions:
            continue
        difference = _difference(first, second, partitions, is_paired=plan.is_paired)
        worst = max(worst, difference.p)
        scores = [[_mean(units[p]) for p in partitions] for units in (first, second)]
        keys = [next(iter(units[partitions[0]].values()))[0] for units in (first, second)]
        found.append(
            JudgedContrast(
                contrast=plan,
                grader=grader,
                value=fmean(scores[0]),
                against=fmean(scores[1]),
                judged=Judged(plan.setting, plan.k, difference, worst, 1),
                by_partition=tuple(zip(partitions, *scores, strict=True)),
                keys=(original[id(own[keys[0]])], original[id(own[keys[1]])]),
            )
        )
    return found


def _units(side: tuple[str, str, int], students: Sequence[ComparableStudent], cells: Cells, grader: str) -> _Units:
    """Return a student's share of texts with full marks on each combination, given its name in the experiment file."""
    name, setting, k = side
    units: _Units = defaultdict(dict)
    for student in students:
        key = CellKey(student.run, student.student, grader, setting, k)
        if name not in (student.family, student.student) or key not in cells:
            continue
        # Count only combinations whose texts are all graded.
        values = zip(cells[key].combinations, cells[key].values(FULL_MARKS), strict=True)
        scores = {c.id: fmean(v for v in tries if v is not None) for c, tries in values if tries and None not in tries}
        if scores:
            units[student.partition].setdefault(student.seed, (key, scores))
    return units


def _mean(seeds: dict[int, tuple[CellKey, dict[str, float]]]) -> float:
    return fmean(fmean(scores.values()) for _, scores in seeds.values())


def _pooled(seeds: dict[int, tuple[CellKey, dict[str, float]]]) -> dict[str, float]:
    every = [scores for _, scores in seeds.values()]
    return {c: fmean(scores[c] for scores in every) for c in every[0] if all(c in scores for scores in every)}


def _difference(first: _Units, second: _Units, partitions: Sequence[str], *, is_paired: bool) -> Gain:
    """Compute the difference (first minus second), paired by combination if possible."""

    def minus(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
        return {c: one[c] - other[c] for c in one if c in other}

    if is_paired:
        nested = {
            p: {seed: minus(scores, second[p][seed][1]) for seed, (_, scores) in first[p].items() if seed in second[p]}
            or {0: minus(_pooled(first[p]), _pooled(second[p]))}
            for p in partitions
        }
        if all(by_id for seeds in nested.values() for by_id in seeds.values()):
            return gain(nested)
    if len(partitions) > 1:
        return gain_of_means([_mean(first[p]) - _mean(second[p]) for p in partitions])
    return gain_of_two_samples(*(list(_pooled(units[partitions[0]]).values()) for units in (first, second)))
