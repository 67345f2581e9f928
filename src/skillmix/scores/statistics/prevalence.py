"""Shares of texts with full marks, corrected for the errors of the grader, with 95 % intervals.

Some texts get no full marks whatever a grader says: code denies them. `Open` is the share of the other texts. Among
these, the share with full marks is estimated in one of three ways:

- from labels of the same texts: the share given times the share right among those, plus the share denied times the
  share wrong among those (post-stratification). This needs no assumption on the errors elsewhere;
- from the error rates of each kind of criterion: the mean over texts of the product over criteria of (given +
  specificity - 1) / (sensitivity + specificity - 1). It is unbiased for any student if the grader errs on each
  criterion at those rates, independently of the other criteria of the text;
- from sensitivity and specificity of full marks (Rogan and Gladen), by the same formula for the whole text. The rates
  of full marks depend on how many criteria the failing texts miss, so they hold only for students alike.

Intervals are quantiles of the same formula over draws of every share from its Jeffreys posterior, so that they carry
the uncertainty of the labels and that of the scored texts.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmix.scores.statistics.against_truth import UNKNOWN, Measure, TruthRates, TruthShares, beta_draws, measure
from skillmix.scores.statistics.effective_counts import Counts
from skillmix.scores.statistics.intervals import SEED, Floats

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
    if not _is_informative(shares) or not np.isfinite(estimate[0]):
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


def _is_informative(shares: TruthShares) -> bool:
    """Whether sensitivity + specificity is above 1 in all but 2.5 % of the draws."""
    index = shares.sensitivity + shares.specificity - 1
    return bool(np.quantile(index[np.isfinite(index)], 0.025) > 0)


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
