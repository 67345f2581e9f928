"""Describe results in sentences: each finding, the main result with its evidence, and caveats.

The main result is the first supported claim in the order of `CLAIMS`. If no claim is supported, it is the planned
comparison: the student tuned on the largest k against its base or, without a lineage, the second student against the
first.
The size of a difference does not affect the choice. If the experiment plans comparisons itself, the first of these
comparisons is the main result. A report about one student states how often the student earns full marks.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any, Final, NamedTuple

from skillmix.catalog.catalog import RESERVED_NAMES
from skillmix.catalog.combinations import Combination
from skillmix.experiment.step_base import label_parts
from skillmix.files import read_yaml
from skillmix.grading.points import FULL_MARKS, text_score
from skillmix.models.lineage import Lineage, short_name
from skillmix.models.lineage_files import DatasetFile
from skillmix.prompts.rubric import TextOutcome
from skillmix.render import (
    in_percent,
    in_words,
    listed,
    one_line,
    plural,
    points_interval,
    share,
    signed_points,
    signed_with_interval,
    whole,
)
from skillmix.runs.run import Run, opened
from skillmix.runs.texts import texts_with_ballots
from skillmix.scores.cells import WRITTEN, Cell, CellKey, Cells, CellScore, largest_cells
from skillmix.scores.comparisons import (
    SMALLEST_GAIN,
    Change,
    Judged,
    PairRow,
    before_and_after,
    explanations,
    format_effect,
)
from skillmix.scores.findings import Claim, Finding, JudgedContrast, findings, judged_contrasts
from skillmix.scores.lineages import run_datasets
from skillmix.scores.safety import OutcomeCell
from skillmix.scores.scoring import comparable_in, lineages_in, partition_notes, score_run, unnamed_notes

_CLAIMS: Final[Any] = read_yaml(Path(__file__).with_name("claims.yaml"))
CLAIM_TITLES: Final[dict[Claim, str]] = {claim: words["title"] for claim, words in _CLAIMS.items()}
CLAIM_NEEDS: Final[dict[Claim, str]] = {claim: words["needs"] for claim, words in _CLAIMS.items()}
"""The data that each claim needs."""
_UNMATCHED: Final[dict[Claim, str]] = {c: words["unmatched"] for c, words in _CLAIMS.items() if "unmatched" in words}
"""Other possible explanations of a difference between students that are not matched."""


def format_warnings(cells: Sequence[Cell]) -> list[str]:
    """Warn about each student if more than half of its replies are truncated or lack the marker or the answer."""
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
        f"limit, as {whole(own['cut'])} were), so its scores say little about its skill. Try `prompts: worked` or a "
        "larger `max_tokens`, or set `answer` to the marker that the student writes."
        for (run, student), own in counts.items()
        if 2 * own["missed"] > own["written"]
    ]


def finding_sentence(finding: Finding) -> str:
    """Describe a finding in one or more sentences, with its numbers and caveats."""
    # Compare the second student with the first, and describe their training data.
    first, second = finding.pair.first.training, finding.pair.second.training
    students = f"{finding.second}, tuned on {short_name(second.k)}, compared with {finding.first},"
    if first.k:
        rows, more_rows, steps, more_steps = (
            "unknown" if number is None else whole(number)
            for number in (first.rows, second.rows, first.steps, second.steps)
        )
        students += (
            f" {short_name(first.k)} ({more_rows} conversations against {rows}, {more_steps} steps against {steps}),"
        )
    best = max(finding.compared, key=lambda c: c.gain.mean)
    ks = _listed([c.k for c in finding.compared])
    gains = [c for c in finding.compared if c.is_gain]
    losses = [c for c in finding.compared if c.found < 0]
    if finding.verdict == "too little data":
        scope = _scope(best)
        scope = f" and {scope.removeprefix('over ')}" if scope.startswith("over ") else f", {scope}"
        unit = best.gain.unit
        is_pair = unit != "combinations" and len(best.gain.values) == 2 and best.gain.low is None
        pair = f" Two {unit} cannot show how far {unit} differ, so there is no interval." if is_pair else ""
        sentence = (
            f"{students} changes full marks by {_estimate(best)} at k = {best.k} ({best.words}) over "
            f"{whole(best.gain.combinations)} combinations{scope}; {need(finding)}.{pair}"
        )
    elif finding.verdict != "not taught" and (finding.verdict == "supported") != (finding.claim == "control"):
        best = max(gains, key=lambda c: c.gain.mean)
        verb = "does lift" if finding.claim == "control" else "lifts"
        found = _listed([c.k for c in gains])
        where = f"every k tried: {found}." if len(gains) == len(finding.compared) else f"k = {found} (tried: {ks})."
        sentence = (
            f"{students} {verb} full marks by {_estimate(best)} at k = {best.k} ({best.words}), "
            f"{_scope(best)}; a gain of {share(SMALLEST_GAIN)} or more is found at {where}"
        )
    else:
        shown = max(finding.compared, key=lambda c: c.gain.high or 0.0)
        change = f"changes full marks by {_estimate(shown)} at k = {shown.k}"
        if losses:
            shown = min(losses, key=lambda c: c.gain.mean)
            change = f"lowers full marks by {_estimate(shown)} at k = {shown.k} ({shown.words})"
        sentence = (
            f"{students} {change}, {_scope(shown)}; a gain of {share(SMALLEST_GAIN)} or more is excluded at every k "
            f"tried: {ks}."
        )
    if finding.verdict == "not taught":
        sentence = (
            f"{finding.second} earns full marks on less than {share(SMALLEST_GAIN)} of the combinations that are like "
            f"its training texts, so its training taught too little to test this claim. {sentence}"
        )
    remarks = []
    if not all(c.excludes_gain for c in finding.compared):  # otherwise the sentence is about the losses
        remarks += [f"It lowers full marks by {_estimate(c)} at k = {c.k} ({c.words})." for c in losses]
    remarks += limits(finding)
    if finding.repeated:
        names, verb = " and ".join(finding.repeated), "holds" if len(finding.repeated) == 1 else "hold"
        remarks.append(
            f"{names} {verb} the scores of another run in this report under another name; these scores count once."
        )
    return " ".join((sentence, *remarks))


def need(finding: Finding) -> str:
    """Say how many more partitions, seeds or combinations are needed to settle the claim."""
    partitions, seeds, combinations = (
        f"about {whole(number)} more {noun}{'s' * (number != 1)}" if number else ""
        for number, noun in (
            (finding.more.partitions, "partition"),
            (finding.more.seeds, "seed"),
            (finding.more.combinations, "combination"),
        )
    )
    if partitions:
        return f"{partitions} would be needed to decide"
    if seeds and combinations:
        return f"{seeds}, or {combinations} at each k, would be needed to decide"
    if seeds:
        return f"{seeds} would be needed to decide; more combinations alone would not be enough"
    if combinations:
        several = any(c.gain.unit == "seeds" for c in finding.compared)
        alone = "; more seeds alone would not be enough" if several else ""
        return f"{combinations} at each k would be needed to decide{alone}"
    return "the data do not show how much more would be needed"


def limits(finding: Finding) -> list[str]:
    """List other possible explanations of a difference."""
    if finding.explained:
        return explanations(finding.second, finding.explained)
    return [_UNMATCHED[finding.claim]] if finding.claim in _UNMATCHED and not finding.pair.is_matched else []


def _scope(one: Judged) -> str:
    """Describe the training runs that the estimate covers."""
    gain = one.gain
    if gain.partitions > 1:
        return f"over {gain.partitions} partitions"
    return f"over {gain.seeds} seeds" if gain.seeds > 1 else "for this one training run"


def _estimate(one: Judged) -> str:
    return signed_with_interval(one.gain.mean, one.gain.low, one.gain.high)


def claim_sentence(finding: Finding, cells: Cells) -> str:
    """Describe a finding in a sentence that also says whether format explains a difference or hides skill."""
    students = finding.first, finding.second
    notes = []
    for c in finding.compared:
        effect = format_effect(students, finding.runs, (finding.grader, finding.setting, c.k), cells, c.found)
        words = effect.words(*students)
        notes += [f" At k = {c.k}, {words}."] if words else []
    return finding_sentence(finding) + "".join(notes)


@dataclass(frozen=True, slots=True)
class ResultNumber:
    """A number on the report's first screen."""

    value: str
    interval: str
    """The interval in words; empty for a number without uncertainty."""
    label: str


@dataclass(frozen=True, slots=True)
class MainResult:
    """The first screen of a report."""

    headline: str
    """The finding in words."""
    detail: str
    """The numbers of the headline with their uncertainty."""
    evidence: str
    """The basis of the sentence: setting, grader, amount of data and caveats."""
    numbers: tuple[ResultNumber, ...]
    students: tuple[tuple[str, str], ...] = ()
    """The run and the name of each student in the sentence; the second student of the comparison comes first."""
    grader: str | None = None
    setting: str | None = None
    k: int | None = None
    training: str = ""
    """The training data of each student; empty if no student was tuned."""
    is_one_try: bool = False
    """Whether the rates count single texts instead of the best text of each combination."""

    def with_training(
        self, lineages: Mapping[tuple[str, str], Lineage], datasets: Iterable[DatasetFile]
    ) -> "MainResult":
        """Add a sentence about the training data of each student; `lineages` are by run and student."""
        names = {data.hash: data.name for data in datasets}
        clauses = []
        for run, student in dict.fromkeys(self.students):
            own = lineages.get((run, student))
            if own is None:
                clauses.append(f"{student} was not tuned")
                continue
            data = [name for address in own.datasets if (name := names.get(address))]
            facts = [] if own.rows is None else [plural(own.rows, "conversation")]
            facts += [
                f"k = {_listed(own.k)}",
                *(["each request names only one skill"] if own.requests == "one" else []),
            ]
            about = ", ".join(facts)
            source = f"the data set{'s' * (len(data) > 1)} {listed(data)} ({about})" if data else about
            verb = "" if clauses and clauses[-1].endswith(")") else "was trained "
            clauses.append(f"{student} {verb}on {source}")
        is_tuned = any(key in lineages for key in self.students)
        return replace(self, training=f"{'; '.join(clauses)}." if is_tuned else "")

    @property
    def sentence(self) -> str:
        """Return the whole sentence."""
        return f"{self.headline}: {self.detail}" if self.detail else self.headline


class ExampleCombination(NamedTuple):
    """A combination, and the criteria that each student of a result misses in its first text on the combination."""

    combination: Combination
    missed: dict[CellKey, tuple[str, ...]]

    @property
    def about(self) -> str:
        """Say why the combination was chosen, and list its skills and topic."""
        full = [key.student for key, names in self.missed.items() if not names]
        only = f" where only {full[0]} has full marks" if len(full) == 1 < len(self.missed) else ""
        combination = f"{' and '.join(self.combination.skills)}, on {self.combination.topic}"
        return f"First tries on the first combination{only}: {combination}."


def example_of(result: MainResult, cells: Cells, *, among: Container[str] | None = None) -> ExampleCombination | None:
    """Choose the first combination on which only the better student has full marks on the first try, if there is one.

    Otherwise, choose the first combination. If `among` is given, consider only the combinations with these ids.
    """
    keys = [CellKey(*student, result.grader or "", result.setting or "", result.k or 0) for student in result.students]
    if not keys or not all(key in cells for key in keys):
        return None
    tries = [{c.id: p[0] for c, p in zip(cells[key].combinations, cells[key].points, strict=True) if p} for key in keys]
    drawn = [c for c in cells[keys[0]].combinations if among is None or c.id in among]
    shared = [c for c in drawn if all(own.get(c.id) for own in tries)]
    scores = {c.id: [text_score(own[c.id] or (), FULL_MARKS) or 0.0 for own in tries] for c in shared}
    totals = [sum(own) for own in zip(*scores.values(), strict=True)]
    differing = [c for c in shared if [i for i, one in enumerate(scores[c.id]) if one] == [totals.index(max(totals))]]
    for chosen in (differing or shared)[:1]:
        names = (*chosen.skills, *RESERVED_NAMES)
        denied = [[point is False for point in own[chosen.id] or ()] for own in tries]
        return ExampleCombination(
            chosen, {key: tuple(compress(names, own)) for key, own in zip(keys, denied, strict=True)}
        )
    return None


def example_lines(run: Run, result: MainResult, cells: Cells) -> Iterator[str]:
    """Describe the example of a result about two students for a terminal."""
    example = example_of(result, cells)
    if example is None or len(example.missed) < 2:
        return
    yield example.about
    with run.read() as journal:
        texts = [one.text for one in texts_with_ballots(run, journal, combinations=[example.combination.id])]
    for key, missed in example.missed.items():
        text = min((text for text in texts if text.student == key.student), key=lambda text: text.generation)
        points = f"misses {', '.join(missed)}" if missed else "full marks"
        yield f"{key.student}: “{one_line(text.answer.text)}” ({points})"


def main_result(cells: Sequence[Cell], findings: Sequence[Finding]) -> MainResult:
    """Return the first supported claim, otherwise the planned comparison, otherwise the scores of one student."""
    supported = [f for f in findings if f.verdict == "supported" and f.claim != "planned"]
    planned = [f for f in findings if f.claim == "planned"]
    if supported:
        return _of_finding(cells, supported[0], CLAIM_TITLES[supported[0].claim])
    if not planned:
        return _of_one_student(cells)
    place = cells[0].key.grader, label_parts(main_setting(cells) or "").setting
    finding = next((f for f in planned if (f.grader, label_parts(f.setting).setting) == place), planned[0])
    shown, first, second = _shown(finding), finding.first, finding.second
    title = f"{shown.verdict.capitalize()} to tell {second} and {first} apart"
    if shown.found:
        title = f"{second} earns full marks {'more' if shown.found > 0 else 'less'} often than {first}"
    elif shown.verdict == "within noise":
        title = f"No clear difference was found between {second} and {first}"
    return _of_finding(cells, finding, title)


def main_setting(cells: Sequence[Cell]) -> str | None:
    """Return the first setting called `all`, otherwise the first setting; None without cells."""
    settings = [cell.key.setting for cell in cells]
    return next((name for name in settings if label_parts(name).setting == "all"), next(iter(settings), None))


def _shown(finding: Finding) -> Judged:
    """Choose the k for the sentence: usually the smallest k at which the finding has a gain or a difference."""
    if finding.claim == "control":
        return max(finding.compared, key=lambda c: c.gain.high or 0.0)
    found = [c for c in finding.compared if (c.found if finding.claim == "planned" else c.is_gain)]
    several = [c for c in finding.compared if c.k >= 2]
    return (found or several or finding.compared)[0]


def _of_finding(cells: Sequence[Cell], finding: Finding, headline: str) -> MainResult:
    shown, run, (first, second) = _shown(finding), finding.runs[0], (finding.first, finding.second)
    gain, by_key = shown.gain, {cell.key: cell for cell in cells}
    interval = interval_words(gain.low, gain.high)
    difference = f"a difference of {_points(gain.mean, signed=gain.mean < 0)} ({interval})"
    skills = f"with {plural(shown.k, 'skill')} in one text"
    keys = [CellKey(run, name, finding.grader, finding.setting, shown.k) for name in (second, first)]
    if finding.claim == "control":
        words = (
            f"{skills}, {second} against {first}: {difference}; a gain of {in_percent(SMALLEST_GAIN)} points or more "
            "is excluded at every k"
        )
    elif gain.unit != "combinations" or not all(key in by_key for key in keys):
        words = f"{skills}, {second} against {first}: {difference}"
    else:
        best = [by_key[key].best(FULL_MARKS) for key in keys]
        shared = best[0].keys() & best[1].keys()
        rates = [in_percent(sum(values[c] for c in shared) / len(shared)) for values in best]
        words = (
            f"{skills}, {second} earns full marks on {rates[0]}% of combinations and {first} on {rates[1]}%, "
            f"{difference}"
        )
    units = [plural(gain.partitions, "partition")] if gain.partitions > 1 else []
    if finding.pair.second.k:
        units.insert(0, "one training run" if gain.seeds == 1 else plural(gain.seeds, "training"))
    named = f"run {run}, " if len({key.run for key in by_key}) > 1 and gain.seeds <= 1 else ""
    more = f" {capital(need(finding))}." if finding.verdict == "too little data" else ""
    if shown.found:
        ks = [c.k for c in finding.compared]
        found = [c.k for c in finding.compared if c.found and (c.found > 0) == (shown.found > 0)]
        rest = [k for k in ks if k not in found]
        but = f", but not at k = {_listed(rest)}" if rest else ", which is every k tried"
        more = f" A difference is found at k = {_listed(found)}{but}." if len(ks) > 1 else ""
    # In a comparison over partitions, the label of each cell contains its partition.
    where = (finding.grader, label_parts(finding.setting)[:2], shown.k)
    cell = next(c for c in cells if (c.key.grader, label_parts(c.key.setting)[:2], c.key.k) == where)
    scope = ", ".join([*units, f"{named}{_scope_of(cell, finding.setting, gain.combinations)}"])
    # the number of combinations, seeds or partitions that agree with the direction
    better, worse = sum(v > 0 for v in gain.values), sum(v < 0 for v in gain.values)
    neither = len(gain.values) - better - worse
    label = f"{gain.unit} on which {second} does better; {first} does better on {worse}"
    signed_interval = interval_words(gain.low, gain.high, signed=True)
    return MainResult(
        headline=headline,
        detail=f"{words}; {shown.words}.",
        evidence=" ".join([capital(f"{scope}.{more}"), *limits(finding)]),
        numbers=(
            ResultNumber(
                _points(gain.mean, signed=True), signed_interval, f"{second} minus {first} in full marks, k = {shown.k}"
            ),
            ResultNumber(f"{better} of {len(gain.values)}", "", f"{label}, neither on {neither}" if neither else label),
            graded_texts(cells),
        ),
        students=((run, second), (run, first)),
        grader=finding.grader,
        setting=finding.setting,
        k=shown.k,
    )


def graded_texts(cells: Iterable[Cell], of: str = "skills and a topic") -> ResultNumber:
    """Count the graded texts of the given cells, each text once; texts for data sets are in no cell."""
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
    """State how often the first student earns full marks under the first grader, in the main setting if possible."""
    own, texts = list[Cell](), graded_texts(cells)
    scored = [c for c in cells if c.scores[FULL_MARKS].value is not None and c.key.grader == cells[0].key.grader]
    for run, student in dict.fromkeys((c.key.run, c.key.student) for c in cells):
        for setting in (main_setting(cells), *dict.fromkeys(c.key.setting for c in cells)):
            own = own or [c for c in scored if (c.key.run, c.key.student, c.key.setting) == (run, student, setting)]
    if not own:
        return MainResult("No text is graded yet", "", "Continue the run, then report again.", (texts,))
    own.sort(key=lambda c: c.key.k)
    scores = [cell.scores[FULL_MARKS] for cell in own]
    rates = [f"{in_percent(score.value or 0.0)}%" for score in scores]
    intervals = [interval_words(score.low, score.high) for score in scores]
    key, last, label = own[0].key, own[-1].key, "have a text with full marks"
    headline = f"{key.student} earns full marks on {rates[0]} of combinations with {plural(key.k, 'skill')} in one text"
    details = [f"{rates[0]} with {key.k} ({intervals[0]})"]
    for cell, score, rate in zip(own[1:], scores[1:], rates[1:], strict=True):
        details.append(f"{rate} with {cell.key.k} ({points_interval(score.low, score.high) or 'too few'})")
    numbers = [ResultNumber(rates[0], intervals[0], f"of combinations {label}, k = {key.k}")]
    if len(own) > 1:
        headline = f"{headline}, and on {rates[-1]} with {last.k}"
        numbers.append(ResultNumber(rates[-1], intervals[-1], f"of combinations {label}, k = {last.k}"))
    else:
        interval = interval_words(scores[0].one_try_low, scores[0].one_try_high)
        one_try = f"{in_percent(scores[0].one_try or 0.0)}%"
        numbers.append(ResultNumber(one_try, interval, f"of single texts have full marks, k = {key.k}"))
    return MainResult(
        headline=headline,
        detail=", ".join(details) + ".",
        evidence=capital(f"{_scope_of(own[0], key.setting, scores[0].complete)}{' at each k' * (len(own) > 1)}."),
        numbers=(*numbers, texts),
        students=((key.run, key.student),),
        grader=key.grader,
        setting=key.setting,
        k=key.k,
    )


def contrast_result(contrasts: Sequence[JudgedContrast], cells: Iterable[Cell]) -> MainResult:
    """Make the first screen for planned comparisons: the first comparison, and the verdicts on the others."""
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
    next_ones = "Further planned comparisons, each valid only if all earlier ones found a difference"
    evidence += [f"{next_ones}: {'; '.join(others)}."] if others else []
    return MainResult(
        headline=headline,
        detail=detail,
        evidence=" ".join(evidence),
        numbers=(
            ResultNumber(
                f"{in_percent(first.value)}%", "", f"of the texts of {plan.student} have full marks, k = {plan.k}"
            ),
            ResultNumber(f"{in_percent(first.against)}%", "", f"of the texts of {against}, k = {k}"),
            graded_texts(cells),
        ),
        students=tuple(dict.fromkeys((key.run, key.student) for key in first.keys)),
        grader=first.grader,
        setting=first.keys[0].setting,
        k=plan.k,
        is_one_try=True,
    )


def outcome_result(cells: Sequence[OutcomeCell], label: Callable[[str, str], str]) -> MainResult:
    """State how often the first student refuses probes at the smallest and the largest k, and its other outcomes.

    `label` returns the printed name of a student of a run.
    """
    known = [c for c in cells if c.topics == "probes" and c.share("refuses").value is not None]
    texts = graded_texts((c.cell for c in cells), "skills and a probe or control")
    if not known:
        return MainResult("No text has an outcome yet", "", "Continue the run, then report again.", (texts,))
    # Collect the probes of each student by k, under the grader and setting of the first decided cell.
    place = next((c.key for c in known if c.key.setting == "all"), known[0].key)
    lines: dict[str, list[OutcomeCell]] = {}
    for cell in known:
        if (cell.key.run, cell.key.grader, cell.key.setting) == (place.run, place.grader, place.setting):
            lines.setdefault(cell.key.student, []).append(cell)
    lines = {student: sorted(own, key=lambda cell: cell.key.k) for student, own in lines.items()}
    student, own = next(iter(lines.items()))
    first, last = own[0], own[-1]

    def among(cell: OutcomeCell) -> str:
        return "without skills" if cell.key.k == 0 else f"with {plural(cell.key.k, 'skill')}"

    def number(cell: OutcomeCell, outcome: TextOutcome = "refuses", verb: str = "refused") -> ResultNumber:
        share = cell.share(outcome)
        words = f"of probes are {verb}, k = {cell.key.k}, {cell.key.student}"
        return ResultNumber(f"{in_percent(share.value or 0.0)}%", interval_words(share.low, share.high), words)

    def rate(cell: OutcomeCell) -> str:
        return f"{number(cell).value} {among(cell)} ({number(cell).interval})"

    refusals = f"{label(place.run, student)} refuses {number(first).value} of the probes {among(first)}"
    details = [f"{label(place.run, name)} refuses {', '.join(map(rate, line))}" for name, line in lines.items()]
    evidence = f"Setting {place.setting}, grader {place.grader}, {plural(len(last.cell.combinations), 'combination')} "
    evidence += f"{among(last)}."
    # add the refusals of harmless requests in the same cell
    controls = [c for c in cells if c.key == last.key and c.topics == "controls"]
    if controls and controls[0].share("refuses").value is not None:
        refused = number(controls[0])
        evidence += f" It refuses {refused.value} of the controls {among(last)} ({refused.interval})."
    return MainResult(
        headline=refusals if first is last else f"{refusals} and {number(last).value} {among(last)}",
        detail=f"{'; '.join(details)}.",
        evidence=evidence,
        numbers=(number(first), number(first, "complies", "complied with") if last is first else number(last), texts),
        students=((place.run, student),),
        grader=place.grader,
        setting=place.setting,
        k=first.key.k,
    )


def pair_sentences(first: str, second: str, rows: Sequence[PairRow]) -> tuple[str, str]:
    """Compare the second student with the first, and the first with the second, over all rows."""
    notes = "".join(f" {sentence}" for sentence in explanations(second, rows))
    more, fewer = sum(row.found > 0 for row in rows), sum(row.found < 0 for row in rows)
    total, undecided = in_words(len(rows)), in_words(len(rows) - more - fewer)

    def compared(name: str, other: str, wins: int, losses: int) -> str:
        if len(rows) == 1:
            return f"{second} against {first}: {rows[0].words}.{notes}"
        if not more and not fewer:
            return f"No difference between {second} and {first} is found in {total} comparisons.{notes}"
        return (
            f"{name} has more full marks than {other} in {in_words(wins)} of {total} comparisons and fewer in "
            f"{in_words(losses)}; in {undecided} no difference is found.{notes}"
        )

    return compared(second, first, more, fewer), compared(first, second, fewer, more)


def _scope_of(cell: Cell, setting: str, combinations: int) -> str:
    """Describe the cells that a sentence covers."""
    generations = max(map(len, cell.points), default=1)
    best = f"best of {generations} texts on " if generations > 1 else ""
    return f"setting {setting}, grader {cell.key.grader}, {best}{plural(combinations, 'combination')}"


def _listed(ks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ks)))


def _points(value: float, *, signed: bool) -> str:
    text = signed_points(value) if signed else in_percent(value)
    return f"{text} point" if text.lstrip("+−") == "1" else f"{text} points"


def interval_words(low: float | None, high: float | None, *, signed: bool = False) -> str:
    """Describe a 95% interval in words."""
    ends = points_interval(low, high, is_signed=signed)
    return f"95% interval {ends}" if ends else "too few combinations for an interval"


def capital(sentence: str) -> str:
    """Return a sentence with its first letter capitalized."""
    return sentence[:1].upper() + sentence[1:]


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """The scores of a run, the effects of tuning, and notes for the terminal."""

    scores: list[CellScore]
    changes: list[Change]
    """Comparisons of tuned students with their bases, if the run has both."""
    notes: list[str]
    """Notes on journal data outside the current experiment, and on skill pairs that students saw under another
    partition.
    """
    format_first: list[str] = field(default_factory=list)
    """Warnings about students that miss the format in most replies."""
    result: list[str] = field(default_factory=list)
    """The main result, its evidence and example texts, as in a report; empty for a run with only one student."""


def scored_run(run: Run | str, *, rules: str | None = None, by_sets: bool = False) -> ScoredRun:
    """Compute the scores of a run, and compare every tuned student with its base."""
    run = opened(run)
    scored = score_run(run, rules, by_sets=by_sets)
    cells = largest_cells(scored.cells)
    lineages = lineages_in(run, cells)
    notes = [*unnamed_notes(scored.rows), *partition_notes(run, lineages, cells.values())]
    students = comparable_in(run, cells)
    found = findings(students, cells)
    planned = judged_contrasts([run], students, cells)
    main = contrast_result(planned, cells.values()) if planned else main_result(list(cells.values()), found)
    main = main.with_training({(run.name, name): own for name, own in lineages.items()}, run_datasets(run))
    result = [line for line in (main.sentence, main.training, main.evidence) if line and (found or planned)]
    result += example_lines(run, main, cells) if planned and planned[0].verdict == "supported" else []
    first = [] if run.has_outcomes else format_warnings(list(cells.values()))
    return ScoredRun(scored.scores, before_and_after(students, cells), notes, first, result)


_MAX_LINES: Final = 12
_NOTE: Final = (
    "p is corrected over all settings and k of two students under one grader; within noise: p is .05 or more, or the "
    "interval includes 0."
)


def shown_lines(changes: Sequence[Change], *, run: str) -> list[str]:
    """Describe the differences between tuned students and their bases, in the order of the cells."""
    several = [len({getattr(change.row, name) for change in changes}) > 1 for name in ("setting", "grader")]
    lines = [_line(change, *several) for change in changes[:_MAX_LINES]]
    more = len(changes) - len(lines)
    if more:
        lines.append(f"{plural(more, 'more difference')}: skillmix report {run}")
    return [*lines, _NOTE] if lines else []


def _line(change: Change, names_setting: bool, names_grader: bool) -> str:
    """Describe a difference with its verdict and the role of format."""
    row = change.row
    named = [row.setting] * names_setting + [f"graded by {row.grader}"] * names_grader
    place = f" ({', '.join(named)})" if named else ""
    words = change.format_words
    explained = f" {capital(words)}." if words else ""
    return (
        f"With {in_words(row.k)} {'skill' if row.k == 1 else 'skills'}{place}: {change.student} "
        f"{share(row.second_value)}, {change.base} {share(row.first_value)} on "
        f"{plural(row.combinations, 'combination')}, difference "
        f"{signed_with_interval(row.difference, row.low, row.high)}: {row.words}.{explained}"
    )
