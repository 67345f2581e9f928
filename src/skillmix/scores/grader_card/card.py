"""A card for each grader: how far it agrees with the truth, where it errs, and scores corrected for its errors.

`grader_card(items, grader, truth)` is a pure function from texts under graders (`items.py`) to a card. "Truth" is the
grader that the others are compared with. It is not the truth itself: people and code err as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from skillmix.calls import is_human
from skillmix.scores.grader_card.bias import GraderBias, grader_bias
from skillmix.scores.grader_card.corrected import CorrectedScore, corrected_scores
from skillmix.scores.grader_card.items import TextUnderGraders
from skillmix.scores.grader_card.units import (
    Unit,
    as_units,
    criterion_units,
    full_marks_units,
    grouped,
    of_labelled_groups,
    round_units,
)
from skillmix.scores.graders import KINDS
from skillmix.scores.statistics.against_truth import UNKNOWN, Measure, rates_of, truth_measures
from skillmix.scores.statistics.effective_counts import effective_counts


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
