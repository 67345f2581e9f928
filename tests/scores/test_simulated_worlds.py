"""Simulated worlds: how often intervals hold the truth, and how often findings claim a gain that is or is not there.

A world has students whose rate of full marks differs between training seeds or partitions by a standard deviation of 0,
.03 or .06, and combinations that differ in difficulty. `make long` runs ten times as many worlds.
"""

import json
import os
from collections.abc import Sequence
from functools import cache
from importlib import resources

import numpy as np
import pytest
from numpy.typing import NDArray

from skillmix.catalog.combinations import Combination, combination_of
from skillmix.models.lineage import Lineage
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.findings import Finding, findings
from skillmix.scores.scoring import ComparableStudent
from skillmix.scores.statistics.differences import TableMoments, crossed_moments, difference_of, gain, uncertainty
from skillmix.scores.statistics.intervals import t_quantile
from tests.ends import ends

LONG = bool(os.environ.get("SKILLMIX_LONG"))
BATCHES = 10 if LONG else 1
WORLDS = 2000
COMBINATIONS = 100
SPREADS = (0.0, 0.03, 0.06)
RATES = ((0.2, 0.05), (0.3, 0.15), (0.5, 0.2))
"""The rate of full marks, and how far combinations deviate from it."""

Floats = NDArray[np.float64]


def shifts(generator: np.random.Generator, spread: float, shape: tuple[int, ...]) -> Floats:
    """How seeds or partitions deviate; cut off symmetrically, so that rates stay within 0..1 and their mean is kept."""
    return np.clip(generator.normal(0, 1, shape), -2.4, 2.4) * spread


def no_effect(
    generator: np.random.Generator, shape: tuple[int, int], rate: tuple[float, float], spread: float, *, shared: bool
) -> Floats:
    """Differences by world, unit and combination; all units may share their combinations and the texts of the base."""
    worlds, units = shape
    own = (worlds, 1 if shared else units, COMBINATIONS)
    difficulty = generator.uniform(-rate[1], rate[1], own)
    base = generator.random(own) < rate[0] + difficulty
    tuned = generator.random((worlds, units, COMBINATIONS)) < rate[0] + difficulty + shifts(
        generator, spread, (worlds, units, 1)
    )
    return tuned.astype(np.float64) - base


def nested_moments_of(tables: Floats) -> TableMoments:
    """The moments of many tables whose units have combinations of their own."""
    means = tables.mean(axis=-1)
    within = tables.var(axis=-1, ddof=1).mean(axis=-1) / tables.shape[-1]
    return TableMoments(means.mean(axis=-1), means.var(axis=-1, ddof=1), within, np.zeros(len(tables)))


def shares_above_and_below(moments: TableMoments, units: int) -> tuple[float, float]:
    """How often the interval over seeds or partitions lies above 0, and how often below."""
    variance, degrees = uncertainty(moments.between, moments.within, moments.crossed, units, COMBINATIONS)
    half = t_quantile(0.975, degrees) * np.sqrt(variance)
    return float((moments.mean - half > 0).mean()), float((moments.mean + half < 0).mean())


@pytest.mark.parametrize("kind", ["shared combinations and base", "combinations of their own"])
@pytest.mark.parametrize("units", [3, 5, 10])
def test_intervals_hold_the_truth_in_93_to_97_percent(kind: str, units: int) -> None:
    """Seeds, and partitions in the setting `all`, share combinations and base; partitions elsewhere have their own."""
    generator = np.random.default_rng(units)
    coverage = {}
    for spread in SPREADS:
        for rate in RATES:
            shares = []
            for _ in range(BATCHES):
                is_shared = kind == "shared combinations and base"
                tables = no_effect(generator, (WORLDS, units), rate, spread, shared=is_shared)
                moments = crossed_moments(tables) if is_shared else nested_moments_of(tables)
                shares.append(shares_above_and_below(moments, units))
            above, below = np.mean(shares, axis=0)
            assert above <= (0.042 if LONG else 0.05), (spread, rate)
            coverage[spread, rate[0]] = 1 - above - below
    # 2,000 worlds know a coverage to .005, one standard error; the long form knows it to .0016.
    slack = 0.003 if LONG else 0.01
    assert 0.93 - slack <= min(coverage.values()), coverage
    assert max(coverage.values()) <= 0.97 + slack, coverage
    assert 0.935 <= np.mean(list(coverage.values())) <= 0.97, coverage


@pytest.mark.parametrize("units", [3, 5, 10])
@pytest.mark.parametrize("is_shared", [True, False])
def test_pooled_partitions_hold_the_truth_whether_or_not_they_share_combinations(units: int, is_shared: bool) -> None:
    generator = np.random.default_rng(100 + units)
    worlds, held = (4000 if LONG else 500), 0
    for number in range(worlds):
        (table,) = no_effect(generator, (1, units), RATES[number % 3], SPREADS[number % 2], shared=is_shared)
        ids = [[f"c{n}" if is_shared else f"c{n} of {unit}" for n in range(COMBINATIONS)] for unit in range(units)]
        found = gain({f"p{unit}": {0: dict(zip(ids[unit], row, strict=True))} for unit, row in enumerate(table)})
        low, high = ends(found)
        held += low <= 0 <= high

    # 500 worlds know a coverage of .95 to .01, one standard error; the long form knows it to .0035.
    assert 0.93 - (0.0 if LONG else 0.015) <= held / worlds <= 0.97 + (0.0 if LONG else 0.015)


def test_the_interval_of_one_seed_holds_the_truth_of_that_training_run() -> None:
    worlds = 100 * BATCHES
    misses = [0, 0]
    for number, spread in enumerate(SPREADS):
        generator = np.random.default_rng(number)
        for shift in shifts(generator, spread, (worlds,)):
            difficulty = generator.uniform(0.15, 0.45, COMBINATIONS)
            tuned = generator.random(COMBINATIONS) < difficulty + shift
            result = difference_of(tuned.astype(np.float64) - (generator.random(COMBINATIONS) < difficulty))
            misses[0] += result.low > shift
            misses[1] += result.high < shift

    above, below = (count / (3 * worlds) for count in misses)
    assert above <= 0.06
    assert 0.93 <= 1 - above - below <= 0.97


@cache
def combinations(k: int, draw: int) -> tuple[Combination, ...]:
    return tuple(combination_of([f"s{i}" for i in range(k)], f"t{number}-{draw}") for number in range(COMBINATIONS))


def cell(key: CellKey, full_marks: Sequence[bool], draw: int) -> Cell:
    points = tuple(((bool(full),) * (key.k + 3),) for full in full_marks)
    return Cell(key, combinations(key.k, draw), points, (("fine",),) * len(points))


def tuned_lineage(seed: int, partition: str) -> Lineage:
    none: frozenset[str] = frozenset()
    return Lineage("b", (1, 2, 3), seed, partition, (partition,), none, None, 1000, 100, is_adapter=False, identity="")


Rates = dict[int, tuple[float, float]]
"""The rates of base and tuned student by k."""


def finding_of_world(
    generator: np.random.Generator, rates: Rates, *, units: str, number: int, spread: float
) -> Finding:
    """What is said after one world with several seeds or partitions: of held-out skills or, in `all`, of larger k.

    Seeds, and partitions in the setting `all`, share combinations and the texts of the base.
    """
    is_shared = units != "partitions"
    setting, claim = ("all", "larger k") if units == "partitions in all" else ("held-out", "held-out")
    texts_of_base: dict[int, list[bool]] = {}
    students, cells = [], []
    difficulty = {(k, draw): generator.uniform(-1, 1, COMBINATIONS) for k in rates for draw in range(number)}
    for unit in range(number):
        seed, partition = (unit, "p") if units == "seeds" else (0, f"p{unit}")
        draw = 0 if is_shared else unit
        run = f"r{unit}"
        students += [
            ComparableStudent(run, "base", "b", "standard", None, partition, seed),
            ComparableStudent(run, "m", "local:m", "standard", tuned_lineage(seed, partition), partition, seed),
        ]
        shift = float(shifts(generator, spread, (1,))[0])
        for k, (before, after) in rates.items():
            for student, rate, moved in (("base", before, 0.0), ("m", after, shift)):
                chance = rate + moved + 0.5 * min(rate, 1 - rate) * difficulty[k, draw]
                marks = (generator.random(COMBINATIONS) < chance).tolist()
                if student == "base" and is_shared:
                    marks = texts_of_base.setdefault(k, marks)
                cells.append(cell(CellKey(run, student, "g", setting, k), marks, draw))
    found = findings(students, {c.key: c for c in cells})
    return next(f for f in found if f.claim == claim)


def published_rates() -> Rates:
    """Full marks of LLaMA-2-13B-Chat and of D(1,2,3) on held-out skills, as the paper prints them."""
    file = resources.files("skillmix.data").joinpath("published.json")
    rows = json.loads(file.read_text(encoding="utf-8"))["tables"]["table_10"]["rows"]
    of = {row["trained_on"]: [group[0] for group in row["values"]] for row in rows if row["setting"] == "held-out"}
    return {k: (of["base"][k - 1], of["D(1,2,3)"][k - 1]) for k in (2, 3, 4, 5)}


@pytest.mark.parametrize("units", ["seeds", "partitions"])
def test_the_gains_of_the_paper_are_found_with_three_seeds_or_partitions(units: str) -> None:
    generator = np.random.default_rng(3)
    rates, worlds = published_rates(), 40 * BATCHES

    found = [finding_of_world(generator, rates, units=units, number=3, spread=0.03) for _ in range(worlds)]

    assert np.mean([f.verdict == "supported" for f in found]) >= 0.9
    for k in (2, 3):
        share = np.mean([next(c for c in f.compared if c.k == k).is_gain for f in found])
        assert share >= 0.9 - (0.0 if LONG else 0.05), k  # 40 worlds know a share of .93 to .04


@pytest.mark.parametrize("units", ["seeds", "partitions", "partitions in all"])
@pytest.mark.parametrize("number", [1, 2, 3, 5, 10] if LONG else [1, 2, 3, 5])
def test_no_effect_is_rarely_called_a_gain(units: str, number: int) -> None:
    generator = np.random.default_rng(number)
    rates = {k: (rate, rate) for k, rate in ((2, 0.3), (3, 0.2), (4, 0.15))}
    # The finding of one training run is about that run, in which a shift of its rates is a real gain or loss.
    spreads = SPREADS if number > 1 else (0.0,)
    worlds = (600 if LONG else 36) // len(spreads)

    verdicts = [
        finding_of_world(generator, rates, units=units, number=number, spread=spread).verdict
        for spread in spreads
        for _ in range(worlds)
    ]

    assert verdicts.count("supported") <= 0.06 * len(verdicts)
