"""Which skills succeed, alone, in pairs and together, and what texts would show if their skills were independent.

`cell_independence` compares full marks with independent skills; `independence_test` adds intervals and a permutation
test. Texts of one combination are correlated: the permutation moves their outcomes together, and the bootstrap draws
whole combinations.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations as subsets
from math import prod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmix.grading.points import FULL_MARKS, Points
from skillmix.scores.cells import Cell
from skillmix.scores.statistics.intervals import (
    FEWEST_COMBINATIONS,
    SEED,
    Cluster,
    Floats,
    Interval,
    cluster_interval,
    percentile_interval,
    wilson_interval,
)


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something was shown of the times it was asked for."""

    shown: int
    asked: int

    @property
    def value(self) -> float:
        """The share."""
        return self.shown / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson interval over texts; texts of one combination are correlated, so the true uncertainty is larger."""
        return wilson_interval(self.value, self.asked)


def skill_rates(cells: Iterable[Cell]) -> dict[str, Rate]:
    """For each skill, how many of the texts that were asked for it show it; undecided points do not count."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for skills, points in _texts(cells):
        for skill, point in zip(skills, points, strict=False):
            if point is not None:
                counts[skill][0] += point
                counts[skill][1] += 1
    return {skill: Rate(*counts[skill]) for skill in sorted(counts)}


def pair_rates(cells: Iterable[Cell]) -> dict[tuple[str, str], Rate]:
    """For each pair of skills, how many of the texts that were asked for both show both."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for skills, points in _texts(cells):
        known = [(s, p) for s, p in zip(skills, points, strict=False) if p is not None]
        for (a, shown_a), (b, shown_b) in subsets(sorted(known), 2):
            counts[a, b][0] += shown_a and shown_b
            counts[a, b][1] += 1
    return {pair: Rate(*counts[pair]) for pair in sorted(counts)}


def _texts(cells: Iterable[Cell]) -> Iterator[tuple[tuple[str, ...], Points]]:
    """Every graded text once: settings can share a text."""
    seen: set[tuple[str, str, str, str, int]] = set()
    for cell in cells:
        run, student, grader = cell.key.run, cell.key.student, cell.key.grader
        for combination, texts in zip(cell.combinations, cell.points, strict=True):
            for generation, points in enumerate(texts):
                key = (run, student, grader, combination.id, generation)
                if points is not None and key not in seen:
                    seen.add(key)
                    yield combination.skills, points


@dataclass(frozen=True, slots=True)
class Saturation:
    """The largest k with full marks of at least a level, by the value and by both ends of its interval."""

    k: int
    k_low: int
    k_high: int
    largest_tried: int


def saturation(cells: Iterable[Cell], *, level: float) -> Saturation | None:
    """Go up from the smallest k of one student, grader and setting, and stop at the first k below the level."""
    scores = [(c.key.k, c.scores[FULL_MARKS]) for c in sorted(cells, key=lambda c: c.key.k)]
    known = [(k, s) for k, s in scores if s.value is not None]
    if not known:
        return None

    def last(ends: list[float]) -> int:
        reached = 0
        for (k, _), end in zip(known, ends, strict=True):
            if end < level:
                break
            reached = k
        return reached

    by_value, by_low, by_high = (last([float(getattr(s, end)) for _, s in known]) for end in ("value", "low", "high"))
    return Saturation(k=by_value, k_low=by_low, k_high=by_high, largest_tried=known[-1][0])


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


@dataclass(frozen=True, slots=True)
class TextOutcome:
    """One fully decided text: which of its skills it shows, and whether it meets the other three criteria."""

    skills: Mapping[str, bool]
    others_met: bool

    @property
    def full_marks(self) -> bool:
        """Whether the text earns every point."""
        return self.others_met and all(self.skills.values())


@dataclass(frozen=True, slots=True)
class Independence:
    """One-try full marks as observed, and as expected if skills were independent."""

    texts: int
    observed: float | None
    expected_same_k: float | None
    """Expected from the rate of each skill in texts of the same k."""
    expected_k1: float | None
    """Expected from the rate of each skill at k = 1; None if no text has such a rate for all its skills."""
    without_k1_rate: int
    """Texts left out of `expected_k1` because one of their skills has no rate at k = 1."""


def independence(texts: Sequence[TextOutcome], alone: Sequence[TextOutcome]) -> Independence:
    """Compare texts of one k with products of per-skill rates, each times the rate of the other three criteria."""
    if not texts:
        return Independence(0, None, None, None, 0)
    others = sum(text.others_met for text in texts) / len(texts)
    same_k = _products(texts, _rates(texts))
    k1 = _products(texts, _rates(alone))
    return Independence(
        texts=len(texts),
        observed=sum(text.full_marks for text in texts) / len(texts),
        expected_same_k=others * sum(same_k) / len(same_k),
        expected_k1=others * sum(k1) / len(k1) if k1 else None,
        without_k1_rate=len(texts) - len(k1),
    )


def _rates(texts: Sequence[TextOutcome]) -> dict[str, float]:
    """How often each skill is shown when a text is asked for it."""
    shown: dict[str, list[bool]] = defaultdict(list)
    for text in texts:
        for skill, is_shown in text.skills.items():
            shown[skill].append(is_shown)
    return {skill: sum(outcomes) / len(outcomes) for skill, outcomes in shown.items()}


def _products(texts: Sequence[TextOutcome], rates: Mapping[str, float]) -> list[float]:
    return [prod(rates[s] for s in text.skills) for text in texts if all(s in rates for s in text.skills)]


Block = tuple[TextOutcome, ...]
"""The fully decided texts of one combination."""


def blocks_of(cell: Cell) -> list[Block]:
    """The fully decided texts of a cell, by combination; combinations without such a text are left out."""
    blocks = []
    for combination, texts in zip(cell.combinations, cell.points, strict=True):
        block = tuple(
            TextOutcome({s: bool(p) for s, p in zip(combination.skills, points, strict=False)}, all(points[-3:]))
            for points in texts
            if points is not None and None not in points
        )
        blocks += [block] if block else []
    return blocks


def cell_independence(cell: Cell, alone: Cell | None) -> Independence:
    """Compare observed one-try full marks with independent skills; `alone` is the cell of k = 1."""
    texts = [text for block in blocks_of(cell) for text in block]
    return independence(texts, [text for block in blocks_of(alone) for text in block] if alone else [])


@dataclass(frozen=True, slots=True)
class IndependenceTest:
    """Intervals of an `Independence`, and the test of the hypothesis that skills are independent."""

    observed: Interval | None
    """95 % interval of the observed share over combinations; None if there are too few of them."""
    if_independent: Interval | None
    """The middle 95 % of the observed share in the permutations; None without texts."""
    p: float | None
    """Two-sided p-value of the permutation test; None at k = 1 and without texts."""
    k1: Interval | None
    """95 % interval of `expected_k1` over the combinations of both k; None if there are too few of them."""


def independence_test(cell: Cell, alone: Cell | None) -> IndependenceTest:
    """Test a cell; `alone` is the cell of k = 1."""
    blocks, alone_blocks = blocks_of(cell), blocks_of(alone) if alone else []
    if not blocks:
        return IndependenceTest(None, None, None, None)
    clusters = [Cluster(sum(text.full_marks for text in block), len(block)) for block in blocks]
    test = permutation_test([_outcomes(block) for block in blocks])
    has_enough = min(len(blocks), len(alone_blocks)) >= FEWEST_COMBINATIONS
    alone_outcomes = [_outcomes(block) for block in alone_blocks]
    return IndependenceTest(
        observed=cluster_interval(clusters) if len(blocks) >= FEWEST_COMBINATIONS else None,
        if_independent=test.range,
        p=test.p if cell.key.k > 1 else None,
        k1=product_interval([_outcomes(block) for block in blocks], alone_outcomes) if has_enough else None,
    )


def _outcomes(block: Block) -> Outcomes:
    skills = {skill: [text.skills[skill] for text in block] for skill in block[0].skills}
    return Outcomes(skills, [text.others_met for text in block])
