"""Results in sentences: each finding, the main result with its evidence, and warnings about format.

The main result states the first supported claim, in the order of `CLAIMS`, or else the planned comparison: the richest
tuned student against its base or, without a lineage, the second student against the first. Neither is chosen by its
size. A report of one student says how often it earns full marks.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from skillmix.experiment.step_base import label_parts
from skillmix.grading.points import FULL_MARKS
from skillmix.models.lineage import short_name
from skillmix.render import in_percent, plural, points_interval, share, signed_points, signed_with_interval, whole
from skillmix.scores.cells import WRITTEN, Cell, CellKey
from skillmix.scores.compare import SMALLEST_GAIN, Judged, explanations
from skillmix.scores.findings import Claim, Finding


def format_warnings(cells: Sequence[Cell]) -> list[str]:
    """A line for each student of whose replies more than half have no marker or no answer, or are cut."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for cell in cells:
        if cell.key.grader == cells[0].key.grader:
            own = counts.setdefault((cell.key.run, cell.key.student), Counter())
            statuses = [status for texts in cell.statuses for status in texts]
            cuts = [bool(cut) for texts in cell.cuts for cut in texts] or [False] * len(statuses)
            written = [(status, cut) for status, cut in zip(statuses, cuts, strict=True) if status in WRITTEN]
            own["written"] += len(written)
            own["missed"] += sum(status != "fine" or cut for status, cut in written)
            own["cut"] += sum(cut for _, cut in written)
    several = len({run for run, _ in counts}) > 1
    return [
        f"Format before skill: {f'{run}: ' if several else ''}{student} misses the format in "
        f"{whole(own['missed'])} of its {whole(own['written'])} replies (no marker, no answer, or cut by the token "
        f"limit, as {whole(own['cut'])} were), so its scores say little about skill. Try `prompts: worked`, a larger "
        "`max_tokens`, or the marker that it writes, in `answer`."
        for (run, student), own in counts.items()
        if 2 * own["missed"] > own["written"]
    ]


def finding_sentence(finding: Finding) -> str:
    """One or more sentences about a finding, with its numbers and what limits them."""
    best = max(finding.compared, key=lambda c: c.gain.mean)
    if finding.verdict == "not taught":
        sentence = (
            f"{finding.second} earns full marks on less than {share(SMALLEST_GAIN)} of the combinations that are like "
            f"its training texts, so its training taught too little to ask what lies beyond. {_no_gain(finding)}"
        )
    elif finding.verdict == "too little data":
        scope = _scope(best)
        scope = f" and {scope.removeprefix('over ')}" if scope.startswith("over ") else f", {scope}"
        unit = best.gain.unit
        is_pair = unit != "combinations" and len(best.gain.values) == 2 and best.gain.low is None
        pair = f" Two {unit} cannot show how far {unit} differ, so there is no interval." if is_pair else ""
        sentence = (
            f"{_students(finding)} changes full marks by {_estimate(best)} at k = {best.k} ({best.words}) over "
            f"{whole(best.gain.combinations)} combinations{scope}; {need(finding)}.{pair}"
        )
    else:
        sentence = (
            _gain(finding) if (finding.verdict == "supported") != (finding.claim == "control") else _no_gain(finding)
        )
    remarks = []
    if not all(c.excludes_gain for c in finding.compared):  # else the sentence is about the losses
        losses = [c for c in finding.compared if c.is_loss]
        remarks += [f"It lowers full marks by {_estimate(c)} at k = {c.k} ({c.words})." for c in losses]
    remarks += limits(finding)
    if finding.repeated:
        names, verb = " and ".join(finding.repeated), "holds" if len(finding.repeated) == 1 else "hold"
        remarks.append(f"{names} {verb} the scores of another of these runs under another name; they count once.")
    return " ".join((sentence, *remarks))


def _gain(finding: Finding) -> str:
    gains = [c for c in finding.compared if c.is_gain]
    best = max(gains, key=lambda c: c.gain.mean)
    verb = "does lift" if finding.claim == "control" else "lifts"
    at_all = len(gains) == len(finding.compared)
    where = f"every k tried: {_ks(gains)}." if at_all else f"some k: {_ks(gains)} of {_ks(finding.compared)}."
    return (
        f"{_students(finding)} {verb} full marks by {_estimate(best)} at k = {best.k} ({best.words}), {_scope(best)}; "
        f"a gain of {share(SMALLEST_GAIN)} or more is found at {where}"
    )


def _no_gain(finding: Finding) -> str:
    losses = [c for c in finding.compared if c.is_loss]
    if losses:
        worst = min(losses, key=lambda c: c.gain.mean)
        change = f"lowers full marks by {_estimate(worst)} at k = {worst.k} ({worst.words})"
        shown = worst
    else:
        shown = max(finding.compared, key=lambda c: c.gain.high or 0.0)
        change = f"changes full marks by {_estimate(shown)} at k = {shown.k}"
    return (
        f"{_students(finding)} {change}, {_scope(shown)}, and at no k of {_ks(finding.compared)} can the gain be "
        f"{share(SMALLEST_GAIN)} or more."
    )


def need(finding: Finding) -> str:
    """What would decide the claim; of seeds and combinations the kind that helps."""
    more = finding.more
    several = any(c.gain.unit == "seeds" for c in finding.compared)
    combinations = _count(more.combinations, "combination") + " at each k" if more.combinations else ""
    if more.partitions:
        return f"about {_count(more.partitions, 'partition')} would be needed to decide"
    if more.seeds and combinations:
        return f"about {_count(more.seeds, 'seed')}, or about {combinations}, would be needed to decide"
    if more.seeds:
        return f"about {_count(more.seeds, 'seed')} would be needed to decide; more combinations alone would not do"
    if combinations:
        alone = "; more seeds alone would not do" if several else ""
        return f"about {combinations} would be needed to decide{alone}"
    return "the data cannot say how many more would be needed"


def _count(number: int, noun: str) -> str:
    return f"{whole(number)} more {noun}" + ("" if number == 1 else "s")


def limits(finding: Finding) -> list[str]:
    """What else than the claim may explain a difference."""
    if finding.explained:
        return explanations(finding.second, finding.explained)
    return [_UNMATCHED[finding.claim]] if finding.claim in _UNMATCHED and not finding.is_matched else []


_NO_PRACTICE: Final = (
    "No student practised single skills with as many texts and steps, so such practice may explain a difference."
)
_UNMATCHED: Final[dict[Claim, str]] = {
    "composition": "The two differ in texts or steps, or these are unknown, so more practice may explain a difference.",
    "held-out": _NO_PRACTICE,
    "larger k": _NO_PRACTICE,
    "efficiency": "Steps could not be matched, so more steps may explain a difference.",
}


def _students(finding: Finding) -> str:
    """The second student against the first, with their training data."""
    first = f"{finding.first}" + (f", {short_name(finding.first_k)}" if finding.first_k else "")
    rows = f"{_number(finding.second_rows)} conversations against {_number(finding.first_rows)}"
    steps = f"{_number(finding.second_steps)} steps against {_number(finding.first_steps)}"
    sizes = f" ({rows}, {steps})" if finding.first_k else ""
    return f"{finding.second}, tuned on {short_name(finding.second_k)}, against {first}{sizes},"


def _number(number: int | None) -> str:
    return "unknown" if number is None else whole(number)


def _scope(one: Judged) -> str:
    """The trainings that the estimate speaks for."""
    gain = one.gain
    if gain.partitions > 1:
        return f"over {gain.partitions} partitions"
    return f"over {gain.seeds} seeds" if gain.seeds > 1 else "for this one training run"


def _estimate(one: Judged) -> str:
    return signed_with_interval(one.gain.mean, one.gain.low, one.gain.high)


def _ks(compared: Sequence[Judged]) -> str:
    return ", ".join(str(c.k) for c in compared)


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
    scope = _cell_scope(
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
        evidence=_capital(f"{_cell_scope(first, score.complete)}{' at each k' * (len(own) > 1)}."),
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


def _cell_scope(cell: Cell, combinations: int) -> str:
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
