"""Grader cards: a grader's agreement between its rounds, with other graders, and with reference labels.

`grader_card(items, grader, truth)` is a pure function that makes a card from graded texts. "Truth" is the grader that
serves as the reference, although people and code also make errors. A person is a grader called `human:NAME`, code is
the grader whose model is `rules:`, and a calibration set provides its known labels under any name, such as `labels`:

    item = TextUnderGraders(
        run="calibration", student="set", combination="metaphor/1", generation=0, skills=("metaphor",), words=31,
        points={"gpt": (True, True, True, True), "labels": (True, None, None, None)},
    )
    card = grader_card([item, ...], "gpt", "labels")

Points are in the order skills, topic, sense, length. A point is None if it is unknown, because a rater was unsure, a
reply could not be parsed, or there is no label. A text without an entry for the reference is graded but not labeled.
Unlabeled texts still show how often the grader gives a point, and their scores can be corrected.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Final, Literal

from skillmix.calls import PEOPLE, is_human
from skillmix.grading.points import FULL_MARKS, Ballot, Points, text_score
from skillmix.runs.verdicts import has_checker
from skillmix.scores.statistics.against_truth import (
    UNKNOWN,
    Corrected,
    GraderDecision,
    KindErrors,
    LabelledPool,
    Measure,
    cohen_kappa,
    corrected_by_criteria,
    corrected_by_error_rates,
    corrected_by_labels,
    counts_of,
    difference_of_excess,
    flip_rate,
    krippendorff_alpha,
    rates_of,
    truth_measures,
    wilson_measure,
)
from skillmix.scores.statistics.intervals import Counts, effective_counts

Kind = Literal["skill", "topic", "sense"]
KINDS: Final[tuple[Kind, ...]] = ("skill", "topic", "sense")
"""The kinds of criteria that graders judge; code checks the length."""
Decider = Literal["model", "code"]


@dataclass(frozen=True, slots=True)
class RoundAgreement:
    """The agreement between a grader's rounds on one kind of criterion, separately for its model and its code."""

    run: str
    grader: str
    kind: Kind
    decider: Decider
    units: int
    """The number of criteria in texts with at least two parseable rounds."""
    flips: float | None
    """The share of pairs of rounds that differ; None for code, which decides the same in every round."""
    alpha: float | None


@dataclass(frozen=True, slots=True)
class GraderAgreement:
    """The agreement of two graders on one kind of criterion, over the points that both decided."""

    run: str
    first: str
    second: str
    kind: Kind
    units: int
    agree: float | None
    kappa: float | None
    alpha: float | None
    first_earned: float | None
    """The share of units for which the first grader gives the point."""
    second_earned: float | None
    """The share of units for which the second grader gives the point."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """How often graders disagree on one skill, on the topic or on sense, over all pairs of graders."""

    criterion: str
    units: int
    differ: int


@dataclass(frozen=True, slots=True)
class Readability:
    """The calls to one grader, and how many of them returned no reply or an unparseable one."""

    run: str
    grader: str
    calls: int
    unreadable: int
    without_reply: int
    reasons: Mapping[str, int]


def round_agreement(run: str, ballots: Sequence[Ballot], with_code: Collection[str] = ()) -> list[RoundAgreement]:
    """Compare the rounds of each grader; `with_code` lists graders that use code for skills with a checker.

    Code gives the same point in every round. If points from code counted as votes of the model, the grader
    would seem more consistent than it is.
    """
    units: dict[tuple[str, Kind, Decider], list[list[float | None]]] = defaultdict(list)
    for ballot in ballots:
        votes = [r.points for r in ballot.readings if r is not None and r.points is not None]
        skills = ballot.text.combination.skills
        for index in range(len(skills) + 2 if len(votes) > 1 else 0):
            is_code = ballot.grader in with_code and index < len(skills) and has_checker(skills[index])
            decider: Decider = "code" if is_code else "model"
            units[ballot.grader, kind_of(index, len(skills)), decider].append([vote[index] for vote in votes])
    rows = []
    for key in sorted(units, key=lambda key: (key[0], KINDS.index(key[1]), key[2] == "code")):
        own, is_model = units[key], key[2] == "model"
        flips, alpha = (flip_rate(own), krippendorff_alpha(own)) if is_model else (None, None)
        rows.append(RoundAgreement(run, *key, len(own), flips, alpha))
    return rows


def grader_agreement(
    run: str, decided: Iterable[tuple[Ballot, Points]]
) -> tuple[list[GraderAgreement], list[Disagreement]]:
    """Compare every pair of graders, and list the criteria on which they disagree, starting with the worst."""
    by_text: dict[tuple[str, str, int], dict[str, tuple[Ballot, Points]]] = defaultdict(dict)
    for ballot, points in decided:
        if ballot.text.answer.text:  # graders never see an empty answer
            by_text[ballot.text.conversation][ballot.grader] = (ballot, points)
    pairs: dict[tuple[str, str, Kind], list[tuple[float, float]]] = defaultdict(list)
    by_name: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for graders in by_text.values():
        for first, second in combinations(sorted(graders), 2):
            ballot, points = graders[first]
            skills = ballot.text.combination.skills
            for index, (a, b) in enumerate(zip(points[:-1], graders[second][1][:-1], strict=True)):
                if a is not None and b is not None:
                    kind = kind_of(index, len(skills))
                    pairs[first, second, kind].append((float(a), float(b)))
                    count = by_name[skills[index] if kind == "skill" else kind]
                    count[0] += 1
                    count[1] += a != b
    agreements = []
    for key in sorted(pairs, key=lambda p: (*p[:2], KINDS.index(p[2]))):
        own, n = pairs[key], len(pairs[key])
        first_given, second_given = ([pair[side] for pair in own] for side in (0, 1))
        agree, kappa = sum(a == b for a, b in own) / n, cohen_kappa(first_given, second_given)
        earned = sum(first_given) / n, sum(second_given) / n
        agreements.append(GraderAgreement(run, *key, n, agree, kappa, krippendorff_alpha(own), *earned))
    worst = sorted((Disagreement(n, *c) for n, c in by_name.items()), key=lambda d: (-d.differ / d.units, d.criterion))
    return agreements, worst


def kind_of(index: int, k: int) -> Kind:
    """Return the kind of the criterion with this number.

    >>> [kind_of(index, 2) for index in range(4)]
    ['skill', 'skill', 'topic', 'sense']
    """
    return "skill" if index < k else ("topic" if index == k else "sense")


Vote = tuple[float | None, ...]
"""The points that the grader gave in one round, in the order of `Points`."""


@dataclass(frozen=True, slots=True)
class TextUnderGraders:
    """One text, and the points from each grader."""

    run: str
    student: str
    combination: str
    """The id of the combination. Texts about the same combination are not independent of each other."""
    generation: int
    skills: tuple[str, ...]
    """The skills, in the order of the prompt."""
    words: int
    """The length of the text in words."""
    points: Mapping[str, Points]
    """The points by grader; a grader that never voted on the text has no entry."""
    votes: Mapping[str, tuple[Vote | None, ...]] = field(default_factory=dict)
    """By grader, the vote of each round; None if no reply of the round could be parsed."""
    settings: tuple[str, ...] = ()
    """The settings whose cells contain the text."""
    student_model: str | None = None
    """The model string of the student; None if unknown."""
    by_code: frozenset[int] = frozenset()
    """The indices of criteria that code decides for every grader, such as length and skills that the text names."""

    @property
    def k(self) -> int:
        """Return the number of skills."""
        return len(self.skills)

    @property
    def group(self) -> tuple[str, str, int]:
        """Return the run, the student and k; labels of one group do not represent texts of other groups."""
        return self.run, self.student, self.k

    def full_marks(self, grader: str | None) -> bool | None:
        """Whether a grader gives full marks; None if undecided."""
        points = self.points.get(grader or "")
        score = text_score(points, FULL_MARKS) if points else None
        return None if score is None else score == 1.0

    def decides(self, grader: str | None) -> bool:
        """Whether a grader decided at least one criterion that code does not decide."""
        points = self.points.get(grader or "", ())
        return any(point is not None and index not in self.by_code for index, point in enumerate(points))

    @property
    def is_denied_by_code(self) -> bool:
        """Whether code alone denies full marks, so that a grader's errors cannot change the result."""
        decided = ({points[index] for points in self.points.values()} - {None} for index in self.by_code)
        return any(values == {False} for values in decided)


def people_in(items: Iterable[TextUnderGraders]) -> list[str]:
    """Return the names of the people who rated any of the texts."""
    return sorted({grader for item in items for grader in item.points if is_human(grader)})


def with_people(items: Sequence[TextUnderGraders]) -> list[TextUnderGraders]:
    """Add a grader `people` to each text that people rated, with the answers that more than half of them gave."""
    found = []
    for item in items:
        rated = [points for grader, points in item.points.items() if is_human(grader)]
        majority = tuple(
            next((answer for answer in (True, False) if 2 * answers.count(answer) > len(answers)), None)
            for answers in zip(*rated, strict=True)
        )
        found.append(replace(item, points={**item.points, **({PEOPLE: majority} if rated else {})}))
    return found


@dataclass(frozen=True, slots=True)
class Unit(GraderDecision):
    """A decision on a criterion or on full marks, with its text."""

    item: TextUnderGraders
    index: int | None
    """The number of the criterion; None for full marks."""

    @property
    def kind(self) -> Kind | None:
        """Return the kind of the criterion; None for full marks."""
        return None if self.index is None else kind_of(self.index, self.item.k)

    @property
    def skill(self) -> str | None:
        """Return the skill; None for other criteria."""
        return self.item.skills[self.index] if self.index is not None and self.index < self.item.k else None


def of_labelled_groups(units: Sequence[Unit]) -> list[Unit]:
    """Keep the units of every run, student and k in which at least one unit has a label.

    How often a grader's points are right depends on how often the point is earned. Labels of one student's texts
    therefore cannot represent the texts of another student.
    """
    groups = {unit.item.group for unit in units if unit.earned is not None}
    return [unit for unit in units if unit.item.group in groups]


def criterion_units(
    items: Sequence[TextUnderGraders], grader: str, truth: str | None, number: int | None = None
) -> list[Unit]:
    """Return the decisions of the grader, or of one of its rounds, on all criteria that code does not decide.

    A criterion of a labeled text without a reference decision is omitted, because the reference is unsure.
    """
    units = []
    for item, weight in zip(items, label_weights(items, truth), strict=True):
        points, label = item.points.get(grader, ()), item.points[truth] if truth and item.decides(truth) else ()
        if number is not None:
            votes = item.votes.get(grader, ())
            # Half a point in a single round does not earn the point.
            vote = (votes[number] if number < len(votes) else None) or ()
            points = tuple(None if value is None else value > 0.5 for value in vote)
        for index, given in enumerate(points[:-1]):
            earned = label[index] if label else None
            if given is not None and index not in item.by_code and (earned is not None or not label):
                units.append(Unit(given, earned, item.combination, weight, item, index))
    return units


def full_marks_units(items: Sequence[TextUnderGraders], grader: str, truth: str | None) -> list[Unit]:
    """Return the grader's decisions on the full marks of texts, except where code alone denies full marks.

    A text has no label if the reference leaves its full marks undecided.
    """
    return [
        Unit(given, item.full_marks(truth) if item.decides(truth) else None, item.combination, weight, item, None)
        for item, weight in zip(items, label_weights(items, truth), strict=True)
        if (given := item.full_marks(grader)) is not None and not item.is_denied_by_code
    ]


def _grouped(units: Iterable[Unit], key: Callable[[Unit], Hashable]) -> Mapping[Hashable, list[Unit]]:
    groups: dict[Hashable, list[Unit]] = defaultdict(list)
    for unit in units:
        groups[key(unit)].append(unit)
    return groups


def label_weights(items: Sequence[TextUnderGraders], truth: str | None) -> list[float]:
    """Compute the number of texts that each labeled text represents.

    Some students, k and outcomes are more frequent in the sample that people rate than in the run. A group of texts
    shares run, student and k. A stratum consists of the texts of a group on whose full marks the graders decided alike.
    A stratum without labels is merged with other strata that have the same decisions, unless its group has no label.
    """
    graders = sorted({g for item in items for g in item.points if not (is_human(g) or g in (truth, PEOPLE))})
    outcomes = [tuple(item.full_marks(grader) for grader in graders) for item in items]
    strata = [(item.group, outcome) for item, outcome in zip(items, outcomes, strict=True)]
    is_labelled = [item.decides(truth) for item in items]
    if all(is_labelled):
        return [1.0] * len(items)
    texts = Counter(strata)
    labelled = Counter(stratum for stratum, has_label in zip(strata, is_labelled, strict=True) if has_label)
    groups = {group for group, _ in labelled}
    of_outcome, covered = Counter[Hashable](), Counter[Hashable]()
    for (group, outcome), number in texts.items():
        of_outcome[outcome] += number if group in groups else 0
        covered[outcome] += number if labelled[group, outcome] else 0
    return [
        texts[stratum] / labelled[stratum] * of_outcome[outcome] / covered[outcome] if has_label else 1.0
        for stratum, outcome, has_label in zip(strata, outcomes, is_labelled, strict=True)
    ]


_WORDS: Final = re.compile(r"[a-z]+")
_NO_FAMILY: Final = ("meta", "model", "checkpoint", "step")
"""First words of model names and folders that do not identify a family."""


def family_of(spec: str | None) -> str | None:
    """Return the family of a model, which is the first word of its name; None if the model string contains no name.

    >>> family_of("openai:gpt-4o"), family_of("local:models/Mistral-7B-v0.2"), family_of("bundled:smollm2-135m")
    ('gpt', 'mistral', 'smollm')
    >>> family_of("openai:Meta-Llama-3-8B@http://localhost:8000/v1"), family_of("rules:"), family_of(None)
    ('llama', None, None)
    >>> family_of("local:runs/tune/m12/model"), family_of("scripted:grader"), family_of("composer:figures")
    (None, None, None)
    """
    if (spec or "").startswith(("scripted:", "composer:")):
        return None
    name = (spec or "").removeprefix("rules:").partition(":")[2].partition("@")[0].partition("?")[0]
    last = name.rstrip("/").rpartition("/")[2].lower()
    words = [word for word in _WORDS.findall(last) if word not in _NO_FAMILY]
    return words[0] if words else None


BiasBy = Literal["all", "student", "family", "length", "position", "round"]
THIRDS: Final = ("short", "medium", "long")
OWN_FAMILY: Final = "own family"
OTHER_FAMILIES: Final = "other families"


@dataclass(frozen=True, slots=True)
class BiasRow:
    """How many more points a grader gives than the reference in one group of criteria."""

    by: BiasBy
    group: str
    units: int
    """The number of criteria that the grader and the reference both decided."""
    excess: Measure
    """The share of points that the grader gives minus the share that the reference gives."""
    agreement: Measure


@dataclass(frozen=True, slots=True)
class GraderBias:
    """The errors of a grader by group of criteria, and whether it favors students of its own model family."""

    rows: tuple[BiasRow, ...]
    favours_own_family: Measure
    """The excess for students of the grader's family minus the excess for others; unknown if either lacks labels."""


def grader_bias(units: Sequence[Unit], rounds: Mapping[int, Sequence[Unit]], model: str | None) -> GraderBias:
    """Compute a grader's bias by group of criteria; `rounds` contains the same criteria with votes of single rounds."""
    groups: list[tuple[BiasBy, str, Sequence[Unit]]] = [("all", "all", units)]
    by_student = _grouped(units, lambda unit: unit.item.student)
    groups += [("student", str(name), by_student[name]) for name in sorted(by_student, key=str)]
    by_family = _grouped(units, lambda unit: family_of(unit.item.student_model))
    family = family_of(model)
    own = by_family.get(family, []) if family else []
    others = [unit for unit in units if family_of(unit.item.student_model) not in (None, family)] if family else []
    if own and others:
        groups += [("family", OWN_FAMILY, own), ("family", OTHER_FAMILIES, others)]
    lengths = sorted({id(unit.item): unit.item.words for unit in units}.values())
    if lengths and lengths[0] != lengths[-1]:
        # split the texts into the shortest, the middle and the longest third
        cuts = [-1, lengths[(len(lengths) - 1) // 3], lengths[2 * (len(lengths) - 1) // 3], lengths[-1]]
        for name, (above, most) in zip(THIRDS, pairwise(cuts), strict=True):
            third = [unit for unit in units if above < unit.item.words <= most]
            if third:
                shortest, longest = min(u.item.words for u in third), max(u.item.words for u in third)
                groups.append(("length", f"{name}, {shortest} to {longest} words", third))
    # make one row for each position of the skill in the prompt, but none if every prompt has only one skill
    skills = [unit for unit in units if unit.kind == "skill" and unit.item.k > 1]
    for index in range(max((unit.item.k for unit in skills), default=0)):
        groups.append(("position", f"skill {index + 1}", [unit for unit in skills if unit.index == index]))
    if len(rounds) > 1:
        groups += [("round", f"round {number + 1}", of_round) for number, of_round in rounds.items()]
    rows = []
    for by, group, found in groups:
        labelled, measures = sum(unit.earned is not None for unit in found), truth_measures(found)
        rows += [BiasRow(by, group, labelled, measures.excess, measures.agreement)] if labelled else []
    return GraderBias(tuple(rows), difference_of_excess(own, others) if own and others else UNKNOWN)


FEWEST_LABELS: Final = 10
"""If a cell has fewer labels for one of the outcomes, use the errors at the same k in all cells instead."""
Method = Literal["truth", "own labels", "criteria", "error rates"]
NO_LABELS: Final = "no text of this k has a label"


@dataclass(frozen=True, slots=True)
class CorrectedScore:
    """The share of single texts with full marks, before and after correction for the grader's errors."""

    run: str
    student: str
    setting: str
    k: int
    texts: int
    """The number of texts whose full marks the grader decided."""
    labelled: int
    """The number of decided texts with a label for full marks; texts that code denies full marks need no label."""
    raw: Measure
    corrected: Measure
    method: Method | None
    """The source of the labels. With "truth", all texts are labeled; with "own labels", a sample of the cell's texts is
    labeled; "criteria" and "error rates" use labels of other texts.
    """
    problem: str | None
    """The reason why a corrected score is missing."""


def corrected_scores(items: Sequence[TextUnderGraders], grader: str, truth: str | None) -> list[CorrectedScore]:
    """Correct the scores of each run, student, setting and k under a grader.

    Each cell uses the first method, in the order of `Method`, for which the cell or all cells at its k have enough
    labels.
    """
    decided = [item for item in items if item.full_marks(grader) is not None]
    cells: dict[tuple[str, str, str, int], list[TextUnderGraders]] = defaultdict(list)
    for item in decided:
        for setting in item.settings:
            cells[item.run, item.student, setting, item.k].append(item)
    units = full_marks_units(decided, grader, truth)
    by_item = {id(unit.item): unit for unit in units}
    pools = _grouped(of_labelled_groups(units), lambda unit: unit.item.k)
    decisions: dict[int, list[list[int]]] = defaultdict(lambda: [[0, 0] for _ in KINDS])
    """For each text, the number of points of each kind that the grader gives and the number that it denies."""
    labelled: dict[tuple[int, Kind | None, bool], list[Unit]] = defaultdict(list)
    for unit in criterion_units(decided, grader, truth):
        decisions[id(unit.item)][KINDS.index(unit.kind)][not unit.given] += 1
        if unit.earned is not None:
            labelled[unit.item.k, unit.kind, unit.earned].append(unit)
    errors = {
        k: [
            KindErrors(*(counts_of([u.given for u in own], own, weighted=True) for own in sides))
            for sides in ([labelled[k, kind, is_earned] for is_earned in (True, False)] for kind in KINDS)
        ]
        for k in {item.k for item in decided}
    }

    def counts(values: Sequence[bool], own: Sequence[TextUnderGraders]) -> Counts:
        return effective_counts(values, [item.combination for item in own])

    scores = []
    for key, own in sorted(cells.items()):
        # texts that code does not decide, and the numbers of given and denied points of each kind
        left_open = [by_item[id(item)] for item in own if id(item) in by_item]
        of_kinds = [decisions[id(unit.item)] for unit in left_open]
        ids, pool, of_k = {id(unit.item) for unit in left_open}, pools.get(key[3], []), errors[key[3]]
        is_open = counts([id(item) in ids for item in own], own)
        has_label = [[unit.earned is not None for unit in left_open if unit.given == given] for given in (True, False)]
        used = [kind for kind in range(len(KINDS)) if any(any(of_text[kind]) for of_text in of_kinds)]
        method: Method | None
        if all(unit.earned is not None for unit in left_open):
            earned = {id(unit.item) for unit in left_open if unit.earned}
            method, corrected = "truth", Corrected(wilson_measure(counts([id(item) in earned for item in own], own)))
        elif all(sum(labels) >= min(FEWEST_LABELS, len(labels)) for labels in has_label):
            method, corrected = "own labels", corrected_by_labels(is_open, rates_of(left_open))
        elif not pool:
            method, corrected = None, Corrected(UNKNOWN, NO_LABELS)
        elif used and all(of_k[kind].is_known for kind in used):
            chosen = [tuple((of_text[kind][0], of_text[kind][1]) for kind in used) for of_text in of_kinds]
            clusters = [unit.item.combination for unit in left_open]
            method = "criteria"
            corrected = corrected_by_criteria(is_open, chosen, clusters, [of_k[kind] for kind in used])
        else:
            others, rates = [unit for unit in pool if id(unit.item) not in ids], rates_of(pool)
            share = 1 - len(others) / len(pool)
            of_pool = LabelledPool(rates_of(others).given, share, rates.if_given, rates.if_denied)
            method, corrected = "error rates", corrected_by_error_rates(is_open, rates_of(left_open).given, of_pool)
        scores.append(
            CorrectedScore(
                *key,
                texts=len(own),
                labelled=sum(unit.earned is not None for unit in left_open),
                raw=wilson_measure(counts([item.full_marks(grader) is True for item in own], own)),
                corrected=corrected.share,
                method=None if corrected.problem else method,
                problem=corrected.problem,
            )
        )
    return scores


@dataclass(frozen=True, slots=True)
class GraderFacts:
    """Facts about a grader from a journal or an experiment; None if unknown."""

    model: str | None = None
    """The grader's model string."""
    cost_usd: float | None = None
    """The cost of all calls to the grader."""
    texts: int | None = None
    """The number of texts that the calls covered."""

    @property
    def cost_per_text(self) -> float | None:
        """Return the cost per text, including all rounds and attempts."""
        return None if self.cost_usd is None or not self.texts else self.cost_usd / self.texts


@dataclass(frozen=True, slots=True)
class TruthAgreement:
    """The agreement of a grader with the reference on one kind of criterion, or on one skill."""

    criterion: str
    """`skill`, `topic`, `sense` or `full marks`, or the skill's name in the list by skill."""
    units: int
    """The number of criteria that the grader and the reference both decided."""
    graded: int
    """The number of criteria that the measures represent. Usually, these are all criteria that the grader decided in
    texts of students and k with labels. If the labels lack a criterion that the grader gives, or one that it denies,
    only labeled criteria count.
    """
    earned: Measure
    """The share of criteria for which the reference gives the point."""
    agreement: Measure
    sensitivity: Measure
    """How often the grader gives a point that the reference gives."""
    specificity: Measure
    """How often the grader denies a point that the reference denies."""
    kappa: Measure
    alpha: Measure


@dataclass(frozen=True, slots=True)
class RoundStability:
    """How consistent a grader is between its rounds, and how many rounds are unparseable."""

    rounds: int
    """The number of rounds of all texts, parseable or not."""
    unreadable: Measure
    """The share of rounds without a parseable reply, after all attempts."""
    pairs: int
    """The number of pairs of parseable rounds on the same criterion."""
    flips: Measure
    """The share of pairs of rounds that differ."""


@dataclass(frozen=True, slots=True)
class GraderCard:
    """The measured quality of one grader."""

    grader: str
    truth: str | None
    """The reference; None if no other grader graded the texts."""
    runs: tuple[str, ...]
    facts: GraderFacts
    texts: int
    """The number of texts on which the grader made a decision."""
    labelled: int
    """The number of these texts on which the reference also made a decision."""
    by_kind: tuple[TruthAgreement, ...]
    by_skill: tuple[TruthAgreement, ...]
    bias: GraderBias
    stability: RoundStability
    corrected: tuple[CorrectedScore, ...]
    simulated: tuple[str, ...] = ()
    """The simulated raters whose votes form the reference, and the grader itself if it is one."""


def grader_card(
    items: Sequence[TextUnderGraders], grader: str, truth: str | None, facts: GraderFacts | None = None
) -> GraderCard:
    """Make the card of one grader, with another grader as the reference."""
    own = [item for item in items if item.decides(grader)]
    if is_human(grader):  # raters answer only samples, so compare two raters on the texts that both rated
        own = [item for item in own if item.decides(truth)]
    criteria = of_labelled_groups(criterion_units(own, grader, truth))
    most = max((len(item.votes.get(grader, ())) for item in own), default=0)
    by_round = {number: criterion_units(own, grader, truth, number) for number in range(most)}
    rounds = {number: of_labelled_groups(units) for number, units in by_round.items() if units}
    facts = facts or GraderFacts()
    by_kind = _grouped(criteria, lambda unit: unit.kind)
    by_skill = _grouped((unit for unit in criteria if unit.skill is not None), lambda unit: unit.skill)
    full_marks = of_labelled_groups(full_marks_units(own, grader, truth))
    return GraderCard(
        grader=grader,
        truth=truth,
        runs=tuple(dict.fromkeys(item.run for item in items if grader in item.points)),
        facts=facts,
        texts=len(own),
        labelled=sum(item.decides(truth) for item in own),
        by_kind=_agreements([*((kind, by_kind.get(kind, [])) for kind in KINDS), ("full marks", full_marks)]),
        by_skill=_agreements([(str(skill), by_skill[skill]) for skill in sorted(by_skill, key=str)]),
        bias=grader_bias(criteria, rounds, facts.model),
        stability=round_stability(items, grader),
        corrected=tuple(corrected_scores(items, grader, truth)),
    )


def _agreements(groups: Iterable[tuple[str, Sequence[Unit]]]) -> tuple[TruthAgreement, ...]:
    """Compute the agreement in each group of units; omit groups without labels."""
    rows = []
    for criterion, units in groups:
        labelled = sum(unit.earned is not None for unit in units)
        if labelled:
            graded = len(units) if rates_of(units).is_known else labelled
            rows.append(TruthAgreement(criterion, labelled, graded, *truth_measures(units)[:6]))
    return tuple(rows)


def round_stability(items: Sequence[TextUnderGraders], grader: str) -> RoundStability:
    """Count the flips between the rounds of a grader, and its unparseable rounds."""
    voted = [item for item in items if item.votes.get(grader)]
    unreadable = [(vote is None, item.combination) for item in voted for vote in item.votes[grader]]
    flips = [
        (first != second, item.combination)
        for item in voted
        for index in range(item.k + 2)
        if index not in item.by_code
        for first, second in combinations([v[index] for v in item.votes[grader] if v and v[index] is not None], 2)
    ]
    of_rounds, of_pairs = (
        wilson_measure(effective_counts([value for value, _ in own], [cluster for _, cluster in own]))
        for own in (unreadable, flips)
    )
    return RoundStability(len(unreadable), of_rounds, len(flips), of_pairs)
