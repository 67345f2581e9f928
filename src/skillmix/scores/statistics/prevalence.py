"""Shares of texts with full marks, corrected for the errors of the grader, with 95 % intervals.

Some texts get no full marks whatever a grader says: code denies them. `Open` is the share of the other texts. Among
these, the share with full marks is estimated in one of two ways:

- from labels of the same texts: the share given times the share right among those, plus the share denied times the
  share wrong among those (post-stratification). This needs no assumption on the errors elsewhere;
- from sensitivity and specificity (Rogan and Gladen): (given + specificity - 1) / (sensitivity + specificity - 1).

Intervals are quantiles of the same formula over draws of every share from its Jeffreys posterior, so that they carry
the uncertainty of the labels and that of the scored texts.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

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
