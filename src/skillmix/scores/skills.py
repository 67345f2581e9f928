"""Compute rates of criteria and skills, why full marks were missed, and full marks expected if skills were independent.

`cell_independence` compares observed full marks with the values expected if skills were independent, and
`independence_test` adds intervals and a permutation test. Because texts about the same combination are correlated, the
permutation moves their outcomes together, and the bootstrap draws whole combinations.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations as subsets
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from skillmix.grading.answers import CUT_IN_THOUGHT, AnswerStatus
from skillmix.grading.points import FULL_MARKS
from skillmix.scores.cells import Cell
from skillmix.scores.statistics.intervals import (
    FEWEST_COMBINATIONS,
    SEED,
    Cluster,
    Floats,
    Interval,
    cluster_interval,
    percentile_interval,
)


@dataclass(frozen=True, slots=True)
class Rate:
    """How often a skill, or a set of skills, was requested and how often it was shown."""

    shown: int
    asked: int

    @property
    def value(self) -> float:
        """Return the share of requests that were met."""
        return self.shown / self.asked


def skill_rates(cells: Iterable[Cell]) -> dict[str, Rate]:
    """For each skill, count the texts that should show it and the texts that do; undecided points do not count."""
    return {skill: rate for (skill,), rate in _rates(cells, 1).items()}


def pair_rates(cells: Iterable[Cell]) -> dict[tuple[str, str], Rate]:
    """For each pair of skills, count the texts that should show both and the texts that do."""
    return {(first, second): rate for (first, second), rate in _rates(cells, 2).items()}


def _rates(cells: Iterable[Cell], size: int) -> dict[tuple[str, ...], Rate]:
    """For each skill set of this size, count texts that show all its skills; a text shared by settings counts once."""
    counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    seen: set[tuple[str, str, str, str, int]] = set()
    for cell in cells:
        run, student, grader = cell.key.run, cell.key.student, cell.key.grader
        for combination, texts in zip(cell.combinations, cell.points, strict=True):
            for generation, points in enumerate(texts):
                key = (run, student, grader, combination.id, generation)
                if points is None or key in seen:
                    continue
                seen.add(key)
                known = sorted((s, p) for s, p in zip(combination.skills, points, strict=False) if p is not None)
                for chosen in subsets(known, size):
                    count = counts[tuple(skill for skill, _ in chosen)]
                    count[0] += all(point for _, point in chosen)
                    count[1] += 1
    return {skills: Rate(*counts[skills]) for skills in sorted(counts)}


@dataclass(frozen=True, slots=True)
class Saturation:
    """The largest k at which full marks reach a given level, judged by the value and by both ends of its interval."""

    k: int
    k_low: int
    k_high: int
    largest_tried: int


def saturation(cells: Iterable[Cell], *, level: float) -> Saturation | None:
    """Find the largest k such that a student's full marks reach `level` at this k and at every smaller k tried.

    The cells must belong to one student, grader and setting.
    """
    scores = [(c.key.k, c.scores[FULL_MARKS]) for c in sorted(cells, key=lambda c: c.key.k)]
    known = [(k, s) for k, s in scores if s.value is not None]
    if not known:
        return None
    reached = {"value": 0, "low": 0, "high": 0}
    for end in reached:
        for k, score in known:
            if float(getattr(score, end)) < level:
                break
            reached[end] = k
    return Saturation(reached["value"], reached["low"], reached["high"], known[-1][0])


def criterion_rates(cells: Iterable[Cell]) -> tuple[int, dict[str, float | None]]:
    """Count the texts of the given cells, and return the share of decided points earned, by kind of criterion.

    A text counts once in every cell that contains it. A share is None if no point is decided.
    """
    points: dict[str, list[bool]] = {kind: [] for kind in ("skill", "topic", "sense", "length")}
    texts = 0
    for cell in cells:
        for of_text in (p for generations in cell.points for p in generations if p is not None):
            texts += 1
            for kind, point in zip(["skill"] * cell.key.k + ["topic", "sense", "length"], of_text, strict=True):
                if point is not None:
                    points[kind].append(point)
    return texts, {kind: sum(own) / len(own) if own else None for kind, own in points.items()}


REASONS: Final = ("format", "in its thought", "refused", "skills", "others", "both", "undecided")
_BY_STATUS: Final[Mapping[AnswerStatus | None, str]] = {
    "refused": "refused", CUT_IN_THOUGHT: "in its thought", "no marker": "format", "empty": "format"
}  # fmt: skip


def losses(cells: Iterable[Cell]) -> dict[str, int]:
    """Count graded texts, texts with full marks, other texts by why they lack full marks, and missing grades.

    A text that lacks the marker but still earns every point has full marks.
    """
    counts = dict.fromkeys(("texts", "full marks", *REASONS, "not there"), 0)
    for cell in cells:
        for points_of, statuses in zip(cell.points, cell.statuses, strict=True):
            for points, status in zip(points_of, statuses, strict=True):
                if points is None:
                    counts["not there"] += 1
                    continue
                counts["texts"] += 1
                skills, others = False in points[:-3], False in points[-3:]
                denied = "both" if skills and others else "skills" if skills else "others" if others else "undecided"
                counts["full marks" if all(points) else _BY_STATUS.get(status) or denied] += 1
    return counts


@dataclass(frozen=True, slots=True)
class TextOutcome:
    """A fully decided text: which of the requested skills it shows, and whether it meets the other three criteria."""

    skills: Mapping[str, bool]
    others_met: bool

    @property
    def full_marks(self) -> bool:
        """Whether the text earns every point."""
        return self.others_met and all(self.skills.values())


Block = tuple[TextOutcome, ...]
"""The fully decided texts about one combination."""


@lru_cache(maxsize=64)  # a table and a figure of a report use the same blocks
def blocks_of(cell: Cell | None) -> list[Block]:
    """Return the fully decided texts of a cell by combination; combinations without such a text are left out."""
    blocks = [
        tuple(
            TextOutcome({s: bool(p) for s, p in zip(combination.skills, points, strict=False)}, all(points[-3:]))
            for points in texts
            if points is not None and None not in points
        )
        for combination, texts in (zip(cell.combinations, cell.points, strict=True) if cell else ())
    ]
    return [block for block in blocks if block]


@dataclass(frozen=True, slots=True)
class Independence:
    """Full marks (pass@1): the observed share, and the shares expected if skills were independent."""

    texts: int
    observed: float | None
    expected_same_k: float | None
    """The value expected from the rate of each skill in texts with the same k."""
    expected_k1: float | None
    """The value expected from the rate of each skill at k = 1; None if no text has a k = 1 rate for all its skills."""
    without_k1_rate: int
    """The number of texts left out of `expected_k1` because one of their skills has no rate at k = 1."""


def independence(texts: Sequence[TextOutcome], alone: Sequence[TextOutcome]) -> Independence:
    """Compare texts of one k with the product of their skills' rates and the rate of the other three criteria."""
    if not texts:
        return Independence(0, None, None, None, 0)
    others = sum(text.others_met for text in texts) / len(texts)
    products = []
    for source in (texts, alone):
        shown: dict[str, list[bool]] = defaultdict(list)
        for text in source:
            for skill, is_shown in text.skills.items():
                shown[skill].append(is_shown)
        rates = {skill: sum(own) / len(own) for skill, own in shown.items()}
        products.append([prod(rates[s] for s in t.skills) for t in texts if all(s in rates for s in t.skills)])
    same_k, k1 = products
    return Independence(
        texts=len(texts),
        observed=sum(text.full_marks for text in texts) / len(texts),
        expected_same_k=others * sum(same_k) / len(same_k),
        expected_k1=others * sum(k1) / len(k1) if k1 else None,
        without_k1_rate=len(texts) - len(k1),
    )


def cell_independence(cell: Cell, alone: Cell | None) -> Independence:
    """Compare full marks (pass@1) with the values expected for independent skills; `alone` is the cell of k = 1."""
    texts, single = ([text for block in blocks_of(own) for text in block] for own in (cell, alone))
    return independence(texts, single)


@dataclass(frozen=True, slots=True)
class IndependenceTest:
    """The intervals of an `Independence`, and a test of the hypothesis that skills are independent."""

    observed: Interval | None
    """The 95% interval of the observed share over combinations; None if there are too few combinations."""
    if_independent: Interval | None
    """The middle 95% of the shares in the permutations; None if there are no texts."""
    p: float | None
    """The two-sided p-value of the permutation test; None if k = 1 or there are no texts."""
    k1: Interval | None
    """The 95% interval of `expected_k1` over the combinations of both k; None if there are too few combinations."""


def independence_test(cell: Cell, alone: Cell | None) -> IndependenceTest:
    """Test the hypothesis that the skills of a text succeed independently; `alone` is the cell of k = 1.

    A permutation moves the outcomes of one skill between the combinations that request it, and shuffles them within a
    combination. It treats the other criteria as one more skill that every combination requests. Each skill
    therefore keeps its rate, and the outcomes of one combination stay together. Outcomes move only between combinations
    with the same number of texts. The p-value is twice the smaller of two shares: the permutations with at least as
    many full marks as observed, and those with at most as many.
    """
    blocks, of_alone = blocks_of(cell), blocks_of(alone)
    if not blocks:
        return IndependenceTest(None, None, None, None)
    clusters = [Cluster(sum(text.full_marks for text in block), len(block)) for block in blocks]
    observed = sum(cluster.total for cluster in clusters)
    permuted = _permuted_counts(blocks)
    extreme = min(int((permuted >= observed).sum()), int((permuted <= observed).sum()))
    low, high = np.quantile(permuted / sum(map(len, blocks)), [0.025, 0.975])
    return IndependenceTest(
        observed=cluster_interval(clusters) if len(blocks) >= FEWEST_COMBINATIONS else None,
        if_independent=Interval(float(low), float(high)),
        p=min(1.0, 2 * (extreme + 1) / (DRAWS + 1)) if cell.key.k > 1 else None,
        k1=_product_interval(blocks, of_alone) if min(len(blocks), len(of_alone)) >= FEWEST_COMBINATIONS else None,
    )


DRAWS: Final = 1000
"""The number of permutations, and of resamples of combinations."""
_AT_ONCE: Final = 5_000_000
"""The maximum of draws times combinations in one group; each element temporarily needs about 25 bytes."""


def draws_at_once(combinations: int) -> list[int]:
    """Return the sizes of the groups in which draws are made; one group unless there are thousands of combinations.

    >>> draws_at_once(5_000)
    [1000]
    >>> draws_at_once(12_000)
    [416, 416, 168]
    """
    most = max(1, _AT_ONCE // max(1, combinations))
    return [min(most, DRAWS - start) for start in range(0, DRAWS, most)]


def _permuted_counts(blocks: Sequence[Block]) -> NDArray[np.int64]:
    """Return the number of texts with full marks in every permutation."""
    generator = np.random.default_rng(SEED)
    full = np.zeros(DRAWS, dtype=np.int64)
    for size in sorted({len(block) for block in blocks}):
        same = [block for block in blocks if len(block) == size]
        rows: dict[str, list[int]] = defaultdict(list)
        for row, block in enumerate(same):
            for skill in block[0].skills:
                rows[skill].append(row)
        outcomes = [
            (own, np.array([[text.skills[skill] for text in same[row]] for row in own], dtype=np.bool_))
            for skill, own in sorted(rows.items())
        ]
        others = np.array([[text.others_met for text in block] for block in same], dtype=np.bool_)
        outcomes.append((list(range(len(same))), others))
        counts = []
        for draws in draws_at_once(len(same)):
            # Combinations are the first axis, because selecting contiguous blocks of memory is several times as fast.
            is_full = np.ones((len(same), draws, size), dtype=np.bool_)
            for own, shown in outcomes:
                moved = np.broadcast_to(shown, (draws, *shown.shape))
                if shown.any() and not shown.all():
                    moved = shown.take(generator.permuted(np.tile(np.arange(len(shown)), (draws, 1)), axis=1), axis=0)
                    moved = generator.permuted(moved, axis=2) if size > 1 else moved
                is_full[own] &= moved.transpose(1, 0, 2)
            counts.append(is_full.sum(axis=(0, 2)))
        full += np.concatenate(counts, dtype=np.int64)
    return full


def _resamples(*sizes: int) -> Iterator[Sequence[NDArray[np.int64]]]:
    """Draw how often each combination occurs in every resample; yield groups of resamples, with an array per size."""
    generator = np.random.default_rng(SEED)
    # A combination needs two to three times as much memory here as in a permutation.
    for draws in draws_at_once(2 * max(sizes)):
        yield [generator.multinomial(size, [1 / size] * size, size=draws) for size in sizes]


_cached_resamples = lru_cache(maxsize=1)(lambda *sizes: list(_resamples(*sizes)))
"""Cached resamples for cells of up to a few thousand combinations; a report often has many cells of one size."""


def _product_interval(blocks: Sequence[Block], alone: Sequence[Block]) -> Interval | None:
    """Bootstrap the mean product of the single-skill rates and the rate of the other criteria; return the interval.

    The bootstrap draws the combinations of both k. A resample omits combinations with a skill for which it has no rate.
    Return None if every resample omits all combinations.
    """
    skills = sorted({skill for block in alone for skill in block[0].skills})
    shown, asked = np.zeros((2, len(alone), len(skills)))
    for row, block in enumerate(alone):
        for column, skill in enumerate(skills):
            shown[row, column] = sum(text.skills.get(skill, False) for text in block)
            asked[row, column] = len(block) * (skill in block[0].skills)
    products: list[Floats] = []
    is_small = len(draws_at_once(2 * max(len(blocks), len(alone)))) == 1
    for drawn_alone, drawn in (_cached_resamples if is_small else _resamples)(len(alone), len(blocks)):
        with np.errstate(invalid="ignore"):  # nan if a resample has no text that should show the skill
            rates = dict(zip(skills, ((drawn_alone @ shown) / (drawn_alone @ asked)).T, strict=True))
        unknown = np.full(len(drawn), np.nan)
        product = np.stack(
            [np.prod([rates.get(skill, unknown) for skill in block[0].skills], axis=0) for block in blocks], axis=1
        )
        texts = drawn * np.array([len(block) for block in blocks])
        others = drawn @ np.array([sum(text.others_met for text in block) for block in blocks]) / texts.sum(axis=1)
        weights = np.where(np.isnan(product), 0, texts)
        has_rates = weights.sum(axis=1) > 0
        means = (np.nan_to_num(product) * weights)[has_rates].sum(axis=1) / weights[has_rates].sum(axis=1)
        products.append(others[has_rates] * means)
    drawn_products = np.concatenate(products)
    return percentile_interval(drawn_products, min(len(blocks), len(alone))) if len(drawn_products) else None
