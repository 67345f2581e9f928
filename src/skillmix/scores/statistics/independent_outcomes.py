"""Outcomes of several skills in one text, compared with what independent skills would show.

Texts of one combination are correlated. The permutation test moves their outcomes together, and the bootstrap draws
whole combinations.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmix.scores.statistics.intervals import SEED, Floats, Interval, percentile_interval

DRAWS: Final = 1000
"""Permutations, and resamples of combinations."""
_AT_ONCE: Final = 5_000_000
"""The number of combinations in all draws that are made together; each takes about 25 bytes for a short while."""


def draws_at_once(combinations: int) -> list[int]:
    """The sizes of the groups in which draws are made: one group, unless there are thousands of combinations.

    >>> draws_at_once(5_000)
    [1000]
    >>> draws_at_once(12_000)
    [416, 416, 168]
    """
    most = max(1, _AT_ONCE // max(1, combinations))
    return [min(most, DRAWS - start) for start in range(0, DRAWS, most)]


class Outcomes(NamedTuple):
    """The texts of one combination: whether each shows each skill, and whether it meets the other criteria."""

    skills: Mapping[str, Sequence[bool]]
    others: Sequence[bool]

    @property
    def full(self) -> int:
        """How many texts show every skill and meet the other criteria."""
        return sum(map(all, zip(self.others, *self.skills.values(), strict=True)))


class PermutationTest(NamedTuple):
    """The share of full texts that independent skills would show, and the test of the observed share."""

    range: Interval
    """The middle 95 % of the shares in the permutations."""
    p: float
    """Two-sided: twice the smaller share of permutations that are at least as extreme."""


def permutation_test(combinations: Sequence[Outcomes]) -> PermutationTest:
    """Test the hypothesis that the skills of a text succeed independently of each other.

    A permutation moves the outcomes of one skill between the combinations that ask for it, and shuffles them within a
    combination; it treats the other criteria as one more skill that every combination asks for. So each skill keeps
    its rate, and the outcomes of one combination stay together. Outcomes move only between combinations with equally
    many texts.
    """
    texts = sum(len(outcomes.others) for outcomes in combinations)
    observed = sum(outcomes.full for outcomes in combinations)
    permuted = _permuted_counts(combinations)
    extreme = min(int((permuted >= observed).sum()), int((permuted <= observed).sum()))
    low, high = np.quantile(permuted / texts, [0.025, 0.975])
    return PermutationTest(Interval(float(low), float(high)), min(1.0, 2 * (extreme + 1) / (DRAWS + 1)))


def _permuted_counts(combinations: Sequence[Outcomes]) -> NDArray[np.int64]:
    """The number of full texts in every permutation."""
    generator = np.random.default_rng(SEED)
    full = np.zeros(DRAWS, dtype=np.int64)
    for size in sorted({len(outcomes.others) for outcomes in combinations}):
        same = [outcomes for outcomes in combinations if len(outcomes.others) == size]
        by_skill = list(_by_skill(same))
        full += np.concatenate(
            [_full_in_draws(by_skill, draws, generator) for draws in draws_at_once(len(same))], dtype=np.int64
        )
    return full


def _full_in_draws(
    by_skill: Sequence[tuple[list[int], NDArray[np.bool_]]], draws: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """The number of full texts in some permutations; the last of the outcomes has a row for every combination."""
    is_full = np.ones((draws, *by_skill[-1][1].shape), dtype=np.bool_)
    for rows, shown in by_skill:
        is_full[:, rows, :] &= _permuted(shown, draws, generator)
    full: NDArray[np.int64] = is_full.sum(axis=(1, 2))
    return full


def _by_skill(combinations: Sequence[Outcomes]) -> Iterator[tuple[list[int], NDArray[np.bool_]]]:
    """For each skill the numbers of the combinations that ask for it, and its outcomes in their texts."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, outcomes in enumerate(combinations):
        for skill in outcomes.skills:
            rows[skill].append(row)
    for skill in sorted(rows):
        yield rows[skill], np.array([combinations[row].skills[skill] for row in rows[skill]], dtype=np.bool_)
    yield list(range(len(combinations))), np.array([outcomes.others for outcomes in combinations], dtype=np.bool_)


def _permuted(shown: NDArray[np.bool_], draws: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Copies of the outcomes with combinations permuted, and with texts permuted within each combination."""
    combinations, texts = shown.shape
    if shown.all() or not shown.any():
        return np.broadcast_to(shown, (draws, combinations, texts))
    moved = shown[generator.permuted(np.tile(np.arange(combinations), (draws, 1)), axis=1)]
    return generator.permuted(moved, axis=2) if texts > 1 else moved


def product_interval(combinations: Sequence[Outcomes], alone: Sequence[Outcomes]) -> Interval | None:
    """95 % bootstrap interval of the mean product of the rates that skills have `alone`, times the rate of the others.

    It draws the combinations of both. A resample leaves out combinations with a skill that it has no rate for; None if
    every resample leaves out all of them.
    """
    generator = np.random.default_rng(SEED)
    # A combination takes two to three times the memory here that it takes in a permutation.
    groups = draws_at_once(2 * max(len(combinations), len(alone)))
    products = np.concatenate([_drawn_products(combinations, alone, draws, generator) for draws in groups])
    return percentile_interval(products, min(len(combinations), len(alone))) if len(products) else None


def _drawn_products(
    combinations: Sequence[Outcomes], alone: Sequence[Outcomes], draws: int, generator: np.random.Generator
) -> Floats:
    """The mean product in each of some resamples, without those that leave out all combinations."""
    drawn_alone, drawn = (
        generator.multinomial(len(some), [1 / len(some)] * len(some), size=draws) for some in (alone, combinations)
    )
    rates = _resampled_rates(alone, drawn_alone)
    unknown = np.full(draws, np.nan)
    products = np.stack(
        [np.prod([rates.get(skill, unknown) for skill in outcomes.skills], axis=0) for outcomes in combinations], axis=1
    )
    texts = drawn * np.array([len(outcomes.others) for outcomes in combinations])
    others = drawn @ np.array([sum(outcomes.others) for outcomes in combinations]) / texts.sum(axis=1)
    weights = np.where(np.isnan(products), 0, texts)
    has_rates = weights.sum(axis=1) > 0
    means = (np.nan_to_num(products) * weights)[has_rates].sum(axis=1) / weights[has_rates].sum(axis=1)
    result: Floats = others[has_rates] * means
    return result


def _resampled_rates(alone: Sequence[Outcomes], drawn: NDArray[np.int64]) -> dict[str, Floats]:
    """The rate of each skill in every resample; NaN in a resample without a text that is asked for it."""
    rates: dict[str, Floats] = {}
    for skill in sorted({skill for outcomes in alone for skill in outcomes.skills}):
        shown = np.array([sum(outcomes.skills.get(skill, ())) for outcomes in alone])
        asked = np.array([len(outcomes.skills.get(skill, ())) for outcomes in alone])
        with np.errstate(invalid="ignore"):
            rates[skill] = (drawn @ shown) / (drawn @ asked)
    return rates
