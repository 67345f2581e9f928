"""Full marks as observed, and as expected if the skills of a text were independent of each other.

`cell_independence` computes the numbers. `independence_test` adds intervals, and a permutation test of the hypothesis
that skills are independent.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from skillmix.scores.cells import Cell
from skillmix.scores.statistics.independent_outcomes import Outcomes, permutation_test, product_interval
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS, Interval
from skillmix.scores.statistics.ratios import Cluster, cluster_interval


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
