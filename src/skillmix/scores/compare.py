"""Two students compared: who may be, the verdict on a difference, and whether format explains it.

One function decides the verdict, and everything that is shown asks it. All settings and k in which two students under
one grader share complete combinations are one family of tests.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final, Literal

from skillmix.experiment.experiment import Experiment
from skillmix.experiment.step_base import JOINED
from skillmix.grading.points import FULL_MARKS
from skillmix.hashing import short_id
from skillmix.models.lineage import Lineage
from skillmix.prompts.prompt_set import load_prompts, shipped_prompt_sets
from skillmix.render import p_value, plural, signed_with_interval
from skillmix.runs.run import Run
from skillmix.runs.students import made_students, settings_for
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.statistics.differences import Gain, gain, holm
from skillmix.scores.statistics.intervals import (
    FEWEST_COMBINATIONS,
    ROUNDING,
    Paired,
    ShareDifference,
    share_difference,
)

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
    counted = [
        place
        for place, found in gains.items()
        if sum(abs(v) > ROUNDING for v in found.values) >= (_FEWEST_DIFFERING if found.unit == "combinations" else 1)
    ]
    corrected = dict(zip(counted, holm([gains[place].p for place in counted]), strict=True))
    return {
        (setting, k): Judged(setting, k, found, corrected.get((setting, k), found.p), len(counted))
        for (setting, k), found in gains.items()
    }


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

        def family(one: str, other: str, grader: str = grader) -> dict[Place, Judged]:
            return family_of([("", 0, paired_values(run, (one, other), grader, cells, metric))])

        own = family(first, second)
        if practice is not None:
            own = explained(own, practice, family(first, practice), family(practice, second))
        values = paired_values(run, (first, second), grader, cells, metric)
        rows |= {CellKey(run, second, grader, *place): _row(grader, j, values[place]) for place, j in own.items()}
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
    places: dict[Place, dict[str, dict[int, dict[str, list[float]]]]] = {}
    for partition, seed, values in repeats:
        for place, by_id in values.items():
            training = places.setdefault(place, {}).setdefault(partition, {}).setdefault(seed, {})
            for combination, (before, after) in by_id.items():
                training.setdefault(combination, []).append(after - before)
    gains = {}
    for place, partitions in places.items():
        means = {
            partition: {seed: {c: fmean(differences) for c, differences in own.items()} for seed, own in seeds.items()}
            for partition, seeds in partitions.items()
        }
        gains[place] = gain(means)
    return judged(gains)


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


Role = Literal["explains", "hides skill"]
"""Format explains the difference, or too few texts have a valid format to compare the skill of both students."""


@dataclass(frozen=True, slots=True)
class ValidTexts:
    """The texts of one student with a valid format and a decision on full marks."""

    valid: int
    combinations: int
    """Combinations with such a text."""
    written: int
    """Texts that have a format, valid or not."""

    @property
    def are_too_few(self) -> bool:
        """Whether full marks among these texts cannot be compared."""
        return self.combinations < FEWEST_COMBINATIONS


@dataclass(frozen=True, slots=True)
class FormatEffect:
    """How the format of the texts bears on the difference between two students."""

    first: ValidTexts
    second: ValidTexts
    among_valid: ShareDifference | None
    """Full marks among texts with a valid format, one try, second minus first; None if one has too few such texts."""
    role: Role | None
    """None if no difference in full marks is found, if the formats do not differ, or if skill differs too."""

    def words(self, first: str, second: str) -> str | None:
        """The role of format as a clause, with the names of both students; None if format has no role."""
        if self.role == "explains" and self.among_valid is not None:
            difference = signed_with_interval(*self.among_valid)
            return f"format explains it: among texts with a valid format the difference is {difference}, within noise"
        if self.role == "hides skill":
            few = [(name, t) for name, t in ((first, self.first), (second, self.second)) if t.are_too_few]
            each = [f"{name} has {plural(t.valid, 'text')} with a valid format, of {t.written}" for name, t in few]
            return f"skill cannot be compared: {' and '.join(each)}"
        return None


def effect_between(
    students: tuple[str, str],
    runs: Sequence[str],
    where: tuple[str, str, int],
    cells: Mapping[CellKey, Cell],
    found: float,
) -> FormatEffect:
    """The effect of format between two students of some runs; `where` is a grader, a setting and a k."""
    keys = [tuple(CellKey(run, student, *where) for student in students) for run in runs]
    pairs = [(cells[first], cells[second]) for first, second in keys if first in cells and second in cells]
    return format_effect(pairs, found)


def format_effect(cells: Sequence[tuple[Cell, Cell]], found: float) -> FormatEffect:
    """The effect of format on a difference in full marks; `cells` has the first and the second student of each run.

    `found` is 0 unless a difference is found. Format explains it if the share of texts with a valid format differs in
    the same direction, outside noise, and full marks among these texts differ within noise.
    """
    valid, formats = list[Paired](), list[Paired]()
    for pair in cells:
        for paired, (before, after) in (
            (valid, [cell.valid_clusters(FULL_MARKS) for cell in pair]),
            (formats, [cell.format_clusters() for cell in pair]),
        ):
            paired += [Paired(before[c], after[c]) for c in sorted(before.keys() & after.keys())]
    first, second = (
        ValidTexts(
            valid=sum(getattr(p, side).texts for p in valid),
            combinations=sum(getattr(p, side).texts > 0 for p in valid),
            written=sum(getattr(p, side).texts for p in formats),
        )
        for side in ("first", "second")
    )
    has_enough = not first.are_too_few and not second.are_too_few
    among_valid = share_difference(valid) if has_enough else None
    role: Role | None = None
    of_format = share_difference(formats) if found else None
    if of_format is not None and not of_format.is_within_noise and (of_format.value > 0) == (found > 0):
        role = "hides skill" if among_valid is None else "explains" if among_valid.is_within_noise else None
    return FormatEffect(first, second, among_valid, role)


Cells = Mapping[CellKey, Cell]
EQUAL: Final = 0.05
"""Numbers of conversations or steps that differ by no more than this share count as equal."""


@dataclass(frozen=True, slots=True)
class ComparableStudent:
    """A student with everything that decides which others it may be compared with."""

    run: str
    student: str
    spec: str
    """The student's model in the experiment."""
    prompts: str
    """Its prompt set; students with other prompts are not compared."""
    lineage: Lineage | None
    partition: str
    seed: int
    """The seed of its training or, for a base, of the run."""
    decoding: str = ""
    """Its sampling settings; students with other settings are not compared."""
    catalog: str = ""
    """The hash of the catalog of its run."""
    graders: Mapping[str, str] = field(default_factory=dict)
    """The graders of its run by name, each with a hash of everything that decides its points."""
    family: str | None = None
    """Its name in the file, if the file repeats it for seeds, partitions or values of a matrix."""

    @property
    def base(self) -> str:
        """The model at the root: the first that was tuned, or the student itself."""
        return self.lineage.base if self.lineage else self.spec

    @property
    def k(self) -> tuple[int, ...]:
        """Numbers of skills in its training texts; empty for a base."""
        return self.lineage.k if self.lineage else ()

    @property
    def rows(self) -> int | None:
        """Conversations in its training data; None if unknown."""
        return self.lineage.rows if self.lineage else None

    @property
    def steps(self) -> int | None:
        """Optimiser steps of its training; None if unknown."""
        return self.lineage.steps if self.lineage else None

    @property
    def data(self) -> tuple[str, ...]:
        """Hashes of its data sets; empty for a base."""
        return self.lineage.datasets if self.lineage else ()

    @property
    def recipe(self) -> str:
        """The hash of its recipe; empty for a base."""
        return self.lineage.recipe if self.lineage else ""

    @property
    def asks_one(self) -> bool:
        """Whether each request of its training texts names one skill, however many skills the texts show."""
        return self.lineage is not None and self.lineage.requests == "one"

    @property
    def is_composed(self) -> bool:
        """Whether it was trained on requests for two skills or more."""
        return max(self.k, default=0) >= 2 and not self.asks_one


def families(students: Sequence[ComparableStudent]) -> dict[tuple[str, str, str, str], list[ComparableStudent]]:
    """Students of one run, grouped by root, prompt set and sampling settings."""
    groups: dict[tuple[str, str, str, str], list[ComparableStudent]] = {}
    for student in students:
        shared = (student.run, student.base, student.prompts, student.decoding)
        groups.setdefault(shared, []).append(student)
    return groups


def base_of(family: Sequence[ComparableStudent]) -> ComparableStudent | None:
    """The student of a family that was not tuned."""
    return next((c for c in family if c.lineage is None), None)


def practice_of(second: ComparableStudent, family: Sequence[ComparableStudent]) -> ComparableStudent | None:
    """The student of single skills that had as many texts and steps as a composed one; None if there is none.

    The best control has the same texts, with requests that name one skill.
    """
    equal = [
        c
        for c in family
        if second.is_composed
        and (c.asks_one or c.k == (1,))
        and are_close(c.rows, second.rows)
        and are_close(c.steps, second.steps)
    ]
    return max(equal, key=lambda c: (c.asks_one, c.seed == second.seed, c.rows or 0, c.steps or 0), default=None)


def practice_between(students: Sequence[ComparableStudent], first: str, second: str) -> str | None:
    """The name of the student of single skills that is matched with the second, if the first is the second's base."""
    for family in families(students).values():
        base, tuned = base_of(family), next((c for c in family if c.student == second), None)
        if base is not None and base.student == first and tuned is not None:
            practice = practice_of(tuned, family)
            return practice.student if practice else None
    return None


def are_close(number: int | None, other: int | None) -> bool:
    """Whether two numbers of conversations or steps count as equal; unknown numbers do not."""
    return number is not None and other is not None and abs(number - other) <= EQUAL * max(number, other)


@dataclass(frozen=True, slots=True)
class Change:
    """A tuned student minus its base at one grader, setting and k."""

    run: str
    student: str
    base: str
    trained: tuple[int, ...]
    row: PairRow
    format: FormatEffect | None = None
    """How the format of the texts bears on the difference; None if unknown."""

    @property
    def format_words(self) -> str | None:
        """The role of format as a clause; None if format has no role."""
        return self.format.words(self.base, self.student) if self.format else None


def before_and_after(students: Sequence[ComparableStudent], cells: Cells) -> list[Change]:
    """Every tuned student compared with its base, in the order of the cells, where both have a cell."""
    changes: dict[CellKey, Change] = {}
    for family in families(students).values():
        base = base_of(family)
        for tuned in family:
            if base is None or tuned.lineage is None:
                continue
            both, practice = (base.student, tuned.student), practice_of(tuned, family)
            for row in compare_cells(tuned.run, *both, cells, practice=practice.student if practice else None):
                where = row.grader, row.setting, row.k
                effect = effect_between(both, (tuned.run,), where, cells, row.found)
                change = Change(tuned.run, tuned.student, base.student, tuned.k, row, effect)
                changes[CellKey(tuned.run, tuned.student, *where)] = change
    return [changes[key] for key in cells if key in changes]


def student_specs(experiment: Experiment) -> dict[str, str]:
    """The model of every student; that of a train step is described by its step."""
    trained = {n: s if s.startswith(JOINED) else f"made by step {n}" for n, s in made_students(experiment).items()}
    return {name: s.model for name, s in experiment.students.items()} | trained


def comparable_students(
    run: Run, experiment: Experiment, students: Iterable[str], lineages: Mapping[str, Lineage]
) -> list[ComparableStudent]:
    """The students of a run, ready for comparison; without a lineage, a student is a base. None is joined by code."""
    specs = student_specs(experiment)
    graders = _graders(run, experiment)
    comparable = []
    for student in students:
        prompts = decoding = ""
        if specs:
            settings = settings_for(experiment, student)
            if settings.joined:
                continue
            prompts = settings.prompts or experiment.prompts
            decoding = f"temperature {settings.temperature}, top_p {settings.top_p}, {settings.max_tokens} tokens"
            decoding = ", ".join(filter(None, [decoding, settings.additions]))
        lineage = lineages.get(student)
        variant = experiment.variants.get(student)
        seeds = (lineage.seed if lineage else None, variant.seed if variant else None, experiment.seed)
        partition = (lineage and lineage.partition) or (variant and variant.partition) or experiment.partition
        comparable.append(
            ComparableStudent(
                run=run.name,
                student=student,
                spec=specs.get(student, student),
                prompts=prompts,
                lineage=lineage,
                partition=partition or "default",
                seed=next(seed for seed in seeds if seed is not None),
                decoding=decoding,
                catalog=run.fact("catalog_hash") or run.fact("catalog") or "",
                graders=graders,
                family=variant.family if variant else None,
            )
        )
    return comparable


def _graders(run: Run, experiment: Experiment) -> dict[str, str]:
    """A hash of each grader's settings, the prompts and the scoring rules; speed and waiting times decide no points."""
    if run.is_imported:
        return {}
    prompts = run.fact("prompts_hash") or experiment.prompts
    if prompts in shipped_prompt_sets():
        prompts = load_prompts(prompts).content_hash()
    rules = [experiment.rules, experiment.answer.model_dump(mode="json"), prompts]
    return {
        name: short_id("grader", settings.model_dump(mode="json", exclude={"concurrency", "timeout"}), rules)
        for name, settings in experiment.graders.items()
    }
