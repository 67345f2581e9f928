"""From texts under graders to the units that a grader and the truth decide: criteria, or full marks of whole texts."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from skillmix.calls import PEOPLE, is_human
from skillmix.grading.points import Points
from skillmix.scores.grader_card.items import TextUnderGraders
from skillmix.scores.graders import Kind, kind_of
from skillmix.scores.statistics.against_truth import Units


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
