"""The findings, on runs made to support, contradict and leave open each claim."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillmix.catalog.combinations import combination_of
from skillmix.catalog.files import load_catalog
from skillmix.experiment.experiment import experiment_of
from skillmix.experiment.plan import cells_of
from skillmix.models.lineage import Lineage
from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.findings import Finding, findings
from skillmix.scores.scoring import ComparableStudent
from skillmix.scores.sentences import finding_sentence
from skillmix.scores.statistics.differences import gain, more_to_exclude, more_to_find
from tests.ends import ends
from tests.report.worlds import make_world

CLAIMS = ("composition", "held-out", "larger k", "efficiency", "control")
"""Those of a world without train skills."""


def lineage(*k: int, rows: int | None = 1000, steps: int | None = 100, **more: Any) -> Lineage:
    none: frozenset[str] = frozenset()
    facts: dict[str, Any] = {"base": "b", "seed": 0, "partition": "p", "datasets": (f"data of {k}",), "recipe": ""}
    facts |= more
    return Lineage(
        k=k, rows=rows, steps=steps, combinations=none, skill_sets=None, is_adapter=False, identity="i", **facts
    )


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
    return {f.claim: f for f in found if f.claim != "planned"}


WHO: dict[str, Lineage | None] = {"base": None, "m1": lineage(1), "m12": lineage(1, 2), "m123": lineage(1, 2, 3)}


def world_of(successes: Mapping[str, int], n: int, **more: Any) -> dict[str, Finding]:
    return judged(WHO, [cell(name, count, n, **more) for name, count in successes.items()])


def test_each_claim_is_supported_where_the_data_say_so() -> None:
    found = world_of({"base": 5, "m1": 6, "m12": 20, "m123": 60}, 200)

    assert {claim: f.verdict for claim, f in found.items()} == dict.fromkeys(CLAIMS, "supported")
    assert (found["efficiency"].first, found["efficiency"].second) == ("m12", "m123")
    assert found["larger k"].compared[0].gain.mean == pytest.approx(54 / 200)


def test_each_claim_is_contradicted_where_the_data_say_so() -> None:
    found = world_of({"base": 60, "m1": 120, "m12": 60, "m123": 20}, 200)

    assert {claim: f.verdict for claim, f in found.items()} == dict.fromkeys(CLAIMS, "not supported")
    assert "lowers full marks by −.50" in finding_sentence(found["held-out"])


def test_claims_beyond_training_are_tested_against_as_much_practice_of_single_skills() -> None:
    students = {"base": None, "m1": lineage(1), "m123": lineage(1, 2, 3)}
    cells = [cell(name, n, 100, k=4) for name, n in (("base", 10), ("m1", 50), ("m123", 51))]

    found = judged(students, cells)
    alone = judged({"base": None, "m123": lineage(1, 2, 3)}, [cells[0], cells[2]])
    unmatched = judged(students | {"m1": lineage(1, rows=500)}, cells)

    for claim in ("held-out", "larger k"):
        assert (found[claim].first, found[claim].verdict) == ("m1", "not supported")
        assert [c.explained_by for c in found[claim].explained] == ["m1"]
        assert "practice on single skills may explain the gain" in finding_sentence(found[claim])
        for other in (alone, unmatched):
            assert (other[claim].first, other[claim].verdict) == ("base", "supported")
            assert "such practice may explain a difference" in finding_sentence(other[claim])


def test_the_same_texts_with_requests_for_one_skill_are_the_best_control() -> None:
    students = {
        "base": None,
        "m1": lineage(1),
        "asked-one": lineage(1, 2, 3, requests="one"),
        "m123": lineage(1, 2, 3),
    }

    found = judged(students, [cell(name, 10, 100) for name in students])

    assert {(found[c].first, found[c].second) for c in ("held-out", "larger k")} == {("asked-one", "m123")}
    assert found["control"].second == "m1"


@pytest.mark.parametrize(
    ("claim", "trained", "verdict"),
    [
        ("held-out", {2: 40, 3: 0}, "not supported"),
        ("held-out", {2: 4, 3: 0}, "not taught"),
        ("larger k", {2: 40, 3: 4}, "not taught"),
        ("larger k", {2: 4, 3: 5}, "not supported"),
        ("larger k", {}, "not supported"),
    ],
    ids=str,
)
def test_what_lies_beyond_is_not_taught_if_the_trained_k_is_at_the_floor(
    claim: str, trained: dict[int, int], verdict: str
) -> None:
    students = {"base": None, "m123": lineage(1, 2, 3)}
    cells = [cell(name, 1, 100, k=4) for name in students]
    cells += [cell(name, n, 100, k=k, setting="train") for k, n in trained.items() for name in students]

    found = judged(students, cells)[claim]

    assert found.verdict == verdict
    assert ("taught too little" in finding_sentence(found)) == (verdict == "not taught")


def test_each_claim_is_left_open_by_too_little_data() -> None:
    found = world_of({"base": 2, "m1": 4, "m12": 3, "m123": 4}, 10)

    for claim in CLAIMS:
        assert found[claim].verdict == "too little data"
        more = found[claim].more.combinations
        assert more is not None and more > 0
        sentence = finding_sentence(found[claim])
        assert f"about {more:,} more combinations" in sentence
        assert "for this one training run" in sentence


def test_no_gain_in_much_data_is_not_supported_rather_than_open() -> None:
    found = world_of({"base": 0, "m1": 0, "m12": 0, "m123": 0}, 200)

    assert {claim: f.verdict for claim, f in found.items()} == {
        "composition": "not supported",
        "held-out": "not supported",
        "larger k": "not supported",
        "efficiency": "not supported",
        "control": "supported",
    }
    assert "a gain of .05 or more is excluded at every k" in finding_sentence(found["held-out"])


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

    assert set(found) == {"composition", "trained k", "efficiency", "control"}


@pytest.mark.parametrize(
    ("verdict", "after", "n"), [("supported", 60, 200), ("not supported", 5, 200), ("too little data", 3, 10)]
)
def test_gains_on_train_skills_at_trained_k_are_a_claim(verdict: str, after: int, n: int) -> None:
    cells = [cell("base", min(5, n // 5), n, k=2, setting="train"), cell("m12", after, n, k=2, setting="train")]

    found = judged({"base": None, "m12": lineage(1, 2)}, cells)

    assert found["trained k"].verdict == verdict
    assert (found["trained k"].first, found["trained k"].second) == ("base", "m12")


def test_tests_are_corrected_over_all_k_and_settings_of_a_claim() -> None:
    cells = []
    for k in (4, 5):
        for setting in ("train", "held-out"):
            cells += [cell("base", 10, 100, k=k, setting=setting), cell("m123", 18, 100, k=k, setting=setting)]

    found = findings([contender("base"), contender("m123", lineage(1, 2, 3))], {c.key: c for c in cells})

    compared = [c for f in found if f.claim == "larger k" for c in f.compared]
    assert [c.gain.p for c in compared] == [pytest.approx(2 / 2**8)] * 4
    assert [c.p_corrected for c in compared] == [pytest.approx(8 / 2**8)] * 4


def test_a_loss_at_one_k_is_named_beside_gains_at_others() -> None:
    cells = [cell("base", 20, 200, k=4), cell("m123", 60, 200, k=4)]
    cells += [cell("base", 60, 200, k=2), cell("m123", 20, 200, k=2)]

    finding = judged({"base": None, "m123": lineage(1, 2, 3)}, cells)["held-out"]

    assert finding.verdict == "supported"
    assert "It lowers full marks by −.20" in finding_sentence(finding)


def test_a_loss_beside_an_open_k_leaves_the_claim_open() -> None:
    cells = [cell("base", 1, 10, k=4), cell("m123", 2, 10, k=4)]
    cells += [cell("base", 60, 200, k=2), cell("m123", 20, 200, k=2)]

    finding = judged({"base": None, "m123": lineage(1, 2, 3)}, cells)["held-out"]

    assert finding.verdict == "too little data"
    assert "It lowers full marks by −.20" in finding_sentence(finding)


def test_a_gain_too_small_to_claim_is_not_claimed() -> None:
    small = {"base": None, "m123": lineage(1, 2, 3)}

    certain = judged(small, [cell("base", 50, 2000), cell("m123", 110, 2000)])["held-out"]
    unsure = judged(small, [cell("base", 10, 300), cell("m123", 22, 300)])["held-out"]

    assert ends(certain.compared[0].gain)[0] > 0
    assert certain.verdict == "not supported"
    low, high = ends(unsure.compared[0].gain)
    assert low > 0 and high > 0.05
    assert unsure.verdict == "too little data"
    assert unsure.more.combinations


def test_single_skill_data_must_not_reach_the_smallest_gain() -> None:
    students = {"base": None, "m1": lineage(1)}

    found = judged(students, [cell("base", 10, 400), cell("m1", 40, 400)])

    assert ends(found["control"].compared[0].gain)[1] > 0.05
    assert found["control"].verdict == "not supported"


def practice(*singles: Lineage) -> list[Finding]:
    """Findings of the first claim: D(1,2,3) against students of single skills, one of which does better."""
    students = {"m123": lineage(1, 2, 3)} | {f"single{number}": told for number, told in enumerate(singles)}
    cells = [cell("m123", 60, 200), *(cell(f"single{number}", 10, 200) for number in range(len(singles)))]
    found = findings([contender(name, told) for name, told in students.items()], {c.key: c for c in cells})
    assert found[0].claim == "composition"
    return [f for f in found if f.claim == "composition"]


def test_composition_is_compared_with_practice_of_equal_texts_and_steps() -> None:
    equal, other = practice(lineage(1, rows=400), lineage(1, rows=960, steps=104))

    assert (equal.first, equal.pair.is_matched, equal.verdict) == ("single1", True, "supported")
    assert "(1,000 conversations against 960, 100 steps against 104)" in finding_sentence(equal)
    assert "more practice" not in finding_sentence(equal)
    assert (other.first, other.pair.is_matched) == ("single0", False)
    assert "more practice may explain a difference" in finding_sentence(other)


@pytest.mark.parametrize("single", [lineage(1, rows=1060), lineage(1, steps=90), lineage(1, steps=None)])
def test_equal_means_within_five_percent_of_texts_and_steps(single: Lineage) -> None:
    (finding,) = practice(single)

    assert not finding.pair.is_matched


def test_efficiency_prefers_equal_steps_or_says_that_it_cannot() -> None:
    rates = {"base": 5, "m12": 20, "long": 20, "m123": 60}
    students = {
        "base": None,
        "m12": lineage(1, 2, rows=1000, steps=50),
        "long": lineage(1, 2, rows=1200, steps=100),
        "m123": lineage(1, 2, 3),
    }

    both = judged(students, [cell(name, count, 200) for name, count in rates.items()])["efficiency"]
    del students["long"]
    one = judged(students, [cell(name, count, 200) for name, count in rates.items() if name != "long"])["efficiency"]

    assert (both.first, both.pair.is_matched) == ("long", True)
    assert "1,000 conversations against 1,200, 100 steps against 100" in finding_sentence(both)
    assert (one.first, one.pair.is_matched) == ("m12", False)
    assert "may have taken more steps" in finding_sentence(one)


def over_seeds(successes: Mapping[int, int], *, names: Mapping[int, str] | None = None, **more: Any) -> list[Finding]:
    """Findings of several runs, each with the base and a student that was trained with another seed."""
    students, cells = [], []
    for seed, count in successes.items():
        run = (names or {}).get(seed, f"r{seed}")
        told = lineage(1, 2, 3, seed=seed, **{key: value[seed] for key, value in more.items()})
        students += [contender("base", run=run, seed=seed), contender("m123", told, run=run, seed=seed)]
        cells += [cell("base", 5, 100, run=run), cell("m123", count, 100, run=run)]
    found = findings(students, {c.key: c for c in cells})
    return [f for f in found if f.claim == "held-out"]


def test_several_seeds_are_pooled_and_more_seeds_are_asked_for() -> None:
    (finding,) = over_seeds({0: 40, 1: 10, 2: 70})

    compared = finding.compared[0]
    assert (compared.gain.seeds, compared.gain.partitions, compared.gain.unit) == (3, 1, "seeds")
    assert compared.gain.combinations == 100
    assert compared.gain.mean == pytest.approx((0.35 + 0.05 + 0.65) / 3)
    low, high = ends(compared.gain)
    assert low < 0.05 < high
    assert finding.verdict == "too little data"
    assert finding.runs == ("r0", "r1", "r2")
    sentence = finding_sentence(finding)
    assert f"about {finding.more.seeds} more seeds would be needed" in sentence
    assert "more combinations alone would not be enough" in sentence
    assert "over 100 combinations and 3 seeds;" in sentence


def test_three_seeds_that_agree_support_a_claim() -> None:
    (finding,) = over_seeds({0: 40, 1: 42, 2: 38})

    assert finding.verdict == "supported"
    assert "over 3 seeds" in finding_sentence(finding)


def test_students_of_one_run_that_differ_by_seed_are_pooled() -> None:
    students = {"base": None} | {f"m{seed}": lineage(1, 2, seed=seed) for seed in range(3)}
    contenders = [contender(name, told, seed=told.seed or 0 if told else 0) for name, told in students.items()]
    cells = [cell("base", 5, 100), *(cell(f"m{seed}", 40 + seed, 100) for seed in range(3))]

    (finding,) = (f for f in findings(contenders, {c.key: c for c in cells}) if f.claim == "held-out")

    assert finding.compared[0].gain.seeds == 3
    assert finding.compared[0].gain.mean == pytest.approx(0.36)


@pytest.mark.parametrize(
    "difference", [{"datasets": {0: ("one",), 1: ("two",)}}, {"recipe": {0: "slow", 1: "fast"}}], ids=str
)
def test_other_data_or_another_recipe_is_not_another_seed(difference: dict[str, Any]) -> None:
    assert len(over_seeds({0: 40, 1: 42}, **difference)) == 2


@pytest.mark.parametrize("difference", [{"catalog": "c2"}, {"prompts": "other"}, {"graders": {"g": "other"}}], ids=str)
def test_runs_with_another_catalog_prompt_or_grader_are_not_pooled(difference: dict[str, Any]) -> None:
    students, cells = [], []
    for seed, changed in ((0, {}), (1, difference)):
        run = f"r{seed}"
        pair = [contender("base", run=run), contender("m12", lineage(1, 2, seed=seed), run=run, seed=seed)]
        students += [replace(student, **changed) for student in pair]
        cells += [cell("base", 5, 100, run=run), cell("m12", 40, 100, run=run)]

    found = [f for f in findings(students, {c.key: c for c in cells}) if f.claim == "held-out"]

    assert [f.runs for f in found] == [("r0",), ("r1",)]


def test_the_same_run_under_two_names_counts_once_and_says_so() -> None:
    (once,) = over_seeds({0: 12})
    students, cells = [], []
    for run in ("r0", "copy"):
        students += [contender("base", run=run), contender("m123", lineage(1, 2, 3), run=run)]
        cells += [cell("base", 5, 100, run=run), cell("m123", 12, 100, run=run)]

    (twice,) = (f for f in findings(students, {c.key: c for c in cells}) if f.claim == "held-out")

    assert twice.compared == once.compared
    assert (twice.runs, twice.repeated) == (("r0", "copy"), ("copy",))
    assert "copy holds the scores of another run in this report under another name" in finding_sentence(twice)


def test_partitions_stand_above_seeds() -> None:
    ones, zeros = ({f"c{number}": value for number in range(20)} for value in (1.0, 0.0))

    found = gain({"p": {0: ones, 1: zeros}, "q": {0: ones}})

    assert (found.unit, found.values, found.mean) == ("partitions", (0.5, 1.0), 0.75)


def test_partitions_with_data_sets_of_other_sizes_are_not_pooled() -> None:
    for rows, number in ((1020, 1), (500, 2)):
        students, cells = [], []
        for partition, size in (("p", 1000), ("q", rows)):
            told = lineage(1, 2, rows=size, datasets=(partition,), partition=partition)
            students += [contender("base", run=partition, partition=partition)]
            students += [contender("m12", told, run=partition, partition=partition)]
            cells += [cell("base", 5, 100, run=partition), cell("m12", 40, 100, run=partition)]

        found = [f for f in findings(students, {c.key: c for c in cells}) if f.claim == "held-out"]

        assert len(found) == number


def ones_and_zeros(ones: int, zeros: int) -> dict[str, float]:
    return {f"c{number}": float(number < ones) for number in range(ones + zeros)}


def test_how_many_more_are_needed() -> None:
    open_gain = gain({"p": {0: ones_and_zeros(3, 27)}})

    more = more_to_find(open_gain, level=0.05).combinations
    assert more is not None
    times = 1 + (more + 29) // 30
    longer = gain({"p": {0: ones_and_zeros(3 * times, 27 * times)}})
    assert longer.p < 0.05
    nothing = gain({"p": {0: ones_and_zeros(0, 30)}})
    assert ends(nothing)[1] > 0.05
    more = more_to_exclude(nothing, 0.05).combinations
    assert more is not None
    enough, too_few = (ends(gain({"p": {0: ones_and_zeros(0, n + more)}}))[1] for n in (30, 20))
    assert enough < 0.05 < too_few + 0.005


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
        "further practice of single skills",
        "skills that were never combined in training",
        "improves texts with more skills",
        "without more conversations",
        "does not teach how to combine them",
    ):
        block = page.partition('id="findings"')[2].partition(claim)[2].partition("</article>")[0]
        assert f'<p class="verdict">{verdict}</p>' in block, claim


@pytest.mark.parametrize(
    ("verdict", "after", "n"), [("supported", 1, 40), ("not supported", 0.2, 60), ("too little data", 0.6, 8)]
)
def test_scripted_runs_on_train_skills(in_folder: Path, verdict: str, after: float, n: int) -> None:
    rates = {"base": "skill=0.5&topic=1&sense=1&length=1", "m12": f"skill={after}&topic=1&sense=1&length=1"}
    make_world(in_folder, "scripted", rates, k=[2], combinations=n, generations=1, settings=["train"])

    page = report(["scripted"], options=ReportOptions(figures=False)).page.read_text(encoding="utf-8")

    findings_of_page = page.partition('id="findings"')[2]
    block = findings_of_page.partition("with as many skills as in training")[2].partition("</article>")[0]
    assert f'<p class="verdict">{verdict}</p>' in block


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
