"""The main result of some runs: one sentence with its uncertainty, the evidence behind it, and three numbers.

The sentence states the first supported claim, in the order of `CLAIMS`, or else the planned comparison: the richest
tuned student against its base or, without a lineage, the second student against the first. Neither is chosen by its
size. A report of one student says how often it earns full marks.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from skillmix.experiment.step_base import label_parts
from skillmix.grading.points import FULL_MARKS
from skillmix.render.numbers import in_percent, points_interval, signed_points, whole
from skillmix.render.wording import plural
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.claims import Claim
from skillmix.scores.findings import Finding
from skillmix.scores.verdicts.finding_sentences import limits, need
from skillmix.scores.verdicts.judged import SMALLEST_GAIN, Judged

CLAIM_TITLES: Final[dict[Claim, str]] = {
    "composition": "Training on texts that combine skills teaches more than further practice of single skills",
    "trained k": "Training improves texts with trained skills, with as many skills as in training",
    "held-out": "Training improves texts with skills that were never combined in training",
    "larger k": "Training on texts with few skills improves texts with more skills",
    "efficiency": "Texts with more skills teach more, with no more conversations",
    "control": "Training on single skills alone does not teach how to combine them",
}


@dataclass(frozen=True, slots=True)
class ResultNumber:
    """A number of the first screen."""

    value: str
    interval: str
    """Empty for a number without uncertainty."""
    label: str


@dataclass(frozen=True, slots=True)
class MainResult:
    """The first screen of a report."""

    headline: str
    """What was found."""
    detail: str
    """The numbers of the headline with their uncertainty."""
    evidence: str
    """Where the sentence holds, on how much data, and after which correction."""
    numbers: tuple[ResultNumber, ...]
    students: tuple[tuple[str, str], ...] = ()
    """Run and name of the students of the sentence, the second of the comparison first."""
    grader: str | None = None
    setting: str | None = None
    k: int | None = None
    example: tuple[str, ...] = ()
    """Lines with a text of each student on one combination."""

    @property
    def sentence(self) -> str:
        """The whole sentence."""
        return f"{self.headline}: {self.detail}" if self.detail else self.headline


def main_result(cells: Sequence[Cell], findings: Sequence[Finding]) -> MainResult:
    """The first supported claim, else the planned comparison, else the scores of one student."""
    supported = [f for f in findings if f.verdict == "supported" and f.claim != "planned"]
    planned = [f for f in findings if f.claim == "planned"]
    if supported:
        return _of_finding(cells, supported[0], CLAIM_TITLES[supported[0].claim])
    if planned:
        grader, setting = cells[0].key.grader, main_setting(cells)
        first = next((f for f in planned if (f.grader, f.setting) == (grader, setting)), planned[0])
        return _of_finding(cells, first, _title(first))
    return _of_one_student(cells)


def main_setting(cells: Sequence[Cell]) -> str | None:
    """The setting `all`, or the first one; None without cells."""
    settings = [cell.key.setting for cell in cells]
    return "all" if "all" in settings else next(iter(settings), None)


def _shown(finding: Finding) -> Judged:
    """The k that the sentence is about: the first in ascending order that decides."""
    if finding.claim == "control":
        return max(finding.compared, key=lambda c: c.gain.high or 0.0)
    found = [c for c in finding.compared if (c.found if finding.claim == "planned" else c.is_gain)]
    several = [c for c in finding.compared if c.k >= 2]
    return (found or several or finding.compared)[0]


def _title(finding: Finding) -> str:
    """What the planned comparison found."""
    shown, first, second = _shown(finding), finding.first, finding.second
    if shown.found:
        return f"{second} earns full marks {'more' if shown.found > 0 else 'less'} often than {first}"
    if shown.verdict == "within noise":
        return f"No clear difference was found between {second} and {first}"
    return f"{shown.verdict.capitalize()} to tell {second} and {first} apart"


def _of_finding(cells: Sequence[Cell], finding: Finding, headline: str) -> MainResult:
    shown, run = _shown(finding), finding.runs[0]
    gain = shown.gain
    interval = interval_words(gain.low, gain.high)
    difference = f"a difference of {_points(gain.mean, signed=gain.mean < 0)} ({interval})"
    keys = [CellKey(run, name, finding.grader, finding.setting, shown.k) for name in (finding.first, finding.second)]
    by_key = {cell.key: cell for cell in cells}
    if finding.claim == "control":
        words = (
            f"{finding.second} differs from {finding.first} by {_points(gain.mean, signed=True)} at most ({interval}), "
            f"less than {in_percent(SMALLEST_GAIN)} points at every k"
        )
    elif gain.unit != "combinations" or not all(key in by_key for key in keys):
        words = f"{_skills(shown.k)}, {finding.second} against {finding.first}: {difference}"
    else:
        first, second = (by_key[key].best(FULL_MARKS) for key in keys)
        shared = first.keys() & second.keys()
        rates = [sum(values[c] for c in shared) / len(shared) for values in (second, first)]
        words = (
            f"{_skills(shown.k)}, {finding.second} earns full marks on {in_percent(rates[0])} % of combinations and "
            f"{finding.first} on {in_percent(rates[1])} %, {difference}"
        )
    several = f"{plural(gain.seeds, 'training')}, " if gain.seeds > 1 else ""
    one = "one training run, " if finding.second_k and not several else ""
    named = f"run {run}, " if len({key.run for key in by_key}) > 1 and not several else ""
    found = [c.k for c in finding.compared if c.found and (c.found > 0) == (shown.found > 0)]
    more = _found_at(found, [c.k for c in finding.compared]) if shown.found else f" {_capital(need(finding))}."
    # The rows of a comparison over partitions name their partition.
    scope = _scope(
        next(
            cell
            for cell in cells
            if (cell.key.grader, label_parts(cell.key.setting)[:2], cell.key.k)
            == (finding.grader, label_parts(finding.setting)[:2], shown.k)
        ),
        gain.combinations,
    )
    return MainResult(
        headline=headline,
        detail=f"{words}; {shown.words}.",
        evidence=" ".join([_capital(f"{several}{one}{named}{scope}.{more}"), *limits(finding)]),
        numbers=(
            ResultNumber(
                _points(gain.mean, signed=True),
                interval_words(gain.low, gain.high, signed=True),
                f"{finding.second} minus {finding.first} in full marks, k = {shown.k}",
            ),
            _gains(finding, shown),
            graded_texts(cells),
        ),
        students=((run, finding.second), (run, finding.first)),
        grader=finding.grader,
        setting=finding.setting,
        k=shown.k,
    )


def _gains(finding: Finding, shown: Judged) -> ResultNumber:
    """How many combinations, seeds or partitions agree with the direction."""
    values, unit = shown.gain.values, shown.gain.unit
    better, worse = sum(v > 0 for v in values), sum(v < 0 for v in values)
    rest = len(values) - better - worse
    label = f"{unit} on which {finding.second} does better; {finding.first} does better on {worse}"
    return ResultNumber(f"{better} of {len(values)}", "", f"{label}, neither on {rest}" if rest else label)


def graded_texts(cells: Iterable[Cell], of: str = "skills and a topic") -> ResultNumber:
    """The graded texts that scores count, each once; those of data sets are in no cell."""
    texts: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    """By run and student, the graded generations of each combination."""
    graders: dict[str, None] = {}
    for cell in cells:
        own = texts[cell.key.run, cell.key.student]
        graders[cell.key.grader] = None
        for combination, points in zip(cell.combinations, cell.points, strict=True):
            graded = sum(point is not None for point in points)
            own[combination.id] = max(graded, own.get(combination.id, 0))
    combinations = len({combination for own in texts.values() for combination in own})
    label = f"texts on {whole(combinations)} combinations of {of}, graded by {' and '.join(graders) or 'no grader'}"
    return ResultNumber(whole(sum(sum(own.values()) for own in texts.values())), "", label)


def _of_one_student(cells: Sequence[Cell]) -> MainResult:
    own = _cells_of_first_student(cells)
    texts = graded_texts(cells)
    if not own:
        return MainResult("No text is graded yet", "", "Continue the run, then report again.", (texts,))
    first, last = own[0], own[-1]
    key, score = first.key, first.scores[FULL_MARKS]
    headline = (
        f"{key.student} earns full marks on {_percent(first)} of combinations with {plural(key.k, 'skill')} in one text"
    )
    parts = [f"{_percent(c)} with {c.key.k} ({_ends(c) or 'too few'})" for c in own[1:]]
    return MainResult(
        headline=headline if first is last else f"{headline}, and on {_percent(last)} with {last.key.k}",
        detail=", ".join([f"{_percent(first)} with {key.k} ({interval_words(score.low, score.high)})", *parts]) + ".",
        evidence=_capital(f"{_scope(first, score.complete)}{' at each k' * (len(own) > 1)}."),
        numbers=(_score_number(first), _score_number(last) if last is not first else _one_try(first), texts),
        students=((key.run, key.student),),
        grader=key.grader,
        setting=key.setting,
        k=key.k,
    )


def _cells_of_first_student(cells: Sequence[Cell]) -> list[Cell]:
    """The scored cells of the first student under the first grader, in the main setting if it has that one."""
    scored = [c for c in cells if c.scores[FULL_MARKS].value is not None and c.key.grader == cells[0].key.grader]
    for run, student in dict.fromkeys((c.key.run, c.key.student) for c in cells):
        for setting in (main_setting(cells), *dict.fromkeys(c.key.setting for c in cells)):
            own = [c for c in scored if (c.key.run, c.key.student, c.key.setting) == (run, student, setting)]
            if own:
                return sorted(own, key=lambda c: c.key.k)
    return []


def _percent(cell: Cell) -> str:
    return f"{in_percent(cell.scores[FULL_MARKS].value or 0.0)} %"


def _ends(cell: Cell) -> str:
    return points_interval(cell.scores[FULL_MARKS].low, cell.scores[FULL_MARKS].high)


def _score_number(cell: Cell) -> ResultNumber:
    score = cell.scores[FULL_MARKS]
    label = f"of combinations have a text with full marks, k = {cell.key.k}"
    return ResultNumber(_percent(cell), interval_words(score.low, score.high), label)


def _one_try(cell: Cell) -> ResultNumber:
    score = cell.scores[FULL_MARKS]
    label = f"of single texts have full marks, k = {cell.key.k}"
    return ResultNumber(
        f"{in_percent(score.one_try or 0.0)} %", interval_words(score.one_try_low, score.one_try_high), label
    )


def _scope(cell: Cell, combinations: int) -> str:
    """The cell that a sentence is about."""
    generations = max(map(len, cell.points), default=1)
    best = f"best of {generations} texts on " if generations > 1 else ""
    return f"setting {cell.key.setting}, grader {cell.key.grader}, {best}{plural(combinations, 'combination')}"


def _found_at(found: Sequence[int], tried: Sequence[int]) -> str:
    if not found or len(tried) < 2:
        return ""
    rest = [k for k in tried if k not in found]
    but = f", but not at k = {_listed(rest)}" if rest else ", which is every k tried"
    return f" A difference is found at k = {_listed(found)}{but}."


def _listed(ks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ks)))


def _skills(k: int) -> str:
    return f"with {plural(k, 'skill')} in one text"


def _points(value: float, *, signed: bool) -> str:
    text = signed_points(value) if signed else in_percent(value)
    return f"{text} point" if text.lstrip("+−") == "1" else f"{text} points"


def interval_words(low: float | None, high: float | None, *, signed: bool = False) -> str:
    """The interval of a difference in points."""
    ends = points_interval(low, high, is_signed=signed)
    return f"95 % interval {ends}" if ends else "too few combinations for an interval"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
