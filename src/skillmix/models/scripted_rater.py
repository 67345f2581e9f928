"""A simulated person for tests and demonstrations: it reads scripted texts, and errs at known rates.

`scripted:rater?sensitivity=0.9&specificity=0.95` sees a criterion that a text meets with the probability .9, and denies
one that it does not meet with the probability .95. `unsure` is the share of criteria about which it is unsure. The
answers depend only on the rater's name, the text and the criterion.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final
from urllib.parse import parse_qsl

from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.models.scripted import Chance, shown_criteria
from skillmix.render import name_hint

_PREFIX: Final = "scripted:rater"


@dataclass(frozen=True, slots=True)
class ScriptedRater:
    """A simulated person; the rates are probabilities."""

    sensitivity: float = 1.0
    specificity: float = 1.0
    unsure: float = 0.0

    def votes(self, rater: str, combination: Combination, text: str, names: Sequence[str]) -> dict[str, int | None]:
        """The votes of a rater of this name on the first criteria of a scripted text, in the order of the rubric."""
        met = shown_criteria(combination, text)[: len(names)]
        chance = Chance(f"rater {rater} {combination.id} {text}")
        return {name: self._vote(name, is_met, chance) for name, is_met in zip(names, met, strict=True)}

    def _vote(self, name: str, is_met: bool, chance: Chance) -> int | None:
        if chance.falls(f"unsure {name}", self.unsure):
            return None
        is_right = chance.falls(f"right {name}", self.sensitivity if is_met else self.specificity)
        return int(is_met == is_right)


def scripted_rater(spec: str) -> ScriptedRater:
    """The simulated person that a spec describes; faults are errors."""
    head, _, query = spec.partition("?")
    if head != _PREFIX:
        hint = name_hint(head, ["human", _PREFIX], otherwise=f"Write human, or {_PREFIX}?sensitivity=0.9.")
        raise UserError(f"{spec!r} is not a rater.", hint=hint)
    known = [field.name for field in fields(ScriptedRater)]
    rates: dict[str, float] = {}
    for name, value in parse_qsl(query, keep_blank_values=True, max_num_fields=20):
        if name not in known:
            hint = name_hint(name, known, otherwise=f"There are: {', '.join(known)}.")
            raise UserError(f"A scripted rater has no rate {name!r}.", hint=hint)
        rates[name] = _rate(name, value)
    return ScriptedRater(**rates)


def _rate(name: str, value: str) -> float:
    try:
        rate = float(value)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        raise UserError(f"{name}={value} is not a rate of a scripted rater.", hint="Use a number from 0 to 1.")
    return rate
