"""The comparisons that an experiment plans before any score is seen, judged in their order.

They form one family: each is tested at .05, and one is found only if all before it are found (a fixed sequence), so its
p-value is the largest up to it. The score of a combination is the share of its texts with full marks, which is one try.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev, variance

from skillmix.experiment.steps import Contrast, ReportStep
from skillmix.grading.points import FULL_MARKS, text_score
from skillmix.prompts.rubric import rubric_of
from skillmix.render import in_percent, one_line, plural, signed_with_interval
from skillmix.runs.run import Run
from skillmix.runs.texts import texts_with_ballots
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.compare import Cells, ComparableStudent, Judged
from skillmix.scores.findings import apart
from skillmix.scores.statistics.differences import Gain, gain
from skillmix.scores.statistics.intervals import CONFIDENCE, constant_interval, t_quantile, two_sided_p
from skillmix.scores.wording import MainResult, ResultNumber, graded_texts, interval_words

_Units = dict[str, dict[int, tuple[CellKey, dict[str, float]]]]
"""By partition and seed, the cell of a student and the score of each combination."""


@dataclass(frozen=True, slots=True)
class JudgedContrast:
    """A planned comparison with its scores, its difference and its verdict."""

    contrast: Contrast
    grader: str
    value: float
    """The mean over partitions of the share of texts with full marks."""
    against: float
    judged: Judged
    by_partition: tuple[tuple[str, float, float], ...]
    """The partitions with the two scores in each."""
    keys: tuple[CellKey, CellKey]
    """The two cells in the first partition."""
    example: tuple[str, ...] = ()
    """Lines with a text of each student on one combination; only the first comparison has them, if it is supported."""

    @property
    def title(self) -> str:
        """The comparison in words."""
        plan = self.contrast
        sides = [(plan.student, plan.setting, plan.k), plan.other]
        shown = [0] + [i for i in (1, 2) if sides[0][i] != sides[1][i]]
        names = [" ".join(f"k = {side[i]}" if i == 2 else str(side[i]) for i in shown) for side in sides]
        rest = [f"k = {plan.k}"] if 2 not in shown else []
        rest = [*([plan.setting] if 1 not in shown else []), *rest]
        return f"{names[0]} − {names[1]}" + (f", {', '.join(rest)}" if rest else "")

    @property
    def verdict(self) -> str:
        """Supported: a gain; not supported: the interval excludes the smallest gain worth claiming."""
        if self.judged.is_gain:
            return "supported"
        return "not supported" if self.judged.is_loss or self.judged.excludes_gain else "too little data"

    @property
    def words(self) -> str:
        """The verdict with its difference, interval and p-value."""
        found = self.judged.gain
        return f"{signed_with_interval(found.mean, found.low, found.high)}, {self.judged.words}"


def judged_contrasts(runs: Sequence[Run], students: Sequence[ComparableStudent], cells: Cells) -> list[JudgedContrast]:
    """Judge each comparison that report steps of some runs plan; a supported first one gets an example."""
    steps = (step for run in runs for step in run.experiment.steps if isinstance(step, ReportStep))
    contrasts = list({str(contrast): contrast for step in steps for contrast in step.contrasts}.values())
    found = judge_planned(contrasts, students, cells)
    if found and found[0].verdict == "supported":
        found[0] = replace(found[0], example=_example(found[0].keys, runs, cells))
    return found


def judge_planned(
    contrasts: Sequence[Contrast], students: Sequence[ComparableStudent], cells: Cells
) -> list[JudgedContrast]:
    """Judge each planned comparison that has data, under the first grader, in the order of the plan."""
    if not contrasts or not cells:
        return []
    students, own = apart(students, cells)
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


def _example(keys: tuple[CellKey, CellKey], runs: Sequence[Run], cells: Cells) -> tuple[str, ...]:
    """The first texts on the first combination where that of the first student alone has full marks; missed points."""
    tries = [{c.id: p[0] for c, p in zip(cells[key].combinations, cells[key].points, strict=True) if p} for key in keys]
    for drawn in cells[keys[0]].combinations:
        points = [own.get(drawn.id) for own in tries]
        if [p and text_score(p, FULL_MARKS) for p in points] == [1.0, 0.0]:
            break
    else:
        return ()
    about = f"{' and '.join(drawn.skills)}, on {drawn.topic}"
    lines = [f"The first combination where only {keys[0].student} has full marks on the first try: {about}."]
    for key, earned in zip(keys, points, strict=True):
        run = next(run for run in runs if run.name == key.run)
        with run.read() as journal:
            texts = [t.text for t in texts_with_ballots(run, journal, combinations=[drawn.id])]
        text = min((t for t in texts if t.student == key.student), key=lambda t: t.generation)
        criteria = rubric_of(drawn.skills, drawn.topic, phrases=run.phrases).criteria
        missed = ", ".join(c.name for c, point in zip(criteria, earned or (), strict=True) if point is False)
        lines.append(
            f"{key.student}: “{one_line(text.answer.text)}” ({f'misses {missed}' if missed else 'full marks'})"
        )
    return tuple(lines)


def _units(side: tuple[str, str, int], students: Sequence[ComparableStudent], cells: Cells, grader: str) -> _Units:
    """The scores of a student, by the name that the file gives it, in one setting at one k."""
    name, setting, k = side
    units: _Units = {}
    for student in students:
        key = CellKey(student.run, student.student, grader, setting, k)
        if name in (student.family, student.student) and key in cells and (scores := one_try(cells[key])):
            units.setdefault(student.partition, {}).setdefault(student.seed, (key, scores))
    return units


def one_try(cell: Cell) -> dict[str, float]:
    """The share of texts with full marks for each combination all of whose texts are graded."""
    values = zip(cell.combinations, cell.values(FULL_MARKS), strict=True)
    return {c.id: fmean(v for v in tries if v is not None) for c, tries in values if tries and None not in tries}


def _mean(seeds: dict[int, tuple[CellKey, dict[str, float]]]) -> float:
    return fmean(fmean(scores.values()) for _, scores in seeds.values())


def _difference(first: _Units, second: _Units, partitions: Sequence[str], *, is_paired: bool) -> Gain:
    """The first minus the second: on shared combinations if there are any, else between the means of partitions."""
    if is_paired:
        nested = {
            p: {seed: _minus(scores, second[p][seed][1]) for seed, (_, scores) in first[p].items() if seed in second[p]}
            or {0: _minus(_pooled(first[p]), _pooled(second[p]))}
            for p in partitions
        }
        if all(by_id for seeds in nested.values() for by_id in seeds.values()):
            return gain(nested)
    if len(partitions) > 1:
        return _over_units([_mean(first[p]) - _mean(second[p]) for p in partitions])
    return _two_samples(*(list(_pooled(units[partitions[0]]).values()) for units in (first, second)))


def _minus(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    return {c: first[c] - second[c] for c in first if c in second}


def _pooled(seeds: dict[int, tuple[CellKey, dict[str, float]]]) -> dict[str, float]:
    every = [scores for _, scores in seeds.values()]
    return {c: fmean(scores[c] for scores in every) for c in every[0] if all(c in scores for scores in every)}


def _over_units(values: Sequence[float]) -> Gain:
    """The mean over partitions by Student's t; no interval for two."""
    n, mean = len(values), fmean(values)
    error = stdev(values) / sqrt(n)
    half = float(t_quantile((1 + CONFIDENCE) / 2, n - 1)) * error
    low, high = (max(-1.0, mean - half), min(1.0, mean + half)) if error > 0 else constant_interval(mean, n)
    p = two_sided_p(mean / error, n - 1) if error > 0 else 1.0
    is_known = n > 2
    return Gain(mean, low if is_known else None, high if is_known else None, p, n, n, n, "partitions", tuple(values))


def _two_samples(first: Sequence[float], second: Sequence[float]) -> Gain:
    """Welch's test between the combinations of two settings in one partition."""
    parts = [(variance(side) / len(side), len(side)) if len(side) > 1 else (0.0, 1) for side in (first, second)]
    mean, squared = fmean(first) - fmean(second), sum(part for part, _ in parts)
    n = min(len(first), len(second))
    if squared == 0 or n < 2:
        return Gain(mean, None, None, 1.0, n, 1, 1, "combinations", (mean,))
    degrees = squared**2 / sum(part**2 / (size - 1) for part, size in parts)
    half = float(t_quantile((1 + CONFIDENCE) / 2, degrees)) * sqrt(squared)
    p = two_sided_p(mean / sqrt(squared), degrees)
    return Gain(mean, max(-1.0, mean - half), min(1.0, mean + half), p, n, 1, 1, "combinations", (mean,))


def contrast_result(contrasts: Sequence[JudgedContrast], cells: Iterable[Cell]) -> MainResult:
    """The first screen of an experiment with planned comparisons: the first one, and the verdicts of the others."""
    first = contrasts[0]
    plan, found = first.contrast, first.judged.gain
    name, setting, k = plan.other
    against = name if plan.is_paired else " ".join([name, *([setting] if setting != plan.setting else [])])
    skills = plural(plan.k, "skill")
    claim = plan.claim or f"{plan.student} does better than {against}"
    headline = {
        "supported": f"Supported: {claim}",
        "not supported": f"Not supported: {claim}",
    }.get(first.verdict, f"Too little data to say whether {claim}")
    scores = f"{in_percent(first.value)}% of its texts and {against} in {in_percent(first.against)}%"
    detail = (
        f"with {skills} in one text, {plan.student} earns full marks in {scores}, a difference of "
        f"{in_percent(found.mean)} points ({interval_words(found.low, found.high)}); {first.judged.words}."
    )
    is_one = found.partitions == 1
    units = "one partition, so the verdict holds for it alone" if is_one else f"{found.partitions} partitions"
    condition = [f"Condition: {plan.condition}"] if plan.condition else []
    others = [f"{c.title}: {c.words}" for c in contrasts[1:]]
    evidence = [f"Setting {plan.setting}, grader {first.grader}, one try, {units}.", *condition]
    evidence += [f"Planned next, in this order: {'; '.join(others)}."] if others else []
    return MainResult(
        headline=headline,
        detail=detail,
        evidence=" ".join(evidence),
        numbers=(
            ResultNumber(
                f"{in_percent(first.value)} %", "", f"of the texts of {plan.student} have full marks, k = {plan.k}"
            ),
            ResultNumber(f"{in_percent(first.against)} %", "", f"of the texts of {against}, k = {k}"),
            graded_texts(cells),
        ),
        students=tuple(dict.fromkeys((key.run, key.student) for key in first.keys)),
        grader=first.grader,
        setting=first.keys[0].setting,
        k=plan.k,
        example=first.example,
    )
