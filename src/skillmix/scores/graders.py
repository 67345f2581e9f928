"""How far graders can be trusted: agreement between rounds and between graders, and unreadable replies."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from skillmix.checkers.registry import checker_of
from skillmix.grading.answers import CUT_IN_THOUGHT
from skillmix.grading.points import Ballot, Points
from skillmix.scores.cells import Cell

Ratings = Sequence[Sequence[float | None]]
"""For each unit (a criterion of a text), one value per grader or round; None where the value is unreadable."""


def krippendorff_alpha(units: Ratings, level: Literal["nominal", "interval"] = "nominal") -> float | None:
    """Krippendorff's alpha; None when no two values can be compared or nothing varies."""
    values = sorted({value for unit in units for value in unit if value is not None})
    column = {value: i for i, value in enumerate(values)}
    counts = np.zeros((len(units), len(values)))
    for row, unit in enumerate(units):
        for value in unit:
            if value is not None:
                counts[row, column[value]] += 1
    counts = counts[counts.sum(axis=1) >= 2]
    if len(counts) == 0:
        return None
    pairable = counts.sum(axis=1)
    weighted = counts / (pairable - 1)[:, None]
    coincidences = weighted.T @ counts - np.diag(weighted.sum(axis=0))
    margins = coincidences.sum(axis=1)
    scale = np.array(values)
    distance = (scale[:, None] - scale[None, :]) ** 2 if level == "interval" else 1 - np.eye(len(values))
    expected = ((np.outer(margins, margins) - np.diag(margins)) * distance).sum() / (margins.sum() - 1)
    if expected == 0:
        return None
    return float(1 - (coincidences * distance).sum() / expected)


def cohen_kappa(first: Sequence[float | None], second: Sequence[float | None]) -> float | None:
    """Cohen's kappa of two raters over the units that both rated; None when chance agreement is total."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n
    values = {value for pair in pairs for value in pair}
    chance = sum(sum(a == v for a, _ in pairs) * sum(b == v for _, b in pairs) for v in values) / n**2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def flip_rate(units: Ratings) -> float | None:
    """How often two rounds on the same unit differ: the share of differing pairs of readable values."""
    pairs = flips = 0
    for unit in units:
        readable = [value for value in unit if value is not None]
        for i, value in enumerate(readable):
            pairs += len(readable) - i - 1
            flips += sum(value != other for other in readable[i + 1 :])
    return flips / pairs if pairs else None


Kind = Literal["skill", "topic", "sense"]
KINDS: Final[tuple[Kind, ...]] = ("skill", "topic", "sense")
"""The criteria that graders decide; the length is counted by code."""
Decider = Literal["model", "code"]


@dataclass(frozen=True, slots=True)
class RoundAgreement:
    """The rounds of one grader on one kind of criterion, apart for those that its model and its code decide."""

    run: str
    grader: str
    kind: Kind
    decider: Decider
    units: int
    """Criteria of texts with at least two readable rounds."""
    flips: float | None
    """The share of pairs of rounds that differ; None where code decides, because code gives every round its point."""
    alpha: float | None


@dataclass(frozen=True, slots=True)
class GraderAgreement:
    """Two graders on one kind of criterion, over the texts that both decided."""

    run: str
    first: str
    second: str
    kind: Kind
    units: int
    agree: float | None
    kappa: float | None
    alpha: float | None
    first_earned: float | None
    second_earned: float | None
    """The share of the units for which each grader gives the point."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """How often two graders decide differently on one criterion by name."""

    criterion: str
    units: int
    differ: int


@dataclass(frozen=True, slots=True)
class Readability:
    """The calls to one grader, and how many brought no readable reply."""

    run: str
    grader: str
    calls: int
    unreadable: int
    without_reply: int
    reasons: Mapping[str, int]


def round_agreement(run: str, ballots: Sequence[Ballot], with_code: Collection[str] = ()) -> list[RoundAgreement]:
    """Agreement between the rounds of each grader; `with_code` names graders whose skills with a checker code decides.

    Code gives the same point in every round. Counted with the votes of the model, these points would make a grader
    look as if it agreed with itself.
    """
    units: dict[tuple[str, Kind, Decider], list[list[float | None]]] = defaultdict(list)
    for ballot in ballots:
        votes = [r.points for r in ballot.readings if r is not None and r.points is not None]
        if len(votes) < 2:
            continue
        k = ballot.text.combination.k
        for index in range(k + 2):
            is_mixed = ballot.grader in with_code
            skills = ballot.text.combination.skills
            has_checker = is_mixed and index < len(skills) and checker_of(skills[index]) is not None
            decider: Decider = "code" if has_checker else "model"
            units[ballot.grader, kind_of(index, k), decider].append([vote[index] for vote in votes])
    return [
        _round_agreement(run, (grader, kind, decider), ratings)
        for grader in sorted({grader for grader, *_ in units})
        for kind in KINDS
        for decider in _DECIDERS
        if (ratings := units.get((grader, kind, decider)))
    ]


_DECIDERS: Final[tuple[Decider, ...]] = ("model", "code")


def _round_agreement(
    run: str, key: tuple[str, Kind, Decider], ratings: Sequence[Sequence[float | None]]
) -> RoundAgreement:
    if key[2] == "code":
        return RoundAgreement(run, *key, len(ratings), None, None)
    return RoundAgreement(run, *key, len(ratings), flip_rate(ratings), krippendorff_alpha(ratings))


Decided = tuple[Ballot, Points]


def grader_agreement(run: str, decided: Iterable[Decided]) -> tuple[list[GraderAgreement], list[Disagreement]]:
    """Agreement of every two graders, and the criteria they disagree on, worst first."""
    by_text: dict[tuple[str, str, int], dict[str, Decided]] = defaultdict(dict)
    for ballot, points in decided:
        text = ballot.text
        if text.answer.text:  # graders never see an empty answer
            by_text[text.student, text.combination.id, text.generation][ballot.grader] = (ballot, points)
    pairs: dict[tuple[str, str, Kind], list[tuple[float, float]]] = defaultdict(list)
    by_name: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for graders in by_text.values():
        names = sorted(graders)
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                ballot, points = graders[first]
                for index, a, b in _both(points, graders[second][1]):
                    k = ballot.text.combination.k
                    pairs[first, second, kind_of(index, k)].append((float(a), float(b)))
                    name = ballot.text.combination.skills[index] if index < k else kind_of(index, k)
                    by_name[name][0] += 1
                    by_name[name][1] += a != b
    agreements = [_agreement(run, key, pairs[key]) for key in sorted(pairs, key=lambda p: (*p[:2], KINDS.index(p[2])))]
    worst = sorted((Disagreement(n, *c) for n, c in by_name.items()), key=lambda d: (-d.differ / d.units, d.criterion))
    return agreements, worst


def _both(first: Points, second: Points) -> Iterable[tuple[int, bool, bool]]:
    for index, (a, b) in enumerate(zip(first[:-1], second[:-1], strict=True)):
        if a is not None and b is not None:
            yield index, a, b


def _agreement(run: str, key: tuple[str, str, Kind], pairs: list[tuple[float, float]]) -> GraderAgreement:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    return GraderAgreement(
        run=run,
        first=key[0],
        second=key[1],
        kind=key[2],
        units=len(pairs),
        agree=sum(a == b for a, b in pairs) / len(pairs),
        kappa=cohen_kappa(first, second),
        alpha=krippendorff_alpha([list(pair) for pair in pairs]),
        first_earned=sum(first) / len(first),
        second_earned=sum(second) / len(second),
    )


def kind_of(index: int, k: int) -> Kind:
    """The kind of the criterion with this number.

    >>> [kind_of(index, 2) for index in range(4)]
    ['skill', 'skill', 'topic', 'sense']
    """
    return "skill" if index < k else ("topic" if index == k else "sense")


@dataclass(frozen=True, slots=True)
class CriterionRates:
    """The share of decided points that are earned, by kind of criterion; None where no point is decided."""

    texts: int
    skill: float | None
    topic: float | None
    sense: float | None
    length: float | None


def criterion_rates(cells: Iterable[Cell]) -> CriterionRates:
    """Rates over the texts of cells; a text counts in every cell that contains it."""
    earned: Counter[str] = Counter()
    decided: Counter[str] = Counter()
    texts = 0
    for cell in cells:
        for points in (p for generations in cell.points for p in generations if p is not None):
            texts += 1
            kinds = ["skill"] * cell.key.k + ["topic", "sense", "length"]
            for kind, point in zip(kinds, points, strict=True):
                decided[kind] += point is not None
                earned[kind] += point is True

    def rate(kind: str) -> float | None:
        return earned[kind] / decided[kind] if decided[kind] else None

    return CriterionRates(texts, rate("skill"), rate("topic"), rate("sense"), rate("length"))


Reason = Literal["format", "in its thought", "refused", "skills", "others", "both", "undecided"]
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)


@dataclass(frozen=True, slots=True)
class Losses:
    """Why texts missed full marks."""

    texts: int
    full_marks: int
    reasons: Mapping[Reason, int]
    missing: int
    """Texts that are not written or not graded yet."""


def losses(cells: Iterable[Cell]) -> Losses:
    """Count why texts missed full marks; a text without the marker that still earns every point has full marks."""
    reasons: Counter[Reason] = Counter()
    texts = full = missing = 0
    for cell in cells:
        for points_of, statuses in zip(cell.points, cell.statuses, strict=True):
            for points, status in zip(points_of, statuses, strict=True):
                if points is None:
                    missing += 1
                    continue
                texts += 1
                full += all(points)
                if not all(points):
                    reasons[_reason(points, status)] += 1
    return Losses(texts, full, {reason: reasons[reason] for reason in REASONS}, missing)


def _reason(points: Points, status: str | None) -> Reason:
    if status == "refused":
        return "refused"
    if status == CUT_IN_THOUGHT:
        return "in its thought"
    if status in ("no marker", "empty"):
        return "format"
    if False not in points:
        return "undecided"
    skills, others = False in points[:-3], False in points[-3:]
    return "both" if skills and others else ("skills" if skills else "others")
