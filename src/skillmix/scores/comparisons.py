"""Compare two students: the verdict on a difference, whether format explains the difference, and the texts that differ.

The same function determines the verdict for every output. For two students under one grader, all settings and k in
which both have completed the same combinations form one family of tests. `compare_students` implements `skillmix
compare`, which works for any two students of a run, with or without a lineage.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final, Literal

from skillmix.errors import UserError
from skillmix.grading.points import FULL_MARKS, METRICS, text_score
from skillmix.render import markdown_table, name_hint, p_value, plural, share, signed_with_interval, whole
from skillmix.runs.run import Run, opened
from skillmix.runs.students import has_settings, settings_for
from skillmix.runs.texts import texts_with_ballots, verdict_on
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.scoring import (
    ComparableStudent,
    base_of,
    comparable_in,
    families,
    lineages_in,
    practice_between,
    practice_of,
    scored_cells,
)
from skillmix.scores.statistics.differences import Gain, gain, holm
from skillmix.scores.statistics.intervals import (
    FEWEST_COMBINATIONS,
    ROUNDING,
    Paired,
    ShareDifference,
    share_difference,
)
from skillmix.scores.text_rows import grades_by_name

Place = tuple[str, int]
"""A setting and a k."""
Values = Mapping[Place, Mapping[str, tuple[float, float]]]
"""The scores of two students on the combinations that both have completed."""
LEVEL: Final = 0.05
SMALLEST_GAIN: Final = 0.05
"""The smallest gain worth claiming."""
_FEWEST_DIFFERING: Final = 6
"""With fewer differing combinations, no permutation of signs can reach p = .05."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The difference between two students (second minus first) in one setting at one k, with its verdict."""

    setting: str
    k: int
    gain: Gain
    p_corrected: float
    """The p-value after Holm's correction over the family."""
    tests: int
    """The number of comparisons in the correction."""
    explained_by: str | None = None
    """A student trained on single skills that also gains, if the second student is not found to be better."""

    @property
    def verdict(self) -> str:
        """Return the verdict; a difference is found if its corrected p is below .05 and its interval excludes 0."""
        low, high = self.gain.low, self.gain.high
        if low is None or high is None:
            return f"too few {self.gain.unit}"
        if self.p_corrected < LEVEL and not low <= 0 <= high:
            return "a gain" if low > 0 else "a loss"
        return "within noise"

    @property
    def words(self) -> str:
        """Return the verdict with its p-value."""
        return verdict_words(self.verdict, self.p_corrected, self.tests)

    @property
    def found(self) -> float:
        """Return the difference if the verdict is a gain or a loss, otherwise 0."""
        return self.gain.mean if self.verdict in ("a gain", "a loss") else 0.0

    @property
    def is_gain(self) -> bool:
        """Whether the verdict is a gain that is large enough to be claimed."""
        return self.verdict == "a gain" and self.gain.mean >= SMALLEST_GAIN - ROUNDING

    @property
    def excludes_gain(self) -> bool:
        """Whether the interval ends below the smallest gain worth claiming."""
        return self.gain.high is not None and self.gain.high < SMALLEST_GAIN


def verdict_words(verdict: str, p: float, tests: int) -> str:
    """Format a verdict with its p-value; every output uses this wording.

    >>> verdict_words("a gain", 0.0312, 3), verdict_words("within noise", 0.4, 1)
    ('a gain, p = .031 after correction for 3 comparisons', 'within noise, p = .400')
    """
    text = p_value(p)
    value = f"p {text[0]} {text[1:]}" if text.startswith("<") else f"p = {text}"
    return f"{verdict}, {value}" + (f" after correction for {tests} comparisons" if tests > 1 else "")


def explained(
    family: Mapping[Place, Judged],
    practice: str,
    of_practice: Mapping[Place, Judged],
    beyond: Mapping[Place, Judged],
) -> dict[Place, Judged]:
    """Mark a student's gains over its base that practice on single skills may explain.

    `practice` is a student trained on single skills. `of_practice` compares it with the base, and `beyond` compares the
    student of the gains with it.
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
    """The difference between two students (second minus first) under one grader, in one setting, at one k."""

    grader: str
    setting: str
    k: int
    first_value: float
    """The first student's mean over the shared combinations, using the best sample of each."""
    second_value: float
    difference: float
    low: float | None
    """None, like `high`, if the students share too few combinations for an interval."""
    high: float | None
    p: float
    p_corrected: float
    """The p-value after Holm's correction over the settings and k of the two students under one grader."""
    combinations: int
    """The number of combinations that both students have completed."""
    wins: int
    """The number of combinations on which the second student scores higher."""
    ties: int
    losses: int
    still_needed: int | None
    """The number of further combinations needed for 80% power at this difference; None if there is no estimate."""
    verdict: str
    tests: int
    """The number of comparisons in the correction."""
    explained_by: str | None = None
    """A student trained on single skills that also gains, if the second student is not found to be better."""

    @property
    def words(self) -> str:
        """Return the verdict with its p-value."""
        return verdict_words(self.verdict, self.p_corrected, self.tests)

    @property
    def found(self) -> float:
        """Return the difference if the verdict is a gain or a loss, otherwise 0."""
        return self.difference if self.verdict in ("a gain", "a loss") else 0.0


def explanations(second: str, rows: Iterable[Judged | PairRow]) -> list[str]:
    """Return a sentence for each student trained on single skills that may explain gains of the second student."""
    places: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.explained_by:
            places[row.explained_by].append(f"{row.setting}, k = {row.k}")
    return [
        f"{practice}, trained on single skills with as many texts and steps, also gains, and {second} is not found to "
        f"be better, so practice on single skills may explain the gain ({'; '.join(where)})."
        for practice, where in places.items()
    ]


def compare_cells(
    run: str,
    first: str,
    second: str,
    cells: Mapping[CellKey, Cell],
    *,
    metric: str = FULL_MARKS,
    practice: str | None = None,
) -> list[PairRow]:
    """Return one row for each grader, setting and k in which two students of a run share complete combinations.

    If the first student is the second's base, `practice` is the student trained on single skills with as many texts and
    steps as the second.
    """
    rows: dict[CellKey, PairRow] = {}
    for grader in dict.fromkeys(key.grader for key in cells if (key.run, key.student) == (run, second)):

        def family(one: str, other: str, grader: str = grader) -> dict[Place, Judged]:
            return family_of([("", 0, paired_values(run, (one, other), grader, cells, metric))])

        own = family(first, second)
        if practice is not None:
            own = explained(own, practice, family(first, practice), family(practice, second))
        values = paired_values(run, (first, second), grader, cells, metric)
        for (setting, k), judged in own.items():
            gained, pairs = judged.gain, values[setting, k].values()
            n, wins, losses = len(pairs), sum(d > 0 for d in gained.values), sum(d < 0 for d in gained.values)
            needed = gained.needed()
            rows[CellKey(run, second, grader, setting, k)] = PairRow(
                grader=grader,
                setting=setting,
                k=k,
                first_value=sum(before for before, _ in pairs) / n,
                second_value=sum(after for _, after in pairs) / n,
                difference=gained.mean,
                low=gained.low,
                high=gained.high,
                p=gained.p,
                p_corrected=judged.p_corrected,
                combinations=n,
                wins=wins,
                ties=n - wins - losses,
                losses=losses,
                still_needed=None if needed is None else max(0, needed - n),
                verdict=judged.verdict,
                tests=judged.tests,
                explained_by=judged.explained_by,
            )
    return [rows[key] for key in cells if key in rows]


def paired_values(
    run: str, students: tuple[str, str], grader: str, cells: Mapping[CellKey, Cell], metric: str = FULL_MARKS
) -> Values:
    """Return the scores of two students of a run by setting, k and combination, using the best sample of each."""
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
    """Judge all differences between two students under one grader, pooled over partitions and seeds.

    Each repeat consists of a partition, a seed and the values of the two students. A training run that several runs
    evaluate counts once. Holm's correction counts only differences that can reach p = .05. Whether a difference can
    reach it depends on how many combinations differ, not on which student they favor. Omitting the other differences
    therefore keeps the significance level.
    """
    differences: dict[Place, dict[str, dict[int, dict[str, list[float]]]]] = {}
    for partition, seed, values in repeats:
        for place, by_id in values.items():
            training = differences.setdefault(place, {}).setdefault(partition, {}).setdefault(seed, {})
            for combination, (before, after) in by_id.items():
                training.setdefault(combination, []).append(after - before)
    gains = {
        place: gain(
            {
                partition: {seed: {c: fmean(own) for c, own in by_id.items()} for seed, by_id in seeds.items()}
                for partition, seeds in partitions.items()
            }
        )
        for place, partitions in differences.items()
    }
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


Role = Literal["explains", "hides skill"]
"""Format either explains the difference, or leaves too few texts with a valid format to compare the students' skill."""


@dataclass(frozen=True, slots=True)
class ValidTexts:
    """Counts of one student's texts, especially of those with a valid format and a decision on full marks."""

    valid: int
    """The number of texts with a valid format and a decision on full marks."""
    combinations: int
    """The number of combinations with at least one such text."""
    written: int
    """The number of texts whose format is checked, valid or not."""

    @property
    def are_too_few(self) -> bool:
        """Whether the valid texts cover too few combinations to compare full marks."""
        return self.combinations < FEWEST_COMBINATIONS


@dataclass(frozen=True, slots=True)
class FormatEffect:
    """The effect of the texts' format on the difference between two students."""

    first: ValidTexts
    second: ValidTexts
    among_valid: ShareDifference | None
    """The difference in full marks (pass@1, second minus first) among texts with a valid format; None if one student
    has too few such texts.
    """
    role: Role | None
    """None if no difference in full marks is found, if the formats do not differ, or if skill also differs."""

    def words(self, first: str, second: str) -> str | None:
        """Describe the role of format as a clause with the names of both students; None if format has no role."""
        if self.role == "explains" and self.among_valid is not None:
            difference = signed_with_interval(*self.among_valid)
            return f"format explains it: among texts with a valid format the difference is {difference}, within noise"
        if self.role == "hides skill":
            few = [(name, t) for name, t in ((first, self.first), (second, self.second)) if t.are_too_few]
            each = [f"{name} has {plural(t.valid, 'text')} with a valid format, of {t.written}" for name, t in few]
            return f"skill cannot be compared: {' and '.join(each)}"
        return None


def format_effect(
    students: tuple[str, str],
    runs: Sequence[str],
    where: tuple[str, str, int],
    cells: Mapping[CellKey, Cell],
    found: float,
) -> FormatEffect:
    """Compute the effect of format on a difference in full marks between two students of the given runs.

    `where` is a grader, a setting and a k, and `found` is 0 unless a difference is found. Format explains the
    difference if the share of texts with a valid format differs in the same direction beyond noise, while full
    marks among texts with a valid format differ only within noise.
    """
    valid, formats = list[Paired](), list[Paired]()
    for run in runs:
        pair = [cells[key] for student in students if (key := CellKey(run, student, *where)) in cells]
        if len(pair) < 2:
            continue
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


@dataclass(frozen=True, slots=True)
class Change:
    """The difference between a student and its base, or another student, under one grader, in one setting, at one k."""

    run: str
    student: str
    base: str
    trained: tuple[int, ...]
    """The numbers of skills that a tuned student was trained on."""
    row: PairRow
    format: FormatEffect | None = None
    """The effect of the texts' format on the difference; None if unknown."""

    @property
    def format_words(self) -> str | None:
        """Describe the role of format as a clause; None if format has no role."""
        return self.format.words(self.base, self.student) if self.format else None


def before_and_after(students: Sequence[ComparableStudent], cells: Mapping[CellKey, Cell]) -> list[Change]:
    """Compare every tuned student with its base wherever both have a cell, in the order of the cells."""
    changes: dict[CellKey, Change] = {}
    for family in families(students).values():
        base = base_of(family)
        for tuned in family:
            if base is None or tuned.lineage is None:
                continue
            both, practice = (base.student, tuned.student), practice_of(tuned, family)
            for row in compare_cells(tuned.run, *both, cells, practice=practice.student if practice else None):
                where = row.grader, row.setting, row.k
                effect = format_effect(both, (tuned.run,), where, cells, row.found)
                change = Change(tuned.run, tuned.student, base.student, tuned.k, row, effect)
                changes[CellKey(tuned.run, tuned.student, *where)] = change
    return [changes[key] for key in cells if key in changes]


@dataclass(frozen=True, slots=True)
class BestText:
    """The best text of a student for one combination."""

    student: str
    generation: int
    text: str
    value: float
    points: dict[str, bool | None]
    """The point for each criterion; None if undecided."""
    evidence: dict[str, str] = field(default_factory=dict)
    """For each skill that code found, the words that show it."""
    reasons: dict[str, str] = field(default_factory=dict)
    """For each criterion whose point code denied, the reason."""
    cut: bool | None = None
    """Whether the reply was truncated at the token limit; None if unknown."""


@dataclass(frozen=True, slots=True)
class DifferingTexts:
    """A combination on which two students differ, with the best text of each."""

    grader: str
    setting: str
    k: int
    combination: str
    skills: tuple[str, ...]
    topic: str
    first: BestText
    second: BestText


@dataclass(frozen=True, slots=True)
class StudentComparison:
    """The comparison of two students of a run; differences are second minus first."""

    run: str
    first: str
    second: str
    metric: str
    rows: tuple[PairRow, ...]
    texts: tuple[DifferingTexts, ...]
    """The combinations on which the students differ, with the largest differences first."""
    notes: tuple[str, ...]
    """Other differences between the students, such as their prompts and training data."""

    @property
    def differing(self) -> int:
        """Count the combinations on which the students differ; each counts once in every row that contains it."""
        return sum(row.wins + row.losses for row in self.rows)

    def __str__(self) -> str:
        return comparison_table(self, wide=True)


_NOTE: Final = (
    "Difference: {second} minus {first} in {metric}, best of the generations, on the combinations that both "
    "have completed, with its 95% interval. p: permutation test within combinations, with Holm's correction over the "
    "rows of a grader in which 6 combinations or more differ. Verdict: a gain or a loss if the corrected p is below "
    ".05 and the interval excludes 0. Wins, ties and losses of {second} count combinations."
)

STILL_NEEDED: Final = "Still needed: further combinations for 80% power at this difference."


def comparison_table(comparison: StudentComparison, *, wide: bool = False) -> str:
    """Format a Markdown table with a row for each grader, setting and k; `wide` adds the less important columns."""
    rows = [
        {
            "grader": row.grader,
            "setting": row.setting,
            "k": str(row.k),
            comparison.first: share(row.first_value),
            comparison.second: share(row.second_value),
            "difference": signed_with_interval(row.difference, row.low, row.high),
            "p, corrected": p_value(row.p_corrected),
            "verdict": row.verdict if wide else row.verdict.removesuffix(" combinations"),
            "wins": str(row.wins),
            "ties": str(row.ties),
            "losses": str(row.losses),
            "combinations": str(row.combinations),
            "still needed": "–" if row.still_needed is None else whole(row.still_needed),
        }
        for row in comparison.rows
    ]
    hidden = set() if wide else {"combinations", "ties", "still needed", *_constant_names(comparison)}
    header = [name for name in rows[0] if name not in hidden]
    right = frozenset(i for i, name in enumerate(header) if name not in ("grader", "setting", "difference", "verdict"))
    return markdown_table(header, [[row[name] for name in header] for row in rows], right=right)


def _constant_names(comparison: StudentComparison) -> dict[str, str]:
    """Return the grader and the setting, each only if it is the same in all rows."""
    values = {name: {getattr(row, name) for row in comparison.rows} for name in ("grader", "setting")}
    return {name: next(iter(known)) for name, known in values.items() if len(known) == 1}


def comparison_note(comparison: StudentComparison) -> str:
    """Return an explanation of the table, followed by other differences between the students."""
    label = METRICS[comparison.metric].label
    note = _NOTE.format(first=comparison.first, second=comparison.second, metric=label)
    return "\n".join([note, *comparison.notes])


def comparison_title(comparison: StudentComparison) -> str:
    """Return a title with the two students, the metric, and the grader and setting that all rows share."""
    label = METRICS[comparison.metric].label
    shared = [f"{name} {value}" for name, value in _constant_names(comparison).items()]
    title = f"{label[0].upper()}{label[1:]}: {comparison.second} against {comparison.first}"
    return title + (f" ({', '.join(shared)})" if shared else "")


def compare_students(
    run: Run | str,
    first: str,
    second: str,
    *,
    metric: str = FULL_MARKS,
    rules: str | None = None,
    texts: int | None = None,
) -> StudentComparison:
    """Compare two students of a run; raise an error if either is unknown or they share no complete combination.

    `texts` limits the number of combinations whose texts are included; the texts of other combinations are not read.
    """
    run = opened(run)
    if metric not in METRICS:
        raise UserError(
            f"There is no metric {metric!r}.",
            hint=name_hint(metric, METRICS, otherwise=f"Choose {', '.join(METRICS)}."),
        )
    if run.has_outcomes:
        raise UserError(
            f"The graders of the run {run.name} give outcomes instead of points.",
            hint=f"Run `skillmix scores {run.name}` to compare its students.",
        )
    cells = scored_cells(run, rules=rules)
    students = list(dict.fromkeys(key.student for key in cells))
    known = f"Students of {run.name}: {', '.join(students)}." if students else f"{run.name} has no graded texts yet."
    for name in (first, second):
        if name not in students:
            raise UserError(
                f"The run {run.name} has no graded student {name!r}.", hint=name_hint(name, students, otherwise=known)
            )
    if first == second:
        raise UserError(f"{first} cannot be compared with itself.", hint=f"Name two different students. {known}")
    practice = practice_between(comparable_in(run, cells), first, second)
    rows = compare_cells(run.name, first, second, cells, metric=metric, practice=practice)
    if not rows:
        raise UserError(
            f"There is no combination that both {first} and {second} have completed under the same grader.",
            hint=f"Run `skillmix status {run.name}` to count the missing calls.",
        )
    shared = [
        (cells[CellKey(run.name, first, *where)], cells[CellKey(run.name, second, *where)])
        for where in ((row.grader, row.setting, row.k) for row in rows)
    ]
    # Add other possible explanations: practice, other settings, and combinations that a student was trained on.
    notes = explanations(second, rows)
    if not run.is_imported and has_settings(run, first) and has_settings(run, second):
        both = [settings_for(run.known_experiment, name) for name in (first, second)]
        values = {name: [getattr(one, name) for one in both] for name in _SETTINGS}
        values["prompts"] = [one.prompts or run.experiment.prompts for one in both]
        differ = [f"{name} ({one} and {other})" for name, (one, other) in values.items() if one != other]
        notes += [f"{first} and {second} also differ in {', '.join(differ)}."] if differ else []
    lineages = lineages_in(run, cells)
    for side, student in enumerate((first, second)):
        ids = {c.id for pair in shared for c in pair[side].combinations}
        trained = ids & lineages[student].combinations if student in lineages else set()
        if trained:
            notes.append(f"{student} was trained on {len(trained)} of the {len(ids)} combinations.")
    differing = tuple(_differing_texts(run, shared, metric, rules, texts))
    return StudentComparison(run.name, first, second, metric, tuple(rows), differing, tuple(notes))


_SETTINGS: Final = ("prompts", "temperature", "max_tokens", "top_p", "system", "extra")


def _differing_texts(
    run: Run, shared: Iterable[tuple[Cell, Cell]], metric: str, rules: str | None, most: int | None
) -> Iterator[DifferingTexts]:
    """Yield the combinations on which two cells differ, with both best texts, starting with the largest difference."""
    differing = []
    for first, second in shared:
        before, after = first.best(metric), second.best(metric)
        for own in second.combinations:
            if own.id in before and own.id in after and before[own.id] != after[own.id]:
                places = [(cell.key.student, cell.key.grader, own.id) for cell in (first, second)]
                values = before[own.id], after[own.id]
                differing.append((second.key, own, list(zip(places, values, strict=True))))
    chosen = sorted(differing, key=lambda one: -abs(one[2][1][1] - one[2][0][1]))[:most]
    # For each student, the first text whose value equals that of its best text.
    wanted = {place for _, _, sides in chosen for place in sides}
    best: dict[tuple[tuple[str, str, str], float], BestText] = {}
    own_rules = run.rules(rules)
    with run.read() as journal:
        found = texts_with_ballots(run, journal, combinations={own.id for _, own, _ in chosen}) if chosen else ()
        for ballot in (ballot for text in found for ballot in text.ballots):
            text, value = ballot.text, text_score(ballot.points(own_rules, run.phrases), metric)
            place = (text.student, ballot.grader, text.combination.id)
            if value is None or (place, value) not in wanted or (place, value) in best:
                continue
            best[place, value] = BestText(
                student=text.student,
                generation=text.generation,
                text=text.answer.text,
                value=value,
                cut=text.is_cut,
                **grades_by_name(ballot, run, own_rules, verdict_on(run, ballot)),
            )
    for key, own, (one, other) in chosen:
        where = (key.grader, key.setting, key.k)
        yield DifferingTexts(*where, own.id, own.skills, own.topic, best[one], best[other])
