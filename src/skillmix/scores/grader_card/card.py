"""A card for each grader: how far it agrees with the truth, where it errs, and scores corrected for its errors.

`grader_card(items, grader, truth)` is a pure function from texts under graders (`items.py`) to a card.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from skillmix.scores.grader_card.items import TextUnderGraders


@dataclass(frozen=True, slots=True)
class Measure:
    """A number with its 95 % interval; None is unknown."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class TruthAgreement:
    """A grader against the truth on one kind of criterion, or on one skill."""

    criterion: str
    """"skill", "topic", "sense" or "full marks"; in the list by skill, the skill's name."""
    units: int
    """Criteria that the grader and the truth both decided."""
    texts: int
    """Texts that these criteria belong to."""
    earned: Measure
    """The share of points that the truth gives."""
    agreement: Measure
    sensitivity: Measure
    specificity: Measure
    kappa: Measure
    alpha: Measure


@dataclass(frozen=True, slots=True)
class GraderCard:
    """What is known about one grader."""

    grader: str
    truth: str
    by_kind: tuple[TruthAgreement, ...]
    by_skill: tuple[TruthAgreement, ...]


def grader_card(items: Sequence[TextUnderGraders], grader: str, truth: str) -> GraderCard:
    """The card of one grader against another one that is taken for the truth."""
    raise NotImplementedError
