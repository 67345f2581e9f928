"""The findings, on runs made to support, contradict and leave open each claim."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skillmix.catalog.combinations import combination_of
from skillmix.catalog.files import load_catalog
from skillmix.experiment.experiment import experiment_of
from skillmix.experiment.plan import cells_of
from skillmix.models.lineage import Lineage
from skillmix.report.page import finding_sentence
from skillmix.report.write import ReportOptions, report
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.compare import ComparableStudent
from skillmix.scores.findings import Finding, findings
from skillmix.scores.statistics.differences import gain, more_to_exclude, more_to_find
from tests.report.worlds import make_world

CLAIMS = ("held-out", "larger k", "efficiency", "control")


def lineage(*k: int, rows: int | None = 1000, base: str = "b", seed: int = 0, partition: str = "p") -> Lineage:
    none: frozenset[str] = frozenset()
    return Lineage(base, k, seed, partition, (), none, None, rows, 100, is_adapter=False, identity="i")


def contender(
    name: str, told: Lineage | None = None, *, run: str = "r", seed: int = 0, partition: str = "p"
) -> ComparableStudent:
    return ComparableStudent(run, name, "b" if told is None else "local:x", "standard", told, partition, seed)


def cell(student: str, successes: int, n: int, *, k: int = 4, setting: str = "held-out", run: str = "r") -> Cell:
    """The first `successes` of n combinations have full marks."""
    combinations = tuple(combination_of([f"s{i}" for i in range(k)], f"t{number}") for number in range(n))
    points = tuple((tuple([number < successes] * (k + 3)),) for number in range(n))
    return Cell(CellKey(run, student, "g", setting, k), combinations, points, (("fine",),) * n)


def judged(students: Mapping[str, Lineage | None], cells: list[Cell]) -> dict[str, Finding]:
    found = findings([contender(name, told) for name, told in students.items()], {c.key: c for c in cells})
    return {f.claim: f for f in found}


WHO: dict[str, Lineage | None] = {"base": None, "m1": lineage(1), "m12": lineage(1, 2), "m123": lineage(1, 2, 3)}


def world_of(successes: Mapping[str, int], n: int, **more: Any) -> dict[str, Finding]:
    return judged(WHO, [cell(name, count, n, **more) for name, count in successes.items()])


def test_each_claim_is_supported_where_the_data_say_so() -> None:
    found = world_of({"base": 5, "m1": 6, "m12": 20, "m123": 60}, 200)

    assert {claim: f.verdict for claim, f in found.items()} == dict.fromkeys(CLAIMS, "supported")
    assert (found["held-out"].first, found["held-out"].second) == ("base", "m123")
    assert (found["efficiency"].first, found["efficiency"].second) == ("m12", "m123")
    assert found["larger k"].compared[0].gain.mean == pytest.approx(55 / 200)


def test_each_claim_is_contradicted_where_the_data_say_so() -> None:
    found = world_of({"base": 60, "m1": 120, "m12": 60, "m123": 20}, 200)

    assert {claim: f.verdict for claim, f in found.items()} == dict.fromkeys(CLAIMS, "not supported")
    assert "lowers full marks by −.20" in finding_sentence(found["held-out"])


def test_each_claim_is_left_open_by_too_little_data() -> None:
    found = world_of({"base": 2, "m1": 4, "m12": 3, "m123": 4}, 10)

    for claim in CLAIMS:
        assert found[claim].verdict == "too little data"
        more = found[claim].more
        assert more is not None and more > 0
        assert f"about {more:,} more combinations" in finding_sentence(found[claim])


def test_no_gain_in_much_data_is_not_supported_rather_than_open() -> None:
    found = world_of({"base": 0, "m1": 0, "m12": 0, "m123": 0}, 200)

    assert {claim: f.verdict for claim, f in found.items()} == {
        "held-out": "not supported",
        "larger k": "not supported",
        "efficiency": "not supported",
        "control": "supported",
    }
    assert "can the gain be .05 or more" in finding_sentence(found["held-out"])


def test_names_decide_nothing_and_lineage_all() -> None:
    swapped = {"tuned-on-everything": None, "base": lineage(1, 2, 3)}
    found = judged(swapped, [cell("tuned-on-everything", 5, 200), cell("base", 60, 200)])

    assert found["held-out"].verdict == "supported"
    assert (found["held-out"].first, found["held-out"].second) == ("tuned-on-everything", "base")


def test_richer_data_must_not_be_more_data() -> None:
    students = {"base": None, "m12": lineage(1, 2, rows=500), "m123": lineage(1, 2, 3, rows=501)}

    assert "efficiency" not in judged(students, [cell(name, 50, 200) for name in students])


def test_a_claim_needs_its_own_k_and_setting() -> None:
    found = world_of({"base": 5, "m1": 6, "m12": 20, "m123": 60}, 200, k=3, setting="train")

    assert set(found) == {"efficiency", "control"}


def test_tests_are_corrected_over_all_k_and_settings_of_a_claim() -> None:
    cells = []
    for k in (4, 5):
        for setting in ("train", "held-out"):
            cells += [cell("base", 10, 100, k=k, setting=setting), cell("m123", 18, 100, k=k, setting=setting)]

    found = findings([contender("base"), contender("m123", lineage(1, 2, 3))], {c.key: c for c in cells})

    compared = [c for f in found if f.claim == "larger k" for c in f.compared]
    assert [c.gain.p for c in compared] == [pytest.approx(2 / 2**8)] * 4
    assert [c.p_corrected for c in compared] == [pytest.approx(8 / 2**8)] * 4


def test_several_seeds_are_pooled_and_more_seeds_are_asked_for() -> None:
    contenders, cells = [], []
    for seed, successes in enumerate((40, 10, 70)):
        run = f"r{seed}"
        told = lineage(1, 2, 3, seed=seed)
        contenders += [contender("base", run=run, seed=seed), contender("m123", told, run=run, seed=seed)]
        cells += [cell("base", 5, 100, run=run), cell("m123", successes, 100, run=run)]

    (finding,) = (f for f in findings(contenders, {c.key: c for c in cells}) if f.claim == "held-out")

    compared = finding.compared[0]
    assert (compared.gain.seeds, compared.gain.partitions, compared.gain.unit) == (3, 1, "seeds")
    assert compared.gain.mean == pytest.approx((0.35 + 0.05 + 0.65) / 3)
    assert compared.gain.low < 0.05 < compared.gain.high
    assert finding.verdict == "too little data"
    assert finding.runs == ("r0", "r1", "r2")
    assert "more seeds" in finding_sentence(finding)


def test_partitions_stand_above_seeds() -> None:
    found = gain({"p": {0: [1.0] * 20, 1: [0.0] * 20}, "q": {0: [1.0] * 20}})

    assert (found.unit, found.values, found.mean) == ("partitions", (0.5, 1.0), 0.75)


def test_how_many_more_are_needed() -> None:
    open_gain = gain({"p": {0: [1.0] * 3 + [0.0] * 27}})

    more = more_to_find(open_gain, level=0.05)
    assert more is not None
    longer = gain({"p": {0: ([1.0] * 3 + [0.0] * 27) * (1 + (more + 29) // 30)}})
    assert longer.p < 0.05
    nothing = gain({"p": {0: [0.0] * 30}})
    assert nothing.high > 0.05
    more = more_to_exclude(nothing, 0.05)
    assert more is not None
    assert gain({"p": {0: [0.0] * (30 + more)}}).high < 0.05 < gain({"p": {0: [0.0] * (20 + more)}}).high + 0.005


SCRIPTED = {
    "supported": ({"base": "skill=0.3", "m1": "skill=0.3", "m12": "skill=0.7", "m123": "skill=1"}, 60),
    "not supported": ({"base": "skill=0.8", "m1": "skill=1", "m12": "skill=1", "m123": "skill=0.4"}, 60),
    "too little data": ({"base": "skill=0.7", "m1": "skill=0.8", "m12": "skill=0.7", "m123": "skill=0.8"}, 5),
}


@pytest.mark.parametrize("verdict", SCRIPTED)
def test_scripted_runs_from_journal_to_page(in_folder: Path, verdict: str) -> None:
    rates, n = SCRIPTED[verdict]
    exact = {name: f"{rate}&topic=1&sense=1&length=1" for name, rate in rates.items()}
    make_world(in_folder, "scripted", exact, k=[4], combinations=n, generations=1, settings=["held-out"])

    made = report(["scripted"], options=ReportOptions(figures=False))

    page = made.page.read_text(encoding="utf-8")
    for claim in (
        "held-out skills",
        "more skills than trained on",
        "no more conversations",
        "do not teach composition",
    ):
        block = page.partition(claim)[2].partition("</article>")[0]
        assert f'<p class="verdict">{verdict}</p>' in block, claim


def test_scores_on_trained_combinations_are_said_to_be_such(in_folder: Path) -> None:
    world = make_world(
        in_folder,
        "told",
        {"base": "skill=0.5", "m1": "skill=0.9"},
        k=[1],
        combinations=4,
        generations=1,
        settings=["all"],
    )
    file = world.run / "m1" / "model" / "skillmix.json"
    (cell_, *_) = cells_of(experiment_of(world.experiment, source="test"), load_catalog("paper"))
    seen = [combination.id for combination in cell_.combinations[:3]]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"combinations": seen}), encoding="utf-8")

    made = report(["told"], options=ReportOptions(figures=False))

    assert "told: m1 was trained on 3 of the 4 combinations it is scored on." in made.gaps
