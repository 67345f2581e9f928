"""Measure how well graders agree with each other and with a reference, and correct full marks for a grader's errors.

The reference is also called the truth. Three shares determine all measures against it: how often the grader gives the
point, how often the truth gives the point if the grader does, and how often the truth gives the point if the grader
denies it. The first share comes from all graded units, and the other two come from the labeled units. Samples for
people may contain more texts with one outcome than with the other, but this does not bias sensitivity and specificity.
Shares of labeled units have Wilson intervals if every unit has a label. All other intervals are quantiles of draws of
the shares from their Jeffreys posteriors, Beta(x + 1/2, n - x + 1/2), with effective counts x and n.

Code denies full marks to some texts, regardless of the grader. All other texts are called open. The share of open texts
with full marks is estimated in one of three ways:

- from labels of the same texts: the share of given full marks times the share of these that are right, plus the share
  of denied full marks times the share of these that are wrong (post-stratification). This method needs no assumption
  about the errors on other texts;
- from the error rates of each kind of criterion: the mean over texts of the product over criteria of (given +
  specificity - 1) / (sensitivity + specificity - 1). This estimate is unbiased for any student if the grader
  errs on each criterion at those rates, independently of the other criteria of the text;
- from sensitivity and specificity of full marks (Rogan and Gladen), by the same formula for the whole text. These rates
  apply only to similar students, because they depend on how many criteria the failing texts miss.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from skillmix.scores.statistics.intervals import SEED, Counts, Floats, effective_counts, wilson_interval

Ratings = Sequence[Sequence[float | None]]
"""For each unit (a criterion of a text), one value per grader or round; None if the value is unparseable."""


def krippendorff_alpha(units: Ratings) -> float | None:
    """Compute Krippendorff's alpha of nominal values; None if no two values can be compared or all values are equal."""
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
    distance = 1 - np.eye(len(values))
    expected = ((np.outer(margins, margins) - np.diag(margins)) * distance).sum() / (margins.sum() - 1)
    if expected == 0:
        return None
    return float(1 - (coincidences * distance).sum() / expected)


def cohen_kappa(first: Sequence[float | None], second: Sequence[float | None]) -> float | None:
    """Compute Cohen's kappa of two raters over the units that both rated; None if chance agreement is 1."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n
    values = {value for pair in pairs for value in pair}
    chance = sum(sum(a == v for a, _ in pairs) * sum(b == v for _, b in pairs) for v in values) / n**2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def flip_rate(units: Ratings) -> float | None:
    """Compute the share of pairs of parseable rounds on the same unit that differ."""
    pairs = flips = 0
    for unit in units:
        readable = [value for value in unit if value is not None]
        for i, value in enumerate(readable):
            pairs += len(readable) - i - 1
            flips += sum(value != other for other in readable[i + 1 :])
    return flips / pairs if pairs else None


DRAWS: Final = 4000
_Value = TypeVar("_Value")


class Measure(NamedTuple):
    """A number with its 95% interval; None if unknown."""

    value: float | None
    low: float | None = None
    high: float | None = None


UNKNOWN: Final = Measure(None)


@dataclass(frozen=True, slots=True)
class GraderDecision:
    """One decision of a grader on a criterion or a text, and the reference label if there is one."""

    given: bool
    """Whether the grader gives the point."""
    earned: bool | None
    """Whether the reference gives the point; None without a label."""
    cluster: Hashable
    """Decisions with the same cluster are not independent."""
    weight: float
    """The number of decisions in the whole set that a labeled decision represents."""


class TruthMeasures(NamedTuple, Generic[_Value]):
    """Every measure of a grader against the reference, as estimates with intervals or as draws."""

    earned: _Value
    """How often the reference gives the point."""
    agreement: _Value
    sensitivity: _Value
    """How often the grader gives a point that is earned."""
    specificity: _Value
    """How often the grader denies a point that is not earned."""
    kappa: _Value
    """Cohen's kappa."""
    alpha: _Value
    """Krippendorff's alpha of two raters."""
    excess: _Value
    """How much more often the grader gives the point than the reference does."""


NO_MEASURES: Final = TruthMeasures(*[UNKNOWN] * 7)


@dataclass(frozen=True, slots=True)
class TruthRates:
    """The three shares from which every measure is computed."""

    given: Counts
    """How often the grader gives the point."""
    if_given: Counts
    """How often the reference gives the point if the grader gives it."""
    if_denied: Counts
    """How often the reference gives the point if the grader denies it."""

    @property
    def is_known(self) -> bool:
        """Whether there are labels for every share that the measures need."""
        needs_given, needs_denied = self.given.share > 0, self.given.share < 1
        has_labels = (self.if_given.size > 0 or not needs_given) and (self.if_denied.size > 0 or not needs_denied)
        return self.given.size > 0 and has_labels

    def point(self, correction: float = 1.0) -> TruthMeasures[Floats]:
        """Compute the point estimates of all measures; `correction` adjusts alpha for a finite sample."""
        shares = (np.array([counts.share]) for counts in (self.given, self.if_given, self.if_denied))
        return _measures_of(*shares, correction=correction)

    def draws(self, generator: np.random.Generator) -> TruthMeasures[Floats]:
        """Draw the measures from the Jeffreys posteriors of the shares."""
        return _measures_of(*(beta_draws(c, generator) for c in (self.given, self.if_given, self.if_denied)))


def beta_draws(counts: Counts, generator: np.random.Generator) -> Floats:
    """Draw a share from its Jeffreys posterior.

    The generator may reject and repeat a draw, so the last bit of a count could change all later draws. Rounding the
    counts ensures that machines with different floating-point errors draw the same numbers.
    """
    earned, size = round(counts.share * counts.size, _DIGITS), round(counts.size, _DIGITS)
    drawn: Floats = generator.beta(earned + 0.5, size - earned + 0.5, size=DRAWS)
    return drawn


_DIGITS: Final = 6


def _measures_of(
    given: Floats, if_given: Floats, if_denied: Floats, *, correction: float = 1.0
) -> TruthMeasures[Floats]:
    """Compute the measures that follow from the three shares; undetermined measures are nan."""
    hits, both_deny = given * if_given, (1 - given) * (1 - if_denied)
    earned, agreement = hits + (1 - given) * if_denied, hits + both_deny
    chance = given * earned + (1 - given) * (1 - earned)
    mean = (given + earned) / 2
    return TruthMeasures(
        earned,
        agreement,
        _ratio(hits, earned),
        _ratio(both_deny, 1 - earned),
        _ratio(agreement - chance, 1 - chance),
        1 - _ratio((1 - agreement) * correction, 2 * mean * (1 - mean)),
        given - earned,
    )


def _ratio(top: Floats, bottom: Floats) -> Floats:
    ratio: Floats = np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0)
    return ratio


def counts_of(values: Sequence[bool], decisions: Sequence[GraderDecision], *, weighted: bool = False) -> Counts:
    """Return the share of true values among some decisions, and the effective number of decisions."""
    weights = [decision.weight for decision in decisions] if weighted else None
    return effective_counts(values, [decision.cluster for decision in decisions], weights)


def rates_of(decisions: Sequence[GraderDecision]) -> TruthRates:
    """Compute the three shares of some decisions; if all decisions are labeled, their weights are ignored."""
    is_sample = any(decision.earned is None for decision in decisions)
    labelled = ([d for d in decisions if d.earned is not None and d.given == given] for given in (True, False))
    return TruthRates(
        counts_of([decision.given for decision in decisions], decisions),
        *(counts_of([bool(decision.earned) for decision in own], own, weighted=is_sample) for own in labelled),
    )


def truth_measures(decisions: Sequence[GraderDecision]) -> TruthMeasures[Measure]:
    """Compute every measure from a grader's decisions; measures that no labeled decision determines are unknown."""
    rates, labelled = rates_of(decisions), [decision for decision in decisions if decision.earned is not None]
    n = len(labelled)
    if not rates.is_known:
        # The labels cannot represent all decisions, but they still show the agreement on the labeled decisions.
        return NO_MEASURES if n in (0, len(decisions)) else truth_measures(labelled)
    point, draws = rates.point((2 * n - 1) / (2 * n)), rates.draws(np.random.default_rng(SEED))
    measures = TruthMeasures(*map(measure, point, draws))
    if n < len(decisions):
        return measures
    earned, missed = ([decision for decision in labelled if decision.earned == is_] for is_ in (True, False))
    return measures._replace(
        earned=wilson_measure(counts_of([bool(decision.earned) for decision in labelled], labelled)),
        agreement=wilson_measure(counts_of([decision.given == decision.earned for decision in labelled], labelled)),
        sensitivity=wilson_measure(counts_of([decision.given for decision in earned], earned)),
        specificity=wilson_measure(counts_of([not decision.given for decision in missed], missed)),
    )


def wilson_measure(counts: Counts) -> Measure:
    """Return a share with its Wilson interval; unknown if there are no units."""
    return Measure(counts.share, *wilson_interval(counts.share, counts.size)) if counts.size else UNKNOWN


def measure(point: Floats, draws: Floats) -> Measure:
    """Return an estimate with the middle 95% of draws; if the estimate is at a bound, the interval ends there."""
    value = float(point[0])
    known = draws[np.isfinite(draws)]
    if not np.isfinite(value) or not len(known):
        return UNKNOWN
    low, high = map(float, np.quantile(known, [0.025, 0.975]))
    return Measure(value, min(low, value), max(high, value))


def difference_of_excess(first: Sequence[GraderDecision], second: Sequence[GraderDecision]) -> Measure:
    """Compute how much more the grader exceeds the reference in the first decisions than in the second."""
    both = [rates_of(first), rates_of(second)]
    if not all(rates.is_known for rates in both):
        return UNKNOWN
    generator = np.random.default_rng(SEED)
    point = both[0].point().excess - both[1].point().excess
    return measure(point, both[0].draws(generator).excess - both[1].draws(generator).excess)


NOT_BETTER: Final = "the grader's sensitivity and specificity are not clearly better than chance"
OUTSIDE: Final = "the grader's share of full marks is inconsistent with its sensitivity and specificity"
_ONE_SIDED: Final = "no text that the grader passes has a label, or none that it fails"


class Corrected(NamedTuple):
    """A corrected share, or the reason why there is none."""

    share: Measure
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LabelledPool:
    """The labeled texts from which sensitivity and specificity are estimated."""

    others: Counts
    """How often the grader gives full marks to pool texts outside the scored cell."""
    own_share: float
    """The share of the pool's texts that belong to the scored cell; 0 if the labels come from other texts."""
    if_given: Counts
    if_denied: Counts

    @property
    def is_known(self) -> bool:
        """Whether there are labels of both outcomes."""
        return self.if_given.size > 0 and self.if_denied.size > 0


def corrected_by_labels(is_open: Counts, rates: TruthRates) -> Corrected:
    """Estimate the share of full marks from labels of the same texts."""
    if not rates.is_known:
        return Corrected(UNKNOWN, _ONE_SIDED)
    generator = np.random.default_rng(SEED)
    draws = _open_draws(is_open, generator) * rates.draws(generator).earned
    return Corrected(measure(is_open.share * rates.point().earned, draws))


def corrected_by_error_rates(is_open: Counts, given: Counts, pool: LabelledPool) -> Corrected:
    """Estimate the share of full marks from the grader's share, and its sensitivity and specificity in a pool."""
    if not pool.is_known:
        return Corrected(UNKNOWN, _ONE_SIDED)
    generator = np.random.default_rng(SEED)
    counts = (given, pool.others, pool.if_given, pool.if_denied)

    def shares(given: Floats, others: Floats, if_given: Floats, if_denied: Floats) -> TruthMeasures[Floats]:
        return _measures_of(pool.own_share * given + (1 - pool.own_share) * others, if_given, if_denied)

    drawn = [beta_draws(one, generator) for one in counts]
    of_pool = shares(*drawn)
    point = [np.array([one.share]) for one in counts]
    estimate = _rogan_gladen(point[0], shares(*point))
    # Check that sensitivity + specificity is above 1 in all but 2.5% of the draws.
    index = of_pool.sensitivity + of_pool.specificity - 1
    is_informative = bool(np.quantile(index[np.isfinite(index)], 0.025) > 0)
    if not is_informative or not np.isfinite(estimate[0]):
        return Corrected(UNKNOWN, NOT_BETTER)
    open_draws, found = _open_draws(is_open, generator), _rogan_gladen(drawn[0], of_pool)
    possible = (found >= 0) & (found <= 1)
    if float(np.mean(possible)) < _LEAST_POSSIBLE:
        return Corrected(UNKNOWN, OUTSIDE)
    share = measure(is_open.share * np.clip(estimate, 0, 1), open_draws * np.clip(found, 0, 1))
    if share.low is not None and share.low == share.high:
        # If nearly all draws are outside 0 to 1, the possible draws show how far the share may be from the boundary.
        share = measure(is_open.share * np.clip(estimate, 0, 1), (open_draws * found)[possible])
    return Corrected(share)


_LEAST_POSSIBLE: Final = 0.001
"""If fewer draws than this share are between 0 and 1, the error rates do not apply to these texts."""


class KindErrors(NamedTuple):
    """How often a grader gives the point for one kind of criterion if it is earned, and if it is not."""

    if_earned: Counts
    if_missed: Counts

    @property
    def is_known(self) -> bool:
        """Whether there are labels of both outcomes."""
        return self.if_earned.size > 0 and self.if_missed.size > 0


GivenAndDenied = tuple[tuple[int, int], ...]
"""For each kind of criterion, the number of points that the grader gives one text, and the number that it denies."""


def corrected_by_criteria(
    is_open: Counts, texts: Sequence[GivenAndDenied], clusters: Sequence[Hashable], rates: Sequence[KindErrors]
) -> Corrected:
    """Estimate the share of full marks from decisions on each text's criteria and the error rates of their kinds."""
    generator = np.random.default_rng(SEED)
    hits = np.stack([beta_draws(kind.if_earned, generator) for kind in rates])
    false_alarms = np.stack([beta_draws(kind.if_missed, generator) for kind in rates])
    if np.any(np.quantile(hits - false_alarms, 0.025, axis=1) <= 0):
        return Corrected(UNKNOWN, NOT_BETTER)
    patterns, number = np.unique(np.array(texts), axis=0, return_inverse=True)
    _, cluster = np.unique(np.array([str(name) for name in clusters]), return_inverse=True)
    counts = np.zeros((cluster.max() + 1, len(patterns)))
    np.add.at(counts, (cluster, number.reshape(-1)), 1.0)
    point = _product(patterns, *(np.array([[getattr(k, name).share] for k in rates]) for name in KindErrors._fields))
    share = counts.sum(axis=0) @ point / len(texts)
    # A Bayesian bootstrap over combinations adds the uncertainty of the scored texts.
    weight = generator.dirichlet(np.ones(len(counts)), size=hits.shape[1]) @ counts
    drawn = np.sum(weight * _product(patterns, hits, false_alarms).T, axis=1) / weight.sum(axis=1)
    if float(np.mean((drawn >= 0) & (drawn <= 1))) < _LEAST_POSSIBLE:
        return Corrected(UNKNOWN, OUTSIDE)
    draws = _open_draws(is_open, generator) * np.clip(drawn, 0, 1)
    return Corrected(measure(is_open.share * np.clip(share, 0, 1), draws))


def _product(patterns: NDArray[np.int64], hits: Floats, false_alarms: Floats) -> Floats:
    """For each pattern and draw, multiply the corrected decisions (1 or 0 on average) over all criteria."""
    power = patterns[:, :, :, None]
    given = (1 - false_alarms) / (hits - false_alarms)
    denied = -false_alarms / (hits - false_alarms)
    found: Floats = np.prod(given ** power[:, :, 0] * denied ** power[:, :, 1], axis=1)
    return found


def _rogan_gladen(given: Floats, shares: TruthMeasures[Floats]) -> Floats:
    index = shares.sensitivity + shares.specificity - 1
    estimate: Floats = np.divide(
        given + shares.specificity - 1, index, out=np.full_like(given, np.nan), where=np.abs(index) > 0
    )
    return estimate


def _open_draws(is_open: Counts, generator: np.random.Generator) -> Floats:
    """Draw the share of texts to which code does not deny full marks; all draws are 1 if code denies them to none."""
    drawn = beta_draws(is_open, generator)
    return np.ones_like(drawn) if is_open.share == 1 else drawn
