"""Measures of a grader against the truth, and shares of full marks corrected for its errors, with 95% intervals.

Three shares determine all measures: how often the grader gives the point, how often the truth gives it where the
grader does, and how often the truth gives it where the grader denies it. The first comes from all graded units and the
other two from the labelled ones. So a sample with more texts of one outcome than of the other, as people are given,
does not bias sensitivity and specificity. Shares of labelled units have Wilson intervals if every unit has a label. All
other intervals are quantiles of draws of the shares from their Jeffreys posteriors, Beta(x + 1/2, n - x + 1/2), with
effective counts x and n.

Some texts get no full marks whatever a grader says: code denies them. `Open` is the share of the other texts. Among
these, the share with full marks is estimated in one of three ways:

- from labels of the same texts: the share given times the share right among those, plus the share denied times the
  share wrong among those (post-stratification). This needs no assumption on the errors elsewhere;
- from the error rates of each kind of criterion: the mean over texts of the product over criteria of (given +
  specificity - 1) / (sensitivity + specificity - 1). It is unbiased for any student if the grader errs on each
  criterion at those rates, independently of the other criteria of the text;
- from sensitivity and specificity of full marks (Rogan and Gladen), by the same formula for the whole text. The rates
  of full marks depend on how many criteria the failing texts miss, so they hold only for students alike.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmix.scores.statistics.intervals import SEED, Counts, Floats, Interval, effective_counts

DRAWS: Final = 4000


class Measure(NamedTuple):
    """A number with its 95 % interval; None is unknown."""

    value: float | None
    low: float | None = None
    high: float | None = None


UNKNOWN: Final = Measure(None)


class Units(NamedTuple):
    """Decisions of a grader on criteria or texts, in parallel lists."""

    given: Sequence[bool]
    """Whether the grader gives the point."""
    earned: Sequence[bool | None]
    """Whether the truth does; None without a label."""
    clusters: Sequence[Hashable]
    """Units of one cluster are not independent."""
    weights: Sequence[float]
    """How many units of the whole set each labelled unit stands for."""


@dataclass(frozen=True, slots=True)
class TruthRates:
    """The three shares behind every measure."""

    given: Counts
    """How often the grader gives the point."""
    if_given: Counts
    """How often the truth gives the point where the grader does."""
    if_denied: Counts
    """How often the truth gives the point where the grader denies it."""

    @property
    def is_known(self) -> bool:
        """Whether there is a label wherever one is needed."""
        needs_given, needs_denied = self.given.share > 0, self.given.share < 1
        has_labels = (self.if_given.size > 0 or not needs_given) and (self.if_denied.size > 0 or not needs_denied)
        return self.given.size > 0 and has_labels

    def point(self) -> "TruthShares":
        """The estimates."""
        return TruthShares(*(np.array([counts.share]) for counts in (self.given, self.if_given, self.if_denied)))

    def draws(self, generator: np.random.Generator, number: int = DRAWS) -> "TruthShares":
        """Draws from the Jeffreys posteriors."""
        return TruthShares(*(beta_draws(c, generator, number) for c in (self.given, self.if_given, self.if_denied)))


def beta_draws(counts: Counts, generator: np.random.Generator, number: int = DRAWS) -> Floats:
    """Draws of a share from its Jeffreys posterior.

    A draw may be rejected and made again, so that the last bit of a count could change all later draws. Counts are
    rounded, so that machines which round differently draw the same numbers.
    """
    earned, size = round(counts.share * counts.size, _DIGITS), round(counts.size, _DIGITS)
    drawn: Floats = generator.beta(earned + 0.5, size - earned + 0.5, size=number)
    return drawn


_DIGITS: Final = 6


class TruthShares(NamedTuple):
    """Values of the three shares, and the measures that follow from them."""

    given: Floats
    if_given: Floats
    if_denied: Floats

    @property
    def hits(self) -> Floats:
        """The share of units for which both give the point."""
        return self.given * self.if_given

    @property
    def misses(self) -> Floats:
        """The share of units for which only the truth gives the point."""
        return (1 - self.given) * self.if_denied

    @property
    def earned(self) -> Floats:
        """The share of units for which the truth gives the point."""
        return self.hits + self.misses

    @property
    def agreement(self) -> Floats:
        """The share of units on which both agree."""
        return self.hits + (1 - self.given) * (1 - self.if_denied)

    @property
    def sensitivity(self) -> Floats:
        """How often the grader gives a point that is earned; nan if none is."""
        return _ratio(self.hits, self.earned)

    @property
    def specificity(self) -> Floats:
        """How often the grader denies a point that is not earned; nan if every one is."""
        return _ratio((1 - self.given) * (1 - self.if_denied), 1 - self.earned)

    @property
    def excess(self) -> Floats:
        """How much more often the grader gives the point than the truth."""
        return self.given - self.earned

    @property
    def kappa(self) -> Floats:
        """Cohen's kappa; nan if chance agreement is total."""
        chance = self.given * self.earned + (1 - self.given) * (1 - self.earned)
        return _ratio(self.agreement - chance, 1 - chance)

    def alpha(self, correction: float = 1.0) -> Floats:
        """Krippendorff's alpha of two raters; nan if nothing varies. The correction is for a finite sample."""
        mean = (self.given + self.earned) / 2
        return 1 - _ratio((1 - self.agreement) * correction, 2 * mean * (1 - mean))


def _ratio(top: Floats, bottom: Floats) -> Floats:
    ratio: Floats = np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0)
    return ratio


class TruthMeasures(NamedTuple):
    """Every measure of a grader against the truth."""

    earned: Measure
    agreement: Measure
    sensitivity: Measure
    specificity: Measure
    kappa: Measure
    alpha: Measure
    excess: Measure


NO_MEASURES: Final = TruthMeasures(*[UNKNOWN] * 7)


def rates_of(units: Units) -> TruthRates:
    """The three shares of some units."""
    given = effective_counts(units.given, units.clusters)
    labelled = _labelled(units)
    return TruthRates(
        given,
        *(
            _counts([(label.earned, label) for label in labelled if label.given == outcome])
            for outcome in (True, False)
        ),
    )


def only_labelled(units: Units) -> Units:
    """The units with a label, each standing for itself.

    If the grader denies a point somewhere and no such unit has a label, the labels say nothing about all units, but
    they still show how the two agree on the labelled ones.
    """
    rows = [row[:3] for row in zip(*units, strict=True) if row[1] is not None]
    given, earned, clusters = zip(*rows, strict=True) if rows else ((), (), ())
    return Units(given, earned, clusters, (1.0,) * len(rows))


class _Label(NamedTuple):
    given: bool
    earned: bool
    cluster: Hashable
    weight: float


def _labelled(units: Units) -> list[_Label]:
    """The units with a label; if all have one, each stands for itself alone."""
    rows = zip(*units, strict=True)
    labels = [_Label(given, earned, cluster, weight) for given, earned, cluster, weight in rows if earned is not None]
    return labels if len(labels) < len(units.given) else [label._replace(weight=1.0) for label in labels]


def _counts(values: Sequence[tuple[bool, _Label]]) -> Counts:
    labels = [label for _, label in values]
    return effective_counts(
        [value for value, _ in values],
        [label.cluster for label in labels],
        [label.weight for label in labels],
    )


def truth_measures(units: Units) -> TruthMeasures:
    """Every measure of some units; unknown where no unit with a label can tell."""
    rates, labelled = rates_of(units), _labelled(units)
    if not rates.is_known:
        return NO_MEASURES if len(labelled) in (0, len(units.given)) else truth_measures(only_labelled(units))
    n = len(labelled)
    point, draws = rates.point(), rates.draws(np.random.default_rng(SEED))
    by_draws = {name: measure(getattr(point, name), getattr(draws, name)) for name in _BY_DRAWS}
    alpha = measure(point.alpha((2 * n - 1) / (2 * n)), draws.alpha())
    if n < len(units.given):
        shares = {name: measure(getattr(point, name), getattr(draws, name)) for name in _SHARES}
    else:
        shares = _wilson_measures(labelled)
    return TruthMeasures(**shares, **by_draws, alpha=alpha)


_SHARES: Final = ("earned", "agreement", "sensitivity", "specificity")
_BY_DRAWS: Final = ("kappa", "excess")


def _wilson_measures(labelled: Sequence[_Label]) -> dict[str, Measure]:
    """The shares of fully labelled units with their Wilson intervals."""

    def share(values: Sequence[tuple[bool, _Label]]) -> Measure:
        counts = _counts(values)
        return Measure(counts.share, *counts.wilson) if counts.size else UNKNOWN

    return {
        "earned": share([(label.earned, label) for label in labelled]),
        "agreement": share([(label.given == label.earned, label) for label in labelled]),
        "sensitivity": share([(label.given, label) for label in labelled if label.earned]),
        "specificity": share([(not label.given, label) for label in labelled if not label.earned]),
    }


def measure(point: Floats, draws: Floats) -> Measure:
    """An estimate with the middle 95 % of draws; a bound that the estimate itself reaches is an end."""
    value = float(point[0])
    known = draws[np.isfinite(draws)]
    if not np.isfinite(value) or not len(known):
        return UNKNOWN
    low, high = interval_of(known)
    return Measure(value, min(low, value), max(high, value))


def interval_of(draws: Floats) -> Interval:
    """The middle 95 % of draws."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(float(low), float(high))


def difference_of_excess(first: Units, second: Units) -> Measure:
    """How much more generous the grader is on the first units than on the second, compared with the truth."""
    both = [rates_of(units) for units in (first, second)]
    if not all(rates.is_known for rates in both):
        return UNKNOWN
    generator = np.random.default_rng(SEED)
    point = both[0].point().excess - both[1].point().excess
    return measure(point, both[0].draws(generator).excess - both[1].draws(generator).excess)


NOT_BETTER: Final = "its sensitivity and specificity are not clearly better than chance"
OUTSIDE: Final = "its share of full marks does not fit its sensitivity and specificity"


class Corrected(NamedTuple):
    """A corrected share, or why there is none."""

    share: Measure
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LabelledPool:
    """The texts with labels that sensitivity and specificity come from."""

    others: Counts
    """How often the grader gives full marks to texts of the pool that are not scored here."""
    own_share: float
    """The share of the pool's texts that are scored here: 0 if the labels come from separate texts."""
    if_given: Counts
    if_denied: Counts

    def shares(self, given: Floats, others: Floats, if_given: Floats, if_denied: Floats) -> TruthShares:
        """The three shares of the whole pool, from those of its parts."""
        return TruthShares(self.own_share * given + (1 - self.own_share) * others, if_given, if_denied)

    @property
    def is_known(self) -> bool:
        """Whether texts of both outcomes have labels."""
        return self.if_given.size > 0 and self.if_denied.size > 0


def corrected_by_labels(is_open: Counts, rates: TruthRates) -> Corrected:
    """The share of full marks from labels of the same texts."""
    if not rates.is_known:
        return Corrected(UNKNOWN, "texts of one outcome have no label")
    generator = np.random.default_rng(SEED)
    draws = _open_draws(is_open, generator) * rates.draws(generator).earned
    return Corrected(measure(is_open.share * rates.point().earned, draws))


def corrected_by_error_rates(is_open: Counts, given: Counts, pool: LabelledPool) -> Corrected:
    """The share of full marks from the grader's share and its sensitivity and specificity elsewhere."""
    if not pool.is_known:
        return Corrected(UNKNOWN, "texts of one outcome have no label")
    generator = np.random.default_rng(SEED)
    drawn = beta_draws(given, generator)
    shares = pool.shares(
        drawn, *(beta_draws(counts, generator) for counts in (pool.others, pool.if_given, pool.if_denied))
    )
    counts = (given, pool.others, pool.if_given, pool.if_denied)
    point = [np.array([c.share]) for c in counts]
    estimate = _rogan_gladen(point[0], pool.shares(*point))
    # Whether sensitivity + specificity is above 1 in all but 2.5 % of the draws.
    index = shares.sensitivity + shares.specificity - 1
    is_informative = bool(np.quantile(index[np.isfinite(index)], 0.025) > 0)
    if not is_informative or not np.isfinite(estimate[0]):
        return Corrected(UNKNOWN, NOT_BETTER)
    open_draws, found = _open_draws(is_open, generator), _rogan_gladen(drawn, shares)
    possible = (found >= 0) & (found <= 1)
    if float(np.mean(possible)) < _LEAST_POSSIBLE:
        return Corrected(UNKNOWN, OUTSIDE)
    share = measure(is_open.share * np.clip(estimate, 0, 1), open_draws * np.clip(found, 0, 1))
    if share.low is not None and share.low == share.high:
        # Nearly all draws are beyond 0 or 1: the possible ones say how far the share may be from there.
        share = measure(is_open.share * np.clip(estimate, 0, 1), (open_draws * found)[possible])
    return Corrected(share)


_LEAST_POSSIBLE: Final = 0.001
"""If fewer draws than this give a share from 0 to 1, the error rates do not hold for these texts."""


class KindErrors(NamedTuple):
    """How often a grader gives the point of one kind of criterion."""

    if_earned: Counts
    if_missed: Counts

    @property
    def is_known(self) -> bool:
        """Whether criteria of both outcomes have labels."""
        return self.if_earned.size > 0 and self.if_missed.size > 0


Decisions = tuple[tuple[int, int], ...]
"""By kind of criterion, how many criteria of a text the grader gives and denies."""


def corrected_by_criteria(
    is_open: Counts, texts: Sequence[Decisions], clusters: Sequence[Hashable], rates: Sequence[KindErrors]
) -> Corrected:
    """The share of full marks from the decisions on each text's criteria and the error rates of their kinds."""
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
    # A Bayesian bootstrap over combinations carries the uncertainty of the scored texts.
    weight = generator.dirichlet(np.ones(len(counts)), size=hits.shape[1]) @ counts
    drawn = np.sum(weight * _product(patterns, hits, false_alarms).T, axis=1) / weight.sum(axis=1)
    if float(np.mean((drawn >= 0) & (drawn <= 1))) < _LEAST_POSSIBLE:
        return Corrected(UNKNOWN, OUTSIDE)
    draws = _open_draws(is_open, generator) * np.clip(drawn, 0, 1)
    return Corrected(measure(is_open.share * np.clip(share, 0, 1), draws))


def _product(patterns: NDArray[np.int64], hits: Floats, false_alarms: Floats) -> Floats:
    """For each pattern and draw, the product over criteria of the corrected decision, which is 1 or 0 on average."""
    power = patterns[:, :, :, None]
    given = (1 - false_alarms) / (hits - false_alarms)
    denied = -false_alarms / (hits - false_alarms)
    found: Floats = np.prod(given ** power[:, :, 0] * denied ** power[:, :, 1], axis=1)
    return found


def _rogan_gladen(given: Floats, shares: TruthShares) -> Floats:
    index = shares.sensitivity + shares.specificity - 1
    estimate: Floats = np.divide(
        given + shares.specificity - 1, index, out=np.full_like(given, np.nan), where=np.abs(index) > 0
    )
    return estimate


def _open_draws(is_open: Counts, generator: np.random.Generator) -> Floats:
    """Draws of the share of texts that code leaves to the grader; 1 if code denies none."""
    drawn = beta_draws(is_open, generator)
    return np.ones_like(drawn) if is_open.share == 1 else drawn
