"""The main result of a report: one sentence with its uncertainty, the evidence behind it, and three numbers.

The sentence comes from the strongest supported finding. Without one, it comes from the clearest difference between two
students, or it says that no difference was found. A report of one student says how often it earns full marks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from skillmix.grading.points import FULL_MARKS
from skillmix.render.numbers import in_percent, p_value, points_interval, signed_points, whole
from skillmix.render.wording import plural
from skillmix.report.finding_sentences import limits
from skillmix.report.records import ComparedPair, Report, RunFacts, StudentKey, by_key
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.claims import Claim
from skillmix.scores.findings import LEVEL, SMALLEST_GAIN, Compared, Finding

CLAIM_TITLES: Final[dict[Claim, str]] = {
    "composition": "Training on texts that combine skills teaches more than further practice of single skills",
    "trained k": "Training improves texts with trained skills, with as many skills as in training",
    "held-out": "Training improves texts with skills that were held out of training",
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
    students: tuple[StudentKey, ...] = ()
    """The students of the sentence, the better one first."""
    grader: str | None = None
    setting: str | None = None
    k: int | None = None

    @property
    def sentence(self) -> str:
        """The whole sentence."""
        return f"{self.headline}: {self.detail}" if self.detail else self.headline


def main_result(report: Report) -> MainResult:
    """The strongest supported finding, else the main comparison of two students, else the scores of one student."""
    finding = _strongest(report.findings)
    if finding is not None:
        return _of_finding(report, finding)
    if report.comparisons:
        return _of_pair(report, _main_pair(report))
    return _of_one_student(report)


def _strongest(findings: Sequence[Finding]) -> Finding | None:
    """The supported finding whose gain is the largest by the lower end of its interval; the control comes last."""
    supported = [f for f in findings if f.verdict == "supported"]
    return max(supported, key=lambda f: (f.claim != "control", _shown(f).gain.low or 0.0), default=None)


def _shown(finding: Finding) -> Compared:
    """The k that the sentence is about; for the control, the k with the largest possible gain."""
    if finding.claim == "control":
        return max(finding.compared, key=lambda c: c.gain.high or 0.0)
    return max((c for c in finding.compared if c.is_gain), key=lambda c: c.gain.low or 0.0)


def _of_finding(report: Report, finding: Finding) -> MainResult:
    shown = _shown(finding)
    gain = shown.gain
    difference = f"{_points(gain.mean, signed=False)} ({_interval(gain.low, gain.high)})"
    rates = _rates(report, finding, shown)
    if finding.claim == "control":
        words = (
            f"{finding.second} differs from {finding.first} by {_points(gain.mean, signed=True)} at most "
            f"({_interval(gain.low, gain.high)}), less than {in_percent(SMALLEST_GAIN)} points at every k"
        )
    elif rates is None:
        words = f"{_skills(shown.k)}, {finding.second} beats {finding.first} by {difference}"
    else:
        first, second = rates
        words = (
            f"{_skills(shown.k)}, {finding.second} earns full marks on {in_percent(second)} % of combinations and "
            f"{finding.first} on {in_percent(first)} %, a difference of {difference}"
        )
    run = finding.runs[0]
    scope = f"{plural(gain.seeds, 'training')}, " if gain.seeds > 1 else "One training run, "
    tests = sum(len(f.compared) for f in report.findings if _family(f) == _family(finding))
    found = [c.k for c in finding.compared if c.is_gain]
    return MainResult(
        headline=CLAIM_TITLES[finding.claim],
        detail=f"{words}.",
        evidence=f"{scope}{_scope(finding.setting, finding.grader, gain.combinations)}; "
        f"{_corrected(shown.p_corrected, tests)}.{_found_at(found, [c.k for c in finding.compared])}"
        + "".join(f" {limit}" for limit in limits(finding)),
        numbers=(
            ResultNumber(
                _points(gain.mean, signed=True),
                _interval(gain.low, gain.high, signed=True),
                f"{finding.second} minus {finding.first} in full marks, k = {shown.k}",
            ),
            _gains(finding, shown),
            _texts(report),
        ),
        students=((run, finding.second), (run, finding.first)),
        grader=finding.grader,
        setting=finding.setting,
        k=shown.k,
    )


def _family(finding: Finding) -> tuple[str, str, str]:
    """The findings whose p-values are corrected together."""
    return finding.claim, finding.base, finding.grader


def _rates(report: Report, finding: Finding, shown: Compared) -> tuple[float, float] | None:
    """Full marks of both students on the combinations that both have; None for several trainings."""
    if shown.gain.unit != "combinations":
        return None
    cells, run = by_key(report.cells), finding.runs[0]
    keys = [CellKey(run, name, finding.grader, finding.setting, shown.k) for name in (finding.first, finding.second)]
    first, second = (cells[key].best(FULL_MARKS) for key in keys)
    shared = first.keys() & second.keys()
    return _mean([first[c] for c in shared]), _mean([second[c] for c in shared])


def _gains(finding: Finding, shown: Compared) -> ResultNumber:
    """How many combinations, seeds or partitions agree with the direction."""
    values = shown.gain.values
    better, worse = sum(v > 0 for v in values), sum(v < 0 for v in values)
    return _wins((finding.second, finding.first), (better, worse, len(values)), shown.gain.unit)


def _wins(students: tuple[str, str], counts: tuple[int, int, int], unit: str) -> ResultNumber:
    """The units on which the first of the students does better, of all units."""
    better, worse, of_all = counts
    rest = of_all - better - worse
    label = f"{unit} on which {students[0]} does better; {students[1]} does better on {worse}"
    return ResultNumber(f"{better} of {of_all}", "", f"{label}, neither on {rest}" if rest else label)


def _texts(report: Report) -> ResultNumber:
    graded = sum(run.graded for run in report.runs)
    combinations = {c.id for cell in report.cells for c in cell.combinations}
    graders = " and ".join(report.graders) or "no grader"
    label = f"texts on {whole(len(combinations))} combinations of skills and a topic, graded by {graders}"
    return ResultNumber(whole(graded), "", label)


def _main_pair(report: Report) -> ComparedPair:
    """The clearest difference in the main cell of the report, else anywhere, else the first pair of students.

    The main cell has the first grader and the setting `all`, or the first setting.
    """
    setting = main_setting(report)
    found = [c for c in report.comparisons if c.row.p_corrected < LEVEL and _distance(c) > 0]
    main = [c for c in found if (c.row.grader, c.row.setting) == (report.graders[0], setting)]
    suggested = [c for c in report.comparisons if _distance(c) > 0]
    if main or found or suggested:
        return max(main or found or suggested, key=_distance)
    chosen = [(run, first, second) for (run, first), (_, second) in report.pairs_to_compare()]
    of_pair = [c for c in report.comparisons if (c.run, c.first, c.second) in chosen] or report.comparisons
    rows = [c for c in of_pair if (c.row.grader, c.row.setting) == (report.graders[0], setting)] or of_pair
    return next((c for c in rows if c.row.k >= 2), rows[0])


def main_setting(report: Report) -> str | None:
    """The setting `all`, or the first one; None for a report without cells."""
    if not report.settings:
        return None
    return "all" if "all" in report.settings else report.settings[0]


def _distance(pair: ComparedPair) -> float:
    """How far the interval of a difference is from 0; negative if it includes 0 or does not exist."""
    low, high = pair.row.low, pair.row.high
    return -1.0 if low is None or high is None else max(low, -high)


def _of_pair(report: Report, pair: ComparedPair) -> MainResult:
    row = pair.row
    is_found = row.p_corrected < LEVEL and _distance(pair) > 0
    is_second_better = row.difference >= 0
    names = (pair.second, pair.first) if is_second_better else (pair.first, pair.second)
    rates = (row.second_value, row.first_value) if is_second_better else (row.first_value, row.second_value)
    low, high = (row.low, row.high) if is_second_better else (_minus(row.high), _minus(row.low))
    wins, losses = (row.wins, row.losses) if is_second_better else (row.losses, row.wins)
    difference = f"a difference of {_points(abs(row.difference), signed=False)} ({_interval(low, high)})"
    better, worse = (f"{in_percent(rate)} %" for rate in rates)
    rates_in_words = f"{_skills(row.k)}, {better} of combinations against {worse}"
    same = [c for c in report.comparisons if c.run == pair.run]
    of_cell = [c for c in same if _pair_and_cell(c) == _pair_and_cell(pair)]
    run = f"Run {pair.run}, " if len(report.runs) > 1 else ""
    scope = _scope(row.setting, row.grader, row.combinations, _facts(report, pair.run))
    found = [c.row.k for c in of_cell if _is_same_sign(c, pair)]
    more = _found_at(found, [c.row.k for c in of_cell]) if is_found else _still_needed(row.still_needed)
    return MainResult(
        headline=_verdict(pair, names),
        detail=f"{rates_in_words}, {difference}.",
        evidence=_capital(f"{run}{scope}; {_corrected(row.p_corrected, len(same))}.{more}"),
        numbers=(
            ResultNumber(
                _points(abs(row.difference), signed=True),
                _interval(low, high, signed=True),
                f"{names[0]} minus {names[1]} in full marks, k = {row.k}",
            ),
            _wins(names, (wins, losses, row.combinations), "combinations"),
            _texts(report),
        ),
        students=((pair.run, names[0]), (pair.run, names[1])),
        grader=row.grader,
        setting=row.setting,
        k=row.k,
    )


def _verdict(pair: ComparedPair, names: tuple[str, str]) -> str:
    """Whether the first student is better, may be better, or is not found to be better than the second."""
    if pair.row.low is None:
        return f"Too few combinations to tell {names[0]} and {names[1]} apart"
    if _distance(pair) <= 0:
        return f"No difference was found between {names[0]} and {names[1]}"
    if pair.row.p_corrected < LEVEL:
        return f"{names[0]} earns full marks more often than {names[1]}"
    return f"{names[0]} may be better than {names[1]}, but chance could explain the difference"


def _pair_and_cell(pair: ComparedPair) -> tuple[str, ...]:
    return pair.run, pair.first, pair.second, pair.row.grader, pair.row.setting


def _is_same_sign(one: ComparedPair, other: ComparedPair) -> bool:
    """Whether the difference of one cell is found too, in the direction of the other."""
    is_found = one.row.p_corrected < LEVEL and _distance(one) > 0
    return is_found and (one.row.difference > 0) == (other.row.difference > 0)


def _still_needed(combinations: int | None) -> str:
    if not combinations:
        return ""
    return f" About {whole(combinations)} more combinations at this k would show a difference of this size."


def _of_one_student(report: Report) -> MainResult:
    cells = _cells_of_first_student(report)
    if not cells:
        return MainResult("No text is graded yet", "", "Continue the run, then report again.", (_texts(report),))
    first, last = cells[0], cells[-1]
    key = first.key
    facts = _facts(report, key.run)
    score = first.scores[FULL_MARKS]
    headline = (
        f"{key.student} earns full marks on {_percent(first)} of combinations with {plural(key.k, 'skill')} in one text"
    )
    parts = [f"{_percent(c)} with {c.key.k} ({_ends(c) or 'too few'})" for c in cells[1:]]
    return MainResult(
        headline=headline if first is last else f"{headline}, and on {_percent(last)} with {last.key.k}",
        detail=", ".join([f"{_percent(first)} with {key.k} ({_interval(score.low, score.high)})", *parts]) + ".",
        evidence=_capital(
            f"{_scope(key.setting, key.grader, score.complete, facts)}{' at each k' * (len(cells) > 1)}."
        ),
        numbers=(_score_number(first), _score_number(last) if last is not first else _one_try(first), _texts(report)),
        students=((key.run, key.student),),
        grader=key.grader,
        setting=key.setting,
        k=key.k,
    )


def _cells_of_first_student(report: Report) -> list[Cell]:
    """The scored cells of the first student under the first grader, in the main setting if it has that one."""
    for student in report.students:
        for setting in (main_setting(report), *report.settings):
            cells = report.cells_of(student, grader=report.graders[0], setting=setting)
            scored = [c for c in cells if c.scores[FULL_MARKS].value is not None]
            if scored:
                return sorted(scored, key=lambda c: c.key.k)
    return []


def _percent(cell: Cell) -> str:
    return f"{in_percent(cell.scores[FULL_MARKS].value or 0.0)} %"


def _ends(cell: Cell) -> str:
    return points_interval(cell.scores[FULL_MARKS].low, cell.scores[FULL_MARKS].high)


def _score_number(cell: Cell) -> ResultNumber:
    score = cell.scores[FULL_MARKS]
    label = f"of combinations have a text with full marks, k = {cell.key.k}"
    return ResultNumber(_percent(cell), _interval(score.low, score.high), label)


def _one_try(cell: Cell) -> ResultNumber:
    score = cell.scores[FULL_MARKS]
    label = f"of single texts have full marks, k = {cell.key.k}"
    return ResultNumber(
        f"{in_percent(score.one_try or 0.0)} %", _interval(score.one_try_low, score.one_try_high), label
    )


def _facts(report: Report, run: str) -> RunFacts | None:
    return next((facts for facts in report.runs if facts.name == run), None)


def _scope(setting: str, grader: str, combinations: int, facts: RunFacts | None = None) -> str:
    """The cell that a sentence is about."""
    best = f"best of {facts.generations} texts on " if facts and facts.generations > 1 else ""
    return f"setting {setting}, grader {grader}, {best}{plural(combinations, 'combination')}"


def _corrected(p: float, tests: int) -> str:
    text = p_value(p)
    value = f"p {text[0]} {text[1:]}" if text.startswith("<") else f"p = {text}"
    return f"{value} after correction for {tests} comparisons" if tests > 1 else value


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


def _interval(low: float | None, high: float | None, *, signed: bool = False) -> str:
    ends = points_interval(low, high, is_signed=signed)
    return f"95 % interval {ends}" if ends else "too few combinations for an interval"


def _minus(value: float | None) -> float | None:
    return None if value is None else -value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
