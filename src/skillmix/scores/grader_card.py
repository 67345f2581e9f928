"""A card for each grader: how far it agrees with the truth, where it errs, and scores corrected for its errors.

`grader_card(items, grader, truth)` is a pure function from texts under graders to a card. "Truth" is the grader that
the others are compared with. It is not the truth itself: people and code err as well. A person is a grader
`human:NAME`, code is the grader that is `rules:`, and a calibration set with known labels gives them under any name,
such as `labels`:

    item = TextUnderGraders(
        run="calibration", student="set", combination="metaphor/1", generation=0, skills=("metaphor",), words=31,
        points={"gpt": (True, True, True, True), "labels": (True, None, None, None)},
    )
    card = grader_card([item, ...], "gpt", "labels")

Points stand in the order skills, topic, sense, length. None is unknown: a rater was unsure, a reply was unreadable, or
the label does not say. A text without an entry for the truth is graded and has no label; such texts still tell how
often the grader gives a point, and scores of them can be corrected.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Final, Literal

from skillmix.calls import PEOPLE, is_human
from skillmix.grading.points import FULL_MARKS, Points, text_score
from skillmix.scores.graders import KINDS, Kind, kind_of
from skillmix.scores.statistics.against_truth import (
    UNKNOWN,
    Corrected,
    Decisions,
    KindErrors,
    LabelledPool,
    Measure,
    Units,
    corrected_by_criteria,
    corrected_by_error_rates,
    corrected_by_labels,
    difference_of_excess,
    rates_of,
    truth_measures,
)
from skillmix.scores.statistics.intervals import Counts, effective_counts

Vote = tuple[float | None, ...]
"""The points of one round as the grader gave them, in the order of `Points`."""


@dataclass(frozen=True, slots=True)
class TextUnderGraders:
    """One text, and the points that graders gave it."""

    run: str
    student: str
    combination: str
    """The id of the combination; texts of one combination are not independent of each other."""
    generation: int
    skills: tuple[str, ...]
    """In the order of the prompt."""
    words: int
    """The length of the text in words."""
    points: Mapping[str, Points]
    """By grader; a grader that never voted on the text has no entry."""
    votes: Mapping[str, tuple[Vote | None, ...]] = field(default_factory=dict)
    """By grader, the vote of each round; None if no reply of the round could be read."""
    settings: tuple[str, ...] = ()
    """The settings whose cells contain the text."""
    student_model: str | None = None
    """The spec of the student's model; None if unknown."""
    by_code: frozenset[int] = frozenset()
    """Criteria that code decides under every grader: the length, and skills that the text names."""

    @property
    def k(self) -> int:
        """The number of skills."""
        return len(self.skills)

    @property
    def group(self) -> tuple[str, str, int]:
        """The run, the student and k: texts of one group differ in nothing that the experiment decides."""
        return self.run, self.student, self.k

    def full_marks(self, grader: str | None) -> bool | None:
        """Whether a grader gives full marks; None if it did not decide."""
        points = self.points.get(grader or "")
        score = text_score(points, FULL_MARKS) if points else None
        return None if score is None else score == 1.0

    def decides(self, grader: str | None) -> bool:
        """Whether a grader decided a criterion that code leaves open."""
        points = self.points.get(grader or "", ())
        return any(point is not None and index not in self.by_code for index, point in enumerate(points))

    @property
    def is_denied_by_code(self) -> bool:
        """Whether code alone denies full marks, so that no error of a grader can change them."""
        decided = ({points[index] for points in self.points.values()} - {None} for index in self.by_code)
        return any(values == {False} for values in decided)


def people_in(items: Iterable[TextUnderGraders]) -> list[str]:
    """The people who rated some text, by name."""
    return sorted({grader for item in items for grader in item.points if is_human(grader)})


def with_people(items: Sequence[TextUnderGraders]) -> list[TextUnderGraders]:
    """The same texts with the majority of people as one more grader, `people`."""
    return [replace(item, points={**item.points, **_majority(item)}) for item in items]


def _majority(item: TextUnderGraders) -> dict[str, Points]:
    rated = [points for grader, points in item.points.items() if is_human(grader)]
    return {PEOPLE: tuple(map(_more_than_half, zip(*rated, strict=True)))} if rated else {}


def _more_than_half(points: Sequence[bool | None]) -> bool | None:
    """The answer of more than half of the people; None for a tie, and where too many are unsure."""
    for answer in (True, False):
        if 2 * points.count(answer) > len(points):
            return answer
    return None


@dataclass(frozen=True, slots=True)
class Unit:
    """One decision of a grader, and the truth where it is known."""

    item: TextUnderGraders
    index: int | None
    """The number of the criterion; None for full marks."""
    given: bool
    earned: bool | None
    weight: float

    @property
    def kind(self) -> Kind | None:
        """The kind of the criterion; None for full marks."""
        return None if self.index is None else kind_of(self.index, self.item.k)

    @property
    def skill(self) -> str | None:
        """The skill; None for other criteria."""
        return self.item.skills[self.index] if self.index is not None and self.index < self.item.k else None


def as_units(units: Iterable[Unit]) -> Units:
    """Units in the form of the statistics; texts of one combination are one cluster."""
    found = list(units)
    return Units(
        [unit.given for unit in found],
        [unit.earned for unit in found],
        [unit.item.combination for unit in found],
        [unit.weight for unit in found],
    )


def of_labelled_groups(units: Sequence[Unit]) -> list[Unit]:
    """The units of every run, student and k that has a label.

    How often a grader is right where it gives a point depends on how often the point is earned, so the labels of one
    student say nothing about the points of another one.
    """
    groups = {unit.item.group for unit in units if unit.earned is not None}
    return [unit for unit in units if unit.item.group in groups]


def criterion_units(items: Sequence[TextUnderGraders], grader: str, truth: str | None) -> list[Unit]:
    """Every skill, topic and sense that the grader decided and code did not.

    A criterion that the truth leaves open in a text with a label is left out: it was asked for and stays unknown.
    """
    return [
        Unit(item, index, given, earned, weight)
        for item, label, weight in _labelled(items, truth)
        for index, given in _open_criteria(item, item.points.get(grader, ()))
        if (earned := label[index] if label else None) is not None or not label
    ]


def _labelled(items: Sequence[TextUnderGraders], truth: str | None) -> Iterator[tuple[TextUnderGraders, Points, float]]:
    """Each text with its label, which is empty if the truth decides nothing, and its weight."""
    for item, weight in zip(items, label_weights(items, truth), strict=True):
        yield item, item.points[truth] if truth is not None and item.decides(truth) else (), weight


def _open_criteria(item: TextUnderGraders, points: Points) -> Iterator[tuple[int, bool]]:
    """Number and point of every skill, topic and sense that is decided, and not by code."""
    for index, given in enumerate(points[:-1]):
        if given is not None and index not in item.by_code:
            yield index, given


def full_marks_units(items: Sequence[TextUnderGraders], grader: str, truth: str | None) -> list[Unit]:
    """Full marks of every text that the grader decided, unless code alone denies them.

    A text whose full marks the truth leaves open has no label.
    """
    units = []
    for item, label, weight in _labelled(items, truth):
        given = item.full_marks(grader)
        if given is not None and not item.is_denied_by_code:
            units.append(Unit(item, None, given, item.full_marks(truth) if label else None, weight))
    return units


def round_units(items: Sequence[TextUnderGraders], grader: str, truth: str | None) -> dict[int, list[Unit]]:
    """The criteria as each round of the grader voted on them, by number of the round."""
    units: dict[int, list[Unit]] = defaultdict(list)
    for item, label, weight in _labelled(items, truth):
        for number, vote in enumerate(item.votes.get(grader, ())):
            points = tuple(None if value is None else value > _HALF for value in vote or ())
            for index, given in _open_criteria(item, points):
                if not label or label[index] is not None:
                    earned = label[index] if label else None
                    units[number].append(Unit(item, index, given, earned, weight))
    return dict(sorted(units.items()))


_HALF = 0.5
"""Half a point in one round alone would not earn the point."""


def grouped(units: Iterable[Unit], key: Callable[[Unit], Hashable]) -> Mapping[Hashable, list[Unit]]:
    """Units by a property."""
    groups: dict[Hashable, list[Unit]] = defaultdict(list)
    for unit in units:
        groups[key(unit)].append(unit)
    return groups


def label_weights(items: Sequence[TextUnderGraders], truth: str | None) -> list[float]:
    """How many texts each labelled text stands for.

    People rate a sample that holds some students, k and outcomes more often than the run does. A stratum is a group of
    texts (a run, a student and a k) and what each grader says about their full marks. A stratum without labels is
    counted with the others of the same outcomes, unless its whole group has none.
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
"""Words that begin the names of models and folders and name no family."""


def family_of(spec: str | None) -> str | None:
    """The family of a model: the first word of its name; None if the spec names no model.

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
    """How many more points a grader gives than the truth, in one group of criteria."""

    by: BiasBy
    group: str
    units: int
    """Criteria that the grader and the truth both decided."""
    excess: Measure
    """The share of points that the grader gives, minus the share that the truth gives."""
    agreement: Measure


@dataclass(frozen=True, slots=True)
class GraderBias:
    """The errors of a grader by group, and whether it favours students of its own family."""

    rows: tuple[BiasRow, ...]
    favours_own_family: Measure
    """The excess on students of its own family minus that on others; unknown if one of them has no label."""


def grader_bias(units: Sequence[Unit], rounds: Mapping[int, Sequence[Unit]], model: str | None) -> GraderBias:
    """The bias of a grader over its criteria; `rounds` has the same criteria as each round voted on them."""
    own, others = _families(units, family_of(model))
    # A row for each position of the skill in the prompt; none if every prompt has one skill.
    skills = [unit for unit in units if unit.kind == "skill" and unit.item.k > 1]
    most = max((unit.item.k for unit in skills), default=0)
    by_position = [
        _row("position", f"skill {index + 1}", [unit for unit in skills if unit.index == index])
        for index in range(most)
    ]
    rows = [
        _row("all", "all", units),
        *(_row("student", str(name), group) for name, group in sorted(grouped(units, _student).items(), key=str)),
        *([_row("family", OWN_FAMILY, own), _row("family", OTHER_FAMILIES, others)] if own and others else []),
        *(_row("length", name, group) for name, group in _by_length(units)),
        *by_position,
        *([_row("round", f"round {number + 1}", own) for number, own in rounds.items()] if len(rounds) > 1 else []),
    ]
    known = tuple(row for row in rows if row.units)
    return GraderBias(known, difference_of_excess(as_units(own), as_units(others)) if own and others else UNKNOWN)


def _student(unit: Unit) -> str:
    return unit.item.student


def _row(by: BiasBy, group: str, units: Iterable[Unit]) -> BiasRow:
    found = list(units)
    measures = truth_measures(as_units(found))
    labelled = sum(unit.earned is not None for unit in found)
    return BiasRow(by, group, labelled, measures.excess, measures.agreement)


def _families(units: Sequence[Unit], family: str | None) -> tuple[list[Unit], list[Unit]]:
    """Units on students of a family, and on students of other known families."""
    known = [(unit, family_of(unit.item.student_model)) for unit in units]
    own = [unit for unit, name in known if family is not None and name == family]
    return own, [unit for unit, name in known if family is not None and name not in (None, family)]


def _by_length(units: Sequence[Unit]) -> Iterator[tuple[str, list[Unit]]]:
    """Units of the short, the medium and the long third of the texts."""
    lengths = sorted({id(unit.item): unit.item.words for unit in units}.values())
    if not lengths or lengths[0] == lengths[-1]:
        return
    cuts = [-1, lengths[(len(lengths) - 1) // 3], lengths[2 * (len(lengths) - 1) // 3], lengths[-1]]
    for name, (above, most) in zip(THIRDS, pairwise(cuts), strict=True):
        own = [unit for unit in units if above < unit.item.words <= most]
        if own:
            shortest, longest = min(u.item.words for u in own), max(u.item.words for u in own)
            yield f"{name}, {shortest} to {longest} words", own


FEWEST_LABELS: Final = 10
"""With fewer labels of an outcome in a cell, the errors at the same k in all cells are used instead."""
Method = Literal["truth", "own labels", "criteria", "error rates"]
NO_LABELS: Final = "no text of this k has a label"


@dataclass(frozen=True, slots=True)
class CorrectedScore:
    """The share of single texts with full marks: as the grader says, and corrected."""

    run: str
    student: str
    setting: str
    k: int
    texts: int
    """Texts whose full marks the grader decided."""
    labelled: int
    """Those of them with a label for full marks; texts that code denies full marks need none."""
    raw: Measure
    corrected: Measure
    method: Method | None
    """truth: every text has a label; own labels: a sample of these texts; criteria and error rates: other texts."""
    problem: str | None
    """Why there is no corrected score."""


def corrected_scores(items: Sequence[TextUnderGraders], grader: str, truth: str | None) -> list[CorrectedScore]:
    """The scores of each run, student, setting and k under a grader."""
    decided = [item for item in items if item.full_marks(grader) is not None]
    cells: dict[tuple[str, str, str, int], list[TextUnderGraders]] = defaultdict(list)
    for item in decided:
        for setting in item.settings:
            cells[item.run, item.student, setting, item.k].append(item)
    units = full_marks_units(decided, grader, truth)
    by_item = {id(unit.item): unit for unit in units}
    pools: dict[int, list[Unit]] = defaultdict(list)
    for unit in of_labelled_groups(units):
        pools[unit.item.k].append(unit)
    criteria = _Criteria.of(criterion_units(decided, grader, truth))
    scores = []
    for key, own in sorted(cells.items()):
        open_units = [by_item[id(item)] for item in own if id(item) in by_item]
        scores.append(_score(key, own, open_units, pools[key[3]], grader, criteria))
    return scores


@dataclass(frozen=True, slots=True)
class _Criteria:
    """The grader's decisions on the criteria of each text, and how it errs on each kind of criterion."""

    decisions: Mapping[int, Decisions]
    """By the identity of the text, the number of points given and denied for each kind."""
    rates: Mapping[int, tuple[KindErrors, ...]]
    """By k, the error rates of each kind."""

    @classmethod
    def of(cls, units: Sequence[Unit]) -> "_Criteria":
        decisions: dict[int, list[list[int]]] = defaultdict(lambda: [[0, 0] for _ in KINDS])
        labelled: dict[tuple[int, str | None, bool], list[Unit]] = defaultdict(list)
        for unit in units:
            decisions[id(unit.item)][KINDS.index(unit.kind)][not unit.given] += 1
            if unit.earned is not None:
                labelled[unit.item.k, unit.kind, unit.earned].append(unit)
        rates = {
            k: tuple(KindErrors(*(_given(labelled[k, kind, earned]) for earned in (True, False))) for kind in KINDS)
            for k in {unit.item.k for unit in units}
        }
        return cls({text: tuple((g, d) for g, d in found) for text, found in decisions.items()}, rates)

    def correct(self, is_open: Counts, items: Sequence[TextUnderGraders]) -> Corrected | None:
        """The corrected share of texts that code leaves open; None if some kind of criterion lacks labels."""
        texts = [self.decisions.get(id(item), ((0, 0),) * len(KINDS)) for item in items]
        rates = self.rates.get(items[0].k, ())
        used = [kind for kind in range(len(rates)) if any(text[kind] != (0, 0) for text in texts)]
        if not used or not all(rates[kind].is_known for kind in used):
            return None
        chosen = [tuple(text[kind] for kind in used) for text in texts]
        return corrected_by_criteria(is_open, chosen, [i.combination for i in items], [rates[kind] for kind in used])


def _given(units: Sequence[Unit]) -> Counts:
    return effective_counts(
        [unit.given for unit in units], [unit.item.combination for unit in units], [unit.weight for unit in units]
    )


def _score(
    key: tuple[str, str, str, int],
    items: Sequence[TextUnderGraders],
    own: Sequence[Unit],
    pool: Sequence[Unit],
    grader: str,
    criteria: _Criteria,
) -> CorrectedScore:
    raw = _counts([item.full_marks(grader) is True for item in items], items)
    labelled = sum(unit.earned is not None for unit in own)
    method, corrected = _correct(items, own, pool, criteria)
    return CorrectedScore(
        *key,
        texts=len(items),
        labelled=labelled,
        raw=Measure(raw.share, *raw.wilson),
        corrected=corrected.share,
        method=method,
        problem=corrected.problem,
    )


def _correct(
    items: Sequence[TextUnderGraders], own: Sequence[Unit], pool: Sequence[Unit], criteria: _Criteria
) -> tuple[Method | None, Corrected]:
    if all(unit.earned is not None for unit in own):
        earned = {id(unit.item) for unit in own if unit.earned}
        counts = _counts([id(item) in earned for item in items], items)
        return "truth", Corrected(Measure(counts.share, *counts.wilson))
    left_open = {id(unit.item) for unit in own}
    is_open = _counts([id(item) in left_open for item in items], items)
    if _has_enough_labels(own):
        return "own labels", corrected_by_labels(is_open, rates_of(as_units(own)))
    if not pool:
        return None, Corrected(UNKNOWN, NO_LABELS)
    by_criteria = criteria.correct(is_open, [unit.item for unit in own])
    if by_criteria is not None:
        return (None if by_criteria.problem else "criteria"), by_criteria
    corrected = corrected_by_error_rates(is_open, rates_of(as_units(own)).given, _pool(own, pool))
    return (None if corrected.problem else "error rates"), corrected


def _has_enough_labels(units: Sequence[Unit]) -> bool:
    """Whether each outcome of the grader has ten labels, or a label for each of its texts."""
    for given in (True, False):
        same = [unit for unit in units if unit.given == given]
        labelled = sum(unit.earned is not None for unit in same)
        if labelled < min(FEWEST_LABELS, len(same)):
            return False
    return True


def _pool(own: Sequence[Unit], pool: Sequence[Unit]) -> LabelledPool:
    here = {id(unit) for unit in own}
    others = [unit for unit in pool if id(unit) not in here]
    rates = rates_of(as_units(pool))
    own_share = 1 - len(others) / len(pool)
    return LabelledPool(rates_of(as_units(others)).given, own_share, rates.if_given, rates.if_denied)


def _counts(values: Sequence[bool], items: Sequence[TextUnderGraders]) -> Counts:
    return effective_counts(values, [item.combination for item in items])


@dataclass(frozen=True, slots=True)
class GraderFacts:
    """What a journal or an experiment says about a grader; None is unknown."""

    model: str | None = None
    """The spec of its model."""
    cost_usd: float | None = None
    """What all its calls cost."""
    texts: int | None = None
    """Texts that the calls were about."""

    @property
    def cost_per_text(self) -> float | None:
        """Cost of a text, all rounds and attempts together."""
        return None if self.cost_usd is None or not self.texts else self.cost_usd / self.texts


@dataclass(frozen=True, slots=True)
class TruthAgreement:
    """A grader against the truth on one kind of criterion, or on one skill."""

    criterion: str
    """`skill`, `topic`, `sense` or `full marks`; in the list by skill, the skill's name."""
    units: int
    """Criteria that the grader and the truth both decided."""
    graded: int
    """Criteria that the measures stand for: those that the grader decided in texts of students and k with labels, or
    only those with labels if no label is of a criterion that the grader gives, or none of one that it denies."""
    earned: Measure
    """The share of points that the truth gives."""
    agreement: Measure
    sensitivity: Measure
    """How often the grader gives a point that the truth gives."""
    specificity: Measure
    """How often the grader denies a point that the truth denies."""
    kappa: Measure
    alpha: Measure


@dataclass(frozen=True, slots=True)
class RoundStability:
    """How steady a grader is between its rounds, and how many of its rounds could not be read."""

    rounds: int
    """Rounds of all texts, readable or not."""
    unreadable: Measure
    """The share of rounds without a readable reply, after all attempts."""
    pairs: int
    """Pairs of readable rounds on the same criterion."""
    flips: Measure
    """The share of these pairs that differ."""


@dataclass(frozen=True, slots=True)
class GraderCard:
    """What is known about one grader."""

    grader: str
    truth: str | None
    """None if nobody else graded the texts, so that there is nothing to compare with."""
    runs: tuple[str, ...]
    facts: GraderFacts
    texts: int
    """Texts with a decision of the grader."""
    labelled: int
    """Those of them on which the truth decides a criterion too."""
    by_kind: tuple[TruthAgreement, ...]
    by_skill: tuple[TruthAgreement, ...]
    bias: GraderBias
    stability: RoundStability
    corrected: tuple[CorrectedScore, ...]
    simulated: tuple[str, ...] = ()
    """Raters behind the truth, or behind the grader itself, that are simulated, not people."""


def grader_card(
    items: Sequence[TextUnderGraders], grader: str, truth: str | None, facts: GraderFacts | None = None
) -> GraderCard:
    """The card of one grader against another one that is taken for the truth."""
    own = [item for item in items if item.decides(grader)]
    if is_human(grader):  # raters answer about samples: two of them are compared on the texts that both rated
        own = [item for item in own if item.decides(truth)]
    criteria = of_labelled_groups(criterion_units(own, grader, truth))
    rounds = {n: of_labelled_groups(units) for n, units in round_units(own, grader, truth).items()}
    known = facts or GraderFacts()
    by_skill = grouped((unit for unit in criteria if unit.skill is not None), lambda unit: unit.skill)
    return GraderCard(
        grader=grader,
        truth=truth,
        runs=tuple(dict.fromkeys(item.run for item in items if grader in item.points)),
        facts=known,
        texts=len(own),
        labelled=sum(item.decides(truth) for item in own),
        by_kind=_known(
            *(_agreement(kind, [unit for unit in criteria if unit.kind == kind]) for kind in KINDS),
            _agreement("full marks", of_labelled_groups(full_marks_units(own, grader, truth))),
        ),
        by_skill=_known(*(_agreement(str(skill), by_skill[skill]) for skill in sorted(by_skill, key=str))),
        bias=grader_bias(criteria, rounds, known.model),
        stability=round_stability(items, grader),
        corrected=tuple(corrected_scores(items, grader, truth)),
    )


def _known(*rows: TruthAgreement) -> tuple[TruthAgreement, ...]:
    return tuple(row for row in rows if row.units)


def _agreement(criterion: str, units: Sequence[Unit]) -> TruthAgreement:
    found = as_units(units)
    measures = truth_measures(found)
    labelled = sum(unit.earned is not None for unit in units)
    return TruthAgreement(
        criterion=criterion,
        units=labelled,
        graded=len(units) if rates_of(found).is_known else labelled,
        earned=measures.earned,
        agreement=measures.agreement,
        sensitivity=measures.sensitivity,
        specificity=measures.specificity,
        kappa=measures.kappa,
        alpha=measures.alpha,
    )


def round_stability(items: Sequence[TextUnderGraders], grader: str) -> RoundStability:
    """Flips between the rounds of a grader, and its unreadable rounds."""
    voted = [item for item in items if item.votes.get(grader)]
    unreadable = [(vote is None, item.combination) for item in voted for vote in item.votes[grader]]
    flips = [
        (first != second, item.combination)
        for item in voted
        for index in range(item.k + 2)
        if index not in item.by_code
        for first, second in combinations(_values(item, grader, index), 2)
    ]
    return RoundStability(len(unreadable), _share(unreadable), len(flips), _share(flips))


def _values(item: TextUnderGraders, grader: str, index: int) -> list[float]:
    votes = [vote[index] for vote in item.votes[grader] if vote is not None]
    return [value for value in votes if value is not None]


def _share(values: Sequence[tuple[bool, str]]) -> Measure:
    counts = effective_counts([value for value, _ in values], [cluster for _, cluster in values])
    return Measure(counts.share, *counts.wilson) if counts.size else UNKNOWN
