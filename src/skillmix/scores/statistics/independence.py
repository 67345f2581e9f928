"""What full marks would be if skills succeeded independently of one another."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class TextOutcome:
    """One fully decided text: which of its skills it shows, and whether it meets the other three criteria."""

    skills: Mapping[str, bool]
    others_met: bool

    @property
    def full_marks(self) -> bool:
        """Everything earned."""
        return self.others_met and all(self.skills.values())


@dataclass(frozen=True, slots=True)
class Independence:
    """Observed one-try full marks beside what independent skills would give."""

    texts: int
    observed: float | None
    expected_same_k: float | None
    """From each skill's rate in texts of the same k."""
    expected_k1: float | None
    """From each skill's rate alone (k = 1); None where a skill was never tried alone."""
    without_k1_rate: int
    """Texts left out of expected_k1 for want of a rate."""


def independence(texts: Sequence[TextOutcome], alone: Sequence[TextOutcome]) -> Independence:
    """Compare texts of one k with products of per-skill rates, each times the rate of the other three criteria."""
    if not texts:
        return Independence(0, None, None, None, 0)
    others = sum(text.others_met for text in texts) / len(texts)
    same_k = _products(texts, skill_rates(texts))
    k1 = _products(texts, skill_rates(alone))
    return Independence(
        texts=len(texts),
        observed=sum(text.full_marks for text in texts) / len(texts),
        expected_same_k=others * sum(same_k) / len(same_k),
        expected_k1=others * sum(k1) / len(k1) if k1 else None,
        without_k1_rate=len(texts) - len(k1),
    )


def skill_rates(texts: Sequence[TextOutcome]) -> dict[str, float]:
    """How often each skill is shown when asked for."""
    shown: dict[str, list[bool]] = defaultdict(list)
    for text in texts:
        for skill, is_shown in text.skills.items():
            shown[skill].append(is_shown)
    return {skill: sum(outcomes) / len(outcomes) for skill, outcomes in shown.items()}


def _products(texts: Sequence[TextOutcome], rates: Mapping[str, float]) -> list[float]:
    return [prod(rates[s] for s in text.skills) for text in texts if all(s in rates for s in text.skills)]
