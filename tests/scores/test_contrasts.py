"""Planned comparisons: what they compare, in which order they are tested, and how often they find what is not there."""

from collections.abc import Sequence

import numpy as np
import pytest
from pydantic import ValidationError

from skillmix.catalog.combinations import combination_of
from skillmix.experiment.steps import Contrast
from skillmix.grading.answers import AnswerStatus
from skillmix.models.lineage import Lineage
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.findings import JudgedContrast, judge_planned
from skillmix.scores.scoring import ComparableStudent

WORLDS = 80
FINE: AnswerStatus = "fine"
RATES = {
    ("m123", "random-cells"): 0.6,
    ("m1any", "random-cells"): 0.1,
    ("m123", "new-figures"): 0.1,
    ("m1any", "new-figures"): 0.1,
}
PAIRED = Contrast(student="m123", against="m1any", setting="random-cells", k=2)
WITHIN = Contrast(student="m123", setting="random-cells", against_setting="new-figures", k=2)
NULL = Contrast(student="m123", against="m1any", setting="new-figures", k=2)


def lineage(partition: str) -> Lineage:
    none: frozenset[str] = frozenset()
    return Lineage("b", (1, 2, 3), 0, partition, (partition,), none, None, 1000, 100, is_adapter=False, identity="")


def world(
    partitions: int,
    seed: int,
    rates: dict[tuple[str, str], float] = RATES,
    *,
    combinations: int = 100,
    spread: float = 0.0,
    tries: int = 1,
) -> tuple[list[ComparableStudent], dict[CellKey, Cell]]:
    """Students of one file with partitions, whose rates may differ from one partition to the next."""
    generator = np.random.default_rng(seed)
    students, cells = [], {}
    for number in range(partitions):
        where = f"nested:{number}"
        for family in ("m123", "m1any"):
            name = f"{family}-p{number}"
            students.append(ComparableStudent("r", name, "new:tiny", "", lineage(where), where, 0, family=family))
            for setting in ("random-cells", "new-figures"):
                rate = np.clip(rates[family, setting] + spread * generator.normal(), 0, 1)
                drawn = generator.random((combinations, tries)) < rate
                key = CellKey("r", name, "rules", f"{setting} under {where}", 2)
                drawn_combinations = [combination_of(["a", "b"], f"{where} {setting} {n}") for n in range(combinations)]
                points = tuple(tuple((bool(full),) * 5 for full in row) for row in drawn)
                cells[key] = Cell(key, tuple(drawn_combinations), points, ((FINE,) * tries,) * combinations)
    return students, cells


def judged(plan: Sequence[Contrast], partitions: int, seed: int = 0, **more: object) -> list[JudgedContrast]:
    return judge_planned(plan, *world(partitions, seed, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("partitions", [1, 4, 12])
def test_a_difference_between_students_and_one_between_settings_are_found(partitions: int) -> None:
    between, within = judged([PAIRED, WITHIN], partitions)

    for one in (between, within):
        assert one.verdict == "supported"
        assert one.judged.gain.low is not None and one.judged.gain.high is not None
        assert one.judged.gain.low < 0.5 < one.judged.gain.high
        assert one.value == pytest.approx(0.6, abs=0.12) and one.against == pytest.approx(0.1, abs=0.08)
        assert len(one.by_partition) == partitions
    assert between.title == "m123 − m1any, random-cells, k = 2"
    assert within.title == "m123 random-cells − m123 new-figures, k = 2"


def test_after_a_comparison_that_is_not_found_no_later_one_is() -> None:
    null, later = judged([NULL, PAIRED], 4, seed=3)

    assert null.verdict != "supported"
    assert judged([PAIRED], 4, seed=3)[0].judged.p_corrected < 0.001
    assert later.judged.p_corrected == null.judged.p_corrected > 0.05
    assert later.verdict == "too little data"


@pytest.mark.parametrize(("partitions", "spread"), [(1, 0.0), (3, 0.05), (12, 0.05)])
@pytest.mark.parametrize("plan", [PAIRED, WITHIN], ids=["students", "settings"])
def test_a_null_world_is_rarely_a_finding(plan: Contrast, partitions: int, spread: float) -> None:
    equal = dict.fromkeys(RATES, 0.3)
    held = found = 0
    for seed in range(WORLDS):
        (one,) = judged([plan], partitions, seed, rates=equal, combinations=40, spread=spread)
        found += one.verdict == "supported"
        assert one.judged.gain.low is not None and one.judged.gain.high is not None
        held += one.judged.gain.low <= 0 <= one.judged.gain.high

    # With one partition the verdict is about this training alone, whose spread is 0 here.
    assert held / WORLDS >= 0.95 - 3 * (0.95 * 0.05 / WORLDS) ** 0.5
    assert found <= 7


def test_the_score_is_that_of_one_try() -> None:
    (one,) = judged([PAIRED], 2, tries=3)

    assert one.value == pytest.approx(0.6, abs=0.08)  # the best of three would be .94


def test_both_sides_must_differ() -> None:
    with pytest.raises(ValidationError, match="both sides are the same"):
        Contrast(student="m123", setting="train", k=2)
